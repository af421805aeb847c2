"""The tables of a pipeline: a row for each stage, each IPU, or what stands out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from popgeo.ipu.report.insights import Insight
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.pipeline_spans import cycles_by_kind, spans
from popgeo.ipu.systems.schedule import most_in_flight
from popgeo.ipu.systems.stage import Stage

COLUMNS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "stages": {
        "stage": ("", "number of the stage"),
        "ipu": ("", "where it runs"),
        "layers": ("", "its first and last layer"),
        "forward": ("cycles", "forward pass of one micro-batch"),
        "backward": ("cycles", "backward pass of one micro-batch, recomputation included"),
        "receive": ("cycles", "receiving what other stages send for both passes"),
        "other": ("cycles", "host, streaming memory, putting activations aside and adding up gradients, both passes"),
        "received_bytes": ("B", "what they send for one micro-batch"),
        "weight_bytes": ("B", "parameters and buffers"),
        "stash_bytes": ("B", "kept of one micro-batch from its forward to its backward pass"),
        "in_flight": ("", "most micro-batches of which it keeps that at one time"),
        "memory": ("share", "fullest tile of its IPU, of what a tile has"),
        "busy": ("share", "of the step in which its IPU works"),
    },
    "ipus": {
        "ipu": ("", "number of the IPU, in each replica"),
        "stages": ("", "the stages that run there"),
        "forward": ("cycles", "of a step in forward passes, and putting aside what they keep"),
        "backward": ("cycles", "of a step in backward passes, with recomputation, and adding up gradients"),
        "receive": ("cycles", "of a step in which it receives from other IPUs"),
        "host": ("cycles", "of a step in which it waits for the host's inputs and results"),
        "streaming": ("cycles", "of a step in which it waits for streaming memory"),
        "update": ("cycles", "of a step in the update and the sum of gradients before it"),
        "wait": ("cycles", "of a step in which it waits for others"),
        "weights": ("share", "of the fullest tile's memory: parameters and buffers, were they even over tiles"),
        "optimizer": ("share", "of the fullest tile's memory: gradients and optimizer state"),
        "stashes": ("share", "of the fullest tile's memory: activations of the micro-batches in flight but the last"),
        "working": ("share", "of the fullest tile's memory: values of one micro-batch, code, and what is uneven"),
        "memory": ("share", "fullest tile, of what a tile has: the four together"),
    },
    "spans": {
        "kind": ("", "forward, backward, receive, host, streaming or update"),
        "ipu": ("", "where"),
        "stage": ("", "of which stage; none for the update"),
        "micro_batch": ("", "of which micro-batch; none for the update"),
        "start": ("cycles", "when it begins, from the start of the step"),
        "end": ("cycles", "when it is done"),
    },
    "transfers": {
        "sender": ("", "IPU that sends"),
        "receiver": ("", "IPU that receives"),
        "backward": ("", "whether it is gradients, for the backward pass"),
        "nbytes": ("B", "how much, for one micro-batch"),
        "cycles": ("cycles", "how long the receiver takes for it"),
    },
    "insights": {
        "title": ("", "what stands out"),
        "text": ("", "what was found, with figures"),
        "remedy": ("", "what to do about it, and what planning that way gave"),
        "share": ("share", "of the step that would be saved"),
        "change": ("", "arguments of replan that do it"),
        "fatal": ("", "whether the machine could not run the step as it is"),
    },
}
"""The columns of each table in order, each with its unit and what it is about."""


def frame(plan: PipelineFigures, rows: str, insights: Sequence[Insight] = ()) -> pd.DataFrame:
    """One row for each of a kind; `attrs` has the `units` of the columns, and what they are `about`.

    Raises:
        ValueError: no such kind.
    """
    if rows not in COLUMNS:
        raise ValueError(f"No rows of {rows!r}; a pipeline has {', '.join(COLUMNS)}.")
    if rows in ("stages", "ipus"):
        found = stages_of(plan) if rows == "stages" else ipus_of(plan)
    else:
        transfers = [transfer for stage in plan.stages for transfer in stage.transfers]
        items: dict[str, Sequence[Any]] = {"insights": insights, "spans": spans(plan), "transfers": transfers}
        found = [asdict(item) for item in items[rows]]
    table = pd.DataFrame(found, columns=list(COLUMNS[rows]))
    table.attrs["units"] = {name: unit for name, (unit, _) in COLUMNS[rows].items()}
    table.attrs["about"] = {name: about for name, (_, about) in COLUMNS[rows].items()}
    return table


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
            "in_flight": most_in_flight(plan.tasks, number, plan.trains),
            "memory": plan.memory[stage.ipu],
            "busy": plan.busy[stage.ipu] / plan.cycles,
        }
        for number, stage in enumerate(plan.stages)
    ]


def _computes_and_receives(stage: Stage) -> float:
    return stage.forward + stage.backward + stage.receive_forward + stage.receive_backward


def ipus_of(plan: PipelineFigures) -> list[dict[str, Any]]:
    """A row for each IPU of a replica."""
    rows = []
    has = plan.target.num_tiles * plan.target.memory_per_tile
    for ipu, cycles in enumerate(cycles_by_kind(plan)):
        own = [number for number, stage in enumerate(plan.stages) if stage.ipu == ipu]
        waiting = [most_in_flight(plan.tasks, number, plan.trains) - 1 for number in own]
        parts = {
            "weights": sum(plan.stages[n].weight_bytes - plan.stages[n].held_before for n in own) / has,
            "optimizer": plan.extra_bytes[ipu] / has,
            "stashes": sum(n * plan.stages[number].stash_bytes for n, number in zip(waiting, own, strict=True)) / has,
        }
        parts["working"] = max(0.0, plan.memory[ipu] - sum(parts.values()))
        rows.append({"ipu": ipu, "stages": own, **cycles, **parts, "memory": plan.memory[ipu]})
    return rows
