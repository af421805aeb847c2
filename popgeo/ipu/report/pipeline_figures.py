"""The figures of a step over several IPUs: its time, waiting times, and the memory of each IPU."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from popgeo.ipu.report.cost_rows import Row
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.insights import Insight
from popgeo.ipu.report.stage_cost import StageCost
from popgeo.ipu.report.timeline import Span, TimedPass, Turn, cycles_by_kind, most_in_flight, spans_of, windows_of
from popgeo.ipu.stage_choices import Schedule, Stages

Self = TypeVar("Self", bound="PipelineFigures")
# Columns of the table of stages that copy an attribute of the stage.
_AS_PLANNED = ("ipu", "layers", "forward", "backward", "received_bytes", "weight_bytes", "stash_bytes")


@dataclass(frozen=True, kw_only=True, repr=False)
class PipelineFigures(Figures):
    """A modelled step over several IPUs: all micro-batches between two updates, and the update.

    Its costs contain every operation on the IPU of its stage (a recomputed operation once) and the whole update. The
    messages between IPUs are in `stages`.

    Attributes:
        memory: Memory of the fullest tile of each IPU, as a share of a tile's memory.
        schedule: Order of the micro-batches in the stages.
        stages: Cost of each stage.
        tasks: Every pass of every micro-batch, in the order of their starts.
        update: Cycles of the update on each IPU, including the sum of gradients over replicas.
        extra_bytes: Bytes of gradients and optimizer state on each IPU.
        shared: Parameters that several IPUs need, such as tied embeddings. Each IPU holds a copy, and gradients are
            added.
        seconds_to_plan: Time that planning took.
        turns: In lock-step, the start, the end and the slowest IPU of each turn; empty for other schedules.
        update_parts: Parts of the update by name, in cycles of each IPU.
        host_seconds: Seconds per step that all IPUs wait for the host's call; the call runs several steps.
        recompute: Whether each stage keeps only its inputs and repeats its forward pass, or the names of layers with
            results that it also keeps.
        layers: Names of the layers of each stage, in order.
        plan_again: Function that plans the same captured step with other choices. None if the plan is a copy or was
            read from a file.
        insights_found: Insights of a plan that is a copy or was read from a file. None if they are computed.
    """

    memory: tuple[float, ...]
    schedule: Schedule
    stages: tuple[StageCost, ...]
    tasks: tuple[TimedPass, ...]
    update: tuple[float, ...]
    extra_bytes: tuple[int, ...]
    shared: tuple[str, ...]
    seconds_to_plan: float
    turns: tuple[Turn, ...] = ()
    update_parts: Mapping[str, tuple[float, ...]]
    host_seconds: float = 0.0
    recompute: bool | tuple[str, ...] = False
    layers: tuple[tuple[str, ...], ...] = ()
    plan_again: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    insights_found: tuple[Insight, ...] | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, with the insights in place of the function that plans again."""
        state = super().__getstate__() | {"insights_found": self.insights}
        del state["plan_again"]
        return state

    @property
    def num_ipus(self) -> int:
        """IPUs of one replica."""
        return len(self.update)

    @property
    def trains(self) -> bool:
        """Whether any stage has a backward pass."""
        return any(stage.backward for stage in self.stages)

    @property
    def cycles(self) -> float:
        """Cycles of a step: from the first micro-batch to the end of the slowest update."""
        return max(task.end for task in self.tasks) + max(self.update)

    @property
    def seconds(self) -> float:
        """Seconds of a step on the machine, without the host's call."""
        return self.cycles / self.target.clock

    @property
    def total_cycles(self) -> int:
        """`cycles`, rounded to a whole number."""
        return round(self.cycles)

    @property
    def graphs_per_second(self) -> float | None:
        """Real graphs per second of all replicas, host included; None before `for_batch`."""
        graphs = self.graphs_per_micro_batch
        return None if graphs is None else graphs * self.micro_batches_per_second

    @property
    def micro_batches_per_second(self) -> float:
        """Micro-batches per second of all replicas, host included."""
        return self.micro_batches * self.replicas / (self.seconds + self.host_seconds)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Working cycles of each IPU in a step, transfers included."""
        working = list(self.update)
        for task in self.tasks:
            working[task.ipu] += task.end - task.start
        return tuple(working)

    @property
    def bubble(self) -> float:
        """Share of a step that IPUs spend waiting for each other, over all IPUs."""
        return max(0.0, 1.0 - sum(self.busy) / (self.num_ipus * self.cycles))

    @property
    def bottleneck(self) -> int:
        """Number of the IPU that works longest."""
        return int(np.argmax(self.busy))

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Largest number of micro-batches with activations that a stage keeps, for each stage."""
        return tuple(most_in_flight(self.tasks, number, self.trains) for number in range(len(self.stages)))

    @property
    def fits(self) -> bool:
        """Whether each tile of each IPU has enough memory."""
        return max(self.memory) <= 1.0

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Activities of each IPU over time, in the order of their starts."""
        return spans_of(self.tasks, self.stages, self.update)

    @property
    def windows(self) -> list[tuple[float, float]]:
        """Parts of a step, in cycles, that show how the pipeline fills and drains."""
        return windows_of(self.tasks, self.cycles, self.schedule is Schedule.GROUPED and self.trains)

    @property
    def cycles_by_kind(self) -> list[dict[str, float]]:
        """Cycles of each kind of activity, for each IPU."""
        return cycles_by_kind(self.spans, self.num_ipus, self.cycles)

    @property
    def table_of_stages(self) -> list[dict[str, Any]]:
        """Rows of `to_frame("stages")`."""
        return [
            {
                "stage": number,
                **{name: getattr(stage, name) for name in _AS_PLANNED},
                "receive": stage.receive_forward + stage.receive_backward,
                "other": stage.forward_pass + stage.backward_pass - stage.computes_and_receives,
                "in_flight": self.in_flight[number],
                "memory": self.memory[stage.ipu],
                "busy": self.busy[stage.ipu] / self.cycles,
            }
            for number, stage in enumerate(self.stages)
        ]

    @property
    def table_of_ipus(self) -> list[dict[str, Any]]:
        """Rows of `to_frame("ipus")`."""
        rows = []
        has = self.target.num_tiles * self.target.memory_per_tile
        for ipu, cycles in enumerate(self.cycles_by_kind):
            own = [(number, stage) for number, stage in enumerate(self.stages) if stage.ipu == ipu]
            parts = {
                "weights": sum(stage.weight_bytes - stage.held_before for _, stage in own) / has,
                "optimizer": self.extra_bytes[ipu] / has,
                "stashes": sum((self.in_flight[number] - 1) * stage.stash_bytes for number, stage in own) / has,
            }
            parts["working"] = max(0.0, self.memory[ipu] - sum(parts.values()))
            numbers = [number for number, _ in own]
            rows.append({"ipu": ipu, "stages": numbers, **cycles, **parts, "memory": self.memory[ipu]})
        return rows

    def _table(self, rows: str) -> Iterable[Row]:
        if rows == "transfers":
            return (asdict(transfer) for stage in self.stages for transfer in stage.transfers)
        if rows == "spans":
            return map(asdict, self.spans)
        return getattr(self, f"table_of_{rows}", None) or super()._table(rows)

    def replan(
        self: Self,
        *,
        stages: Stages | None = None,
        schedule: Schedule | str | None = None,
        recompute: bool | Sequence[str] | None = None,
        micro_batches: int | None = None,
        replicas: int | None = None,
        optimizer_off_chip: bool | None = None,
        shard_optimizer_state: bool | None = None,
        overlap_host: bool | None = None,
        device_iterations: int | None = None,
    ) -> Self:
        """Plan the same model with other choices, without capturing it again. Omitted choices stay.

        Args:
            stages: Where to cut the model, as in `ipu.pipeline`.
            schedule: Order of the micro-batches in the stages.
            recompute: Whether stages repeat their forward pass instead of keeping its results, as in `ipu.pipeline`.
            micro_batches: Micro-batches between two updates.
            replicas: Pipelines that run at the same time.
            optimizer_off_chip: Whether the optimizer's state is in streaming memory.
            shard_optimizer_state: Whether each replica holds a part of the optimizer's state.
            overlap_host: Whether some tiles exchange with the host while the others compute.
            device_iterations: Steps per call of the host in training. In inference, use `micro_batches`.

        Raises:
            ValueError: the plan is a copy or was read from a file, so it has no model; or the choices do not fit the
                model.

        Example:
            >>> import torch
            >>> from popgeo import ipu
            >>> layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
            >>> plan = ipu.pipeline(layers, [torch.ones(16, 64)], ipu.Options(device_iterations=12), stages=4)
            >>> plan.replan(stages=2, replicas=2).layers
            (('0', '1'), ('2', '3'))
        """
        if self.plan_again is None:
            raise ValueError(
                "This plan is a copy or was read from a file, so it has no model. Call ipu.pipeline with the model."
            )
        changes = {
            "stages": stages,
            "schedule": schedule,
            "recompute": recompute,
            "replication_factor": replicas,
            "shard_optimizer_state": shard_optimizer_state,
            "optimizer_off_chip": optimizer_off_chip,
            "overlap_host": overlap_host,
            "device_iterations": device_iterations if self.trains else micro_batches,
            "gradient_accumulation": micro_batches if self.trains else None,
        }
        plan: Self = self.plan_again(**{name: value for name, value in changes.items() if value is not None})
        return plan
