"""The account of a compiled step: what it costs on the machine, and what this computer did for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING

from popgeo.ipu.cost.plan import Activity, OpCost, Profile
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.memory_use import MemoryUse

if TYPE_CHECKING:
    import pandas as pd

    from popgeo.ipu.report.compare import Comparison


@dataclass(frozen=True, kw_only=True)
class Family:
    """Operations of one kind.

    Attributes:
        ops: How many one step runs.
        flops: Floating-point operations, a multiply-accumulate counted as two.
        bytes: Bytes that they read and write, had each its own memory.
    """

    ops: int = 0
    flops: int = 0
    bytes: int = 0

    def __add__(self, other: "Family") -> "Family":
        return Family(ops=self.ops + other.ops, flops=self.flops + other.flops, bytes=self.bytes + other.bytes)


@dataclass(frozen=True, kw_only=True)
class Insight:
    """Something that stands out in a report.

    Attributes:
        title: What it is, in a few words.
        text: What was found, with figures.
        remedy: What to do about it.
        share: Part of the step's cycles that it is about, 0 to 1; 0 where it is not about cycles.
        ops: Which operations, by their place in `Report.costs`.
        fatal: The machine could not run the step as it is.
    """

    title: str
    text: str
    remedy: str
    share: float
    ops: tuple[int, ...] = field(default=(), repr=False)
    fatal: bool = False

    def __str__(self) -> str:
        return f"{self.title}: {self.text} {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The account of one compiled step; `print` it.

    A step is what one update needs: `micro_batches` times forward and backward, and the update once. Of a function or
    an inference model it is one run. Cycles are those of one IPU that computes; transfers from and to the host run
    beside them, as prefetching lets them, and are given apart. Reports of the same target add up with `+`.

    Attributes:
        target: The machine it was compiled for.
        costs: Every operation of a step with its plan, in order; transfers of the host come with the phase `host`.
        profile: Which cycles count: those fitted to published measurements, or those of the formulas alone.
        micro_batches: How many a replica takes in a step.
        replicas: How many run the step side by side, each on an IPU (or several) of its own.
        memory: What lies in the tiles' memory, where it was worked out.
        update_captured: Whether the optimizer's update runs as a captured graph; None where there is no optimizer, or
            no update has run yet.
        graphs_per_micro_batch: Real graphs of a micro-batch, where `for_batch` told it.
        real_of_slots: How many of so many slots are real, where `for_batch` told it.
        families: Operations of one micro-batch, forward and backward, by family, and `optimizer` for one update.
        captured_ops: Operations that the model asked for; the passes leave fewer.
        state_bytes: Parameters, gradients, optimizer state and buffers.
        buffer_bytes: Memory of this computer for all values in between, allocated once.
        compile_seconds: How long compiling took.
        calls: How often the model was called.
        steps: Micro-batches that ran.
        run_seconds: Wall time of all calls on this computer; it says nothing about an IPU.
    """

    target: IpuTarget
    costs: tuple[OpCost, ...] = ()
    profile: Profile = Profile.CALIBRATED
    micro_batches: int = 1
    replicas: int = 1
    memory: MemoryUse | None = None
    update_captured: bool | None = None
    graphs_per_micro_batch: float | None = None
    real_of_slots: Mapping[int, float] = field(default_factory=dict)
    families: Mapping[str, Family]
    captured_ops: int
    state_bytes: int
    buffer_bytes: int
    compile_seconds: float
    calls: int = 0
    steps: int = 0
    run_seconds: float = 0.0

    @property
    def total_cycles(self) -> int:
        """Cycles of one step on one IPU: compute, exchange and sync, without the host."""
        return round(sum(n for activity, n in self.cycles_by_activity.items() if activity is not Activity.HOST))

    @property
    def microseconds(self) -> float:
        """Time of one step at the target's clock."""
        return 1e6 * self.total_cycles / self.target.clock

    @property
    def cycles_by_activity(self) -> dict[Activity, float]:
        """Cycles of one step by what the slowest tile spends them on."""
        cycles = dict.fromkeys(Activity, 0.0)
        for cost in self.costs:
            for superstep in cost.plan.supersteps:
                cycles[superstep.activity] += cost.count * superstep.cycles(self.profile)
        return cycles

    @property
    def graphs_per_second(self) -> float | None:
        """Real graphs that all replicas work through per second; None until `for_batch` tells how many there are."""
        if self.graphs_per_micro_batch is None or not self.total_cycles:
            return None
        return self.graphs_per_micro_batch * self.micro_batches * self.replicas * 1e6 / self.microseconds

    @property
    def insights(self) -> tuple[Insight, ...]:
        """What stands out, and what to do about it; what costs most comes first."""
        from popgeo.ipu.report.insights import insights

        return insights(self)

    @property
    def total(self) -> Family:
        """All families together."""
        return sum(self.families.values(), Family())

    @property
    def seconds_per_call(self) -> float:
        """Mean wall time of a call on this computer; 0 before the first one."""
        return self.run_seconds / self.calls if self.calls else 0.0

    def for_batch(self, *, graphs: float | None = None, real: Mapping[int, float] | None = None) -> "Report":
        """The same report, told what a micro-batch holds; then it knows graphs per second and the cost of padding.

        Args:
            graphs: Real graphs of a micro-batch, on average.
            real: For a number of slots, such as the nodes or the edges of a batch, how many are real on average.

        Raises:
            ValueError: more are real than there are slots.
        """
        real = dict(real or {})
        if bad := {slots: number for slots, number in real.items() if not 0 <= number <= slots}:
            raise ValueError(
                f"real is {bad}: of so many slots so many are real; pass {{slots: real}}, real at most slots."
            )
        return replace(self, graphs_per_micro_batch=graphs, real_of_slots=real)

    def to_frame(self, rows: str = "ops") -> "pd.DataFrame":
        """The figures as a table.

        Args:
            rows: One row for each of `ops`, `supersteps`, `modules`, `blocks`, `families` or `insights`.

        Raises:
            ValueError: another kind of rows.
        """
        from popgeo.ipu.report.frames import frame

        return frame(self, rows)

    def compare(self, other: "Report") -> "Comparison":
        """What changes from this report to another; `print` it, or take its `to_frame`.

        Args:
            other: The report of the same work after a change, or on another target.
        """
        from popgeo.ipu.report.compare import Comparison

        return Comparison(before=self, after=other)

    def to_json(self) -> str:
        """All of it as JSON, with the version of the format."""
        from popgeo.ipu.report.json_format import dumps

        return dumps(self)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The report that `to_json` wrote.

        Raises:
            ValueError: the text is no such report, or has another version.
        """
        from popgeo.ipu.report.json_format import loads

        return loads(text)

    def to_html(self, path: str | PathLike[str] | None = None, title: str = "") -> str:
        """One page to look at, without anything from the network: tables, timeline, memory, flame view, insights.

        Args:
            path: Where to write it; it is only returned when left out.
            title: What the page is called.
        """
        from popgeo.ipu.report.html import page

        return _written(page(self, title), path)

    def to_chrome_trace(self, path: str | PathLike[str] | None = None) -> str:
        """JSON for chrome://tracing or ui.perfetto.dev: compute, exchange and sync of each block of the model.

        Args:
            path: Where to write it; it is only returned when left out.
        """
        from popgeo.ipu.report.chrome_trace import chrome_trace

        return _written(chrome_trace(self), path)

    def __repr__(self) -> str:
        return (
            f"Report({self.target.name}: {self.total_cycles:,} cycles, {self.microseconds:,.1f} us, "
            f"{len(self.costs):,} operations, {self.profile.value})"
        )

    def _repr_html_(self) -> str:
        from popgeo.ipu.report.html import summary

        return summary(self)

    def __add__(self, other: "Report") -> "Report":
        from popgeo.ipu.report.add import add

        return add(self, other)

    def __str__(self) -> str:
        from popgeo.ipu.report.text import text

        return text(self)


def _written(content: str, path: str | PathLike[str] | None) -> str:
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
    return content
