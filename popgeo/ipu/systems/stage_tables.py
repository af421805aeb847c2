"""The tables of a step in stages: a row for each stage, each IPU, or each message; next to those of its operations."""

from pathlib import Path
from typing import Any

from popgeo.ipu.report.tables import COLUMNS as OF_OPERATIONS
from popgeo.ipu.report.tables import TableColumn, columns_of
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.stage_cost import StageCost
from popgeo.ipu.systems.stage_spans import cycles_by_kind

_NAMES = {
    "stages": "stage ipu layers forward backward receive other received_bytes weight_bytes stash_bytes in_flight "
    "memory busy",
    "ipus": "ipu stages forward backward receive host streaming update wait weights optimizer stashes working memory",
    "spans": "kind ipu stage micro_batch start end",
    "transfers": "sender receiver backward nbytes cycles",
}
_CHANGE = TableColumn(name="change", unit="", about="arguments of replan that do it")
_OF_STAGES = columns_of(_NAMES, Path(__file__).with_name("stage_columns.csv"))
COLUMNS = _OF_STAGES | OF_OPERATIONS | {"insights": (*OF_OPERATIONS["insights"], _CHANGE)}
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
