"""The tables of a step in stages: a row for each stage, each IPU, or each message; beside those of its operations."""

from typing import Any

from popgeo.ipu.report.tables import COLUMNS as OF_OPERATIONS
from popgeo.ipu.report.tables import TableColumn, columns_of
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.stage_cost import StageCost
from popgeo.ipu.systems.stage_spans import cycles_by_kind

_MEANINGS = {
    "stage": ("", "number of the stage"),
    "ipu": ("", "number of the IPU, in each replica"),
    "layers": ("", "its first and last layer"),
    "forward": ("cycles", "forward pass of one micro-batch"),
    "backward": ("cycles", "backward pass of one micro-batch, recomputation included"),
    "receive": ("cycles", "receiving what other stages send for both passes"),
    "other": ("cycles", "host, streaming memory, putting activations aside and adding up gradients, both passes"),
    "received_bytes": ("B", "what they send for one micro-batch"),
    "weight_bytes": ("B", "parameters and buffers"),
    "stash_bytes": ("B", "kept of one micro-batch from its forward to its backward pass"),
    "in_flight": ("", "most micro-batches of which it keeps that at one time"),
    "memory": ("0 to 1", "fullest tile of its IPU, of what a tile has"),
    "busy": ("0 to 1", "of the step in which its IPU works"),
    "stages": ("", "the stages that run there"),
    "ipus.forward": ("cycles", "of a step in forward passes, and putting aside what they keep"),
    "ipus.backward": ("cycles", "of a step in backward passes, with recomputation, and adding up gradients"),
    "ipus.receive": ("cycles", "of a step in which it receives from other IPUs"),
    "host": ("cycles", "of a step in which it waits for the host's inputs and results"),
    "streaming": ("cycles", "of a step in which it waits for streaming memory"),
    "update": ("cycles", "of a step in the update and the sum of gradients before it"),
    "wait": ("cycles", "of a step in which it waits for others"),
    "weights": ("0 to 1", "of the fullest tile's memory: parameters and buffers, were they even over tiles"),
    "optimizer": ("0 to 1", "of the fullest tile's memory: gradients and optimizer state"),
    "stashes": ("0 to 1", "of the fullest tile's memory: activations of the micro-batches in flight but the last"),
    "working": ("0 to 1", "of the fullest tile's memory: values of one micro-batch, code, and what is uneven"),
    "ipus.memory": ("0 to 1", "fullest tile, of what a tile has: the four together"),
    "kind": ("", "forward, backward, receive, host, streaming or update"),
    "spans.stage": ("", "of which stage; none for the update"),
    "micro_batch": ("", "of which micro-batch; none for the update"),
    "start": ("cycles", "when it begins, from the start of the step"),
    "end": ("cycles", "when it is done"),
    "sender": ("", "IPU that sends"),
    "receiver": ("", "IPU that receives"),
    "transfers.backward": ("", "whether it is gradients, for the backward pass"),
    "nbytes": ("B", "how much, for one micro-batch"),
    "cycles": ("cycles", "how long the receiver takes for it"),
}
_NAMES = {
    "stages": "stage ipu layers forward backward receive other received_bytes weight_bytes stash_bytes in_flight "
    "memory busy",
    "ipus": "ipu stages forward backward receive host streaming update wait weights optimizer stashes working memory",
    "spans": "kind ipu stage micro_batch start end",
    "transfers": "sender receiver backward nbytes cycles",
}
_CHANGE = TableColumn(name="change", unit="", about="arguments of replan that do it")
COLUMNS = columns_of(_NAMES, _MEANINGS) | OF_OPERATIONS | {"insights": (*OF_OPERATIONS["insights"], _CHANGE)}
"""The columns of each table, in order."""


def stages_of(plan: PipelineFigures) -> list[dict[str, Any]]:
    """A row for each stage."""
    return [
        {
            "stage": number,
            "ipu": stage.ipu,
            "layers": stage.layers,
            "forward": stage.forward,
            "backward": stage.backward,
            "receive": stage.receive_forward + stage.receive_backward,
            "other": stage.forward_pass + stage.backward_pass - _computes_and_receives(stage),
            "received_bytes": stage.received_bytes,
            "weight_bytes": stage.weight_bytes,
            "stash_bytes": stage.stash_bytes,
            "in_flight": plan.in_flight[number],
            "memory": plan.memory[stage.ipu],
            "busy": plan.busy[stage.ipu] / plan.cycles,
        }
        for number, stage in enumerate(plan.stages)
    ]


def _computes_and_receives(stage: StageCost) -> float:
    return stage.forward + stage.backward + stage.receive_forward + stage.receive_backward


def ipus_of(plan: PipelineFigures) -> list[dict[str, Any]]:
    """A row for each IPU of a replica."""
    rows = []
    has = plan.target.num_tiles * plan.target.memory_per_tile
    for ipu, cycles in enumerate(cycles_by_kind(plan)):
        own = [number for number, stage in enumerate(plan.stages) if stage.ipu == ipu]
        parts = {
            "weights": sum(plan.stages[n].weight_bytes - plan.stages[n].held_before for n in own) / has,
            "optimizer": plan.extra_bytes[ipu] / has,
            "stashes": sum((plan.in_flight[n] - 1) * plan.stages[n].stash_bytes for n in own) / has,
        }
        parts["working"] = max(0.0, plan.memory[ipu] - sum(parts.values()))
        rows.append({"ipu": ipu, "stages": own, **cycles, **parts, "memory": plan.memory[ipu]})
    return rows
