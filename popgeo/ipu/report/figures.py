"""The figures of one step, and every form of a report: tables, text, JSON, a page, a trace."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd

from popgeo.atomic_write import write_atomically
from popgeo.ipu.cost.plan import Activity, OpCost, Profile
from popgeo.ipu.report.cost_rows import CostRows, Row, activity_cycles, shorten_start
from popgeo.ipu.report.error_budget import ErrorBudget, error_budget
from popgeo.ipu.report.insights import Insight, insights
from popgeo.ipu.report.json_format import dumps, loads
from popgeo.ipu.report.tables import COLUMNS, TableColumn, frame
from popgeo.ipu.step_cost import Cost
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.memory_use import MemoryUse

IDLE = ("view", "host")  # families that cost the machine nothing
KEYS = {"families": ("family",), "blocks": ("module",), "ops": ("op", "module", "phase", "shapes")}

Self = TypeVar("Self", bound="Figures")


@dataclass(frozen=True, kw_only=True, repr=False)
class Figures:
    """The cost of a step on the machine, and the work of this computer for it.

    A step is the work of one update: `micro_batches` times forward and backward, and the update once. The step of a
    function or of an inference model is one run. All cycles are for one IPU, without the host. Transfers from and to
    the host run at the same time, because they are prefetched, and are reported separately.

    Attributes:
        target: The machine that the step was compiled for.
        costs: Every operation of a step with its plan, in order. Transfers of the host have the phase `host`.
        profile: Kind of cycles: fitted to published measurements, or from the formulas alone.
        micro_batches: Micro-batches of one replica in a step.
        replicas: Replicas that run the step at the same time, each on its own IPU or IPUs.
        shards: IPUs over which the sharded weights of one replica are spread. They compute at the same time, and all
            figures, memory included, are for one of them.
        memory: Memory of each tile, if it was computed.
        update_captured: Whether the optimizer's update runs as a captured graph. None without an optimizer, and before
            the first update.
        graphs_per_micro_batch: Real graphs of a micro-batch, as given to `for_batch`.
        real_of_slots: Mean number of real slots for each number of slots, as given to `for_batch`.
        captured_ops: Operations that the model called. The passes leave fewer.
        state_bytes: Bytes of parameters, gradients, optimizer state and buffers.
        buffer_bytes: Bytes on this computer for all intermediate values, allocated once.
        how_it_runs: Description of the fused calls and the number of threads on this computer.
        compile_seconds: Compile time.
        calls: Number of calls of the model.
        steps: Number of micro-batches that ran.
        run_seconds: Wall time of all calls on this computer. It does not predict the time on an IPU.
    """

    COLUMNS: ClassVar[Mapping[str, tuple[TableColumn, ...]]] = COLUMNS
    """The columns of each table. The first table is the default of `to_frame`."""
    VERSION: ClassVar[tuple[str, int]]
    """The name and the version of the JSON format."""
    DERIVED: ClassVar[tuple[str, ...]]
    """Names of derived numbers that the JSON contains for other programs."""
    _page: ClassVar[Callable[..., str]]
    """Function of the report and a title that returns an HTML page."""
    _trace: ClassVar[Callable[..., str]]
    """Function of the report that returns a trace in Chrome's format."""

    target: IpuTarget
    costs: tuple[OpCost, ...] = ()
    profile: Profile = Profile.CALIBRATED
    micro_batches: int = 1
    replicas: int = 1
    shards: int = 1
    memory: MemoryUse | tuple[float, ...] | None = None
    update_captured: bool | None = None
    graphs_per_micro_batch: float | None = None
    real_of_slots: Mapping[int, float] = field(default_factory=dict)
    captured_ops: int
    state_bytes: int
    buffer_bytes: int = 0
    compile_seconds: float = 0.0
    calls: int = 0
    steps: int = 0
    run_seconds: float = 0.0
    how_it_runs: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields. Cached rows are computed again after copying."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @cached_property
    def rows(self) -> CostRows:
        """The read-only rows of each table, computed once; `to_frame` returns tables that may be changed."""
        return CostRows(costs=self.costs, target=self.target, profile=self.profile)

    @property
    def insights(self) -> tuple[Insight, ...]:
        """The insights about this step, each with a remedy; the most expensive finding comes first."""
        return insights(self.rows, self.tile_memory, self.real_of_slots)

    @property
    def error_budget(self) -> ErrorBudget:
        """The expected error of the total: its validated part, and a lower and an upper factor for a real machine."""
        return error_budget(self.costs, self.profile)

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
        """Cycles of one step for each activity of the slowest tile."""
        return activity_cycles(self.costs, self.profile)

    @property
    def graphs_per_second(self) -> float | None:
        """Real graphs per second of all replicas; None until `for_batch` sets the graphs of a micro-batch."""
        if self.graphs_per_micro_batch is None or not self.total_cycles:
            return None
        return self.graphs_per_micro_batch * self.micro_batches * self.replicas * 1e6 / self.microseconds

    @property
    def families(self) -> dict[str, Cost]:
        """The cost of each family of operations in order of first use, without views and the host."""
        families: dict[str, Cost] = {}
        for cost in self.costs:
            if cost.family not in IDLE:
                families[cost.family] = families.get(cost.family, Cost()) + Cost.of(cost, self.profile)
        return families

    @property
    def total(self) -> Cost:
        """The cost of all families together."""
        return sum(self.families.values(), Cost())

    @property
    def tile_memory(self) -> MemoryUse | None:
        """`memory` of one IPU, tile by tile; None for several IPUs."""
        return self.memory if isinstance(self.memory, MemoryUse) else None

    @property
    def seconds_per_call(self) -> float:
        """Mean wall time of a call on this computer; 0 before the first call."""
        return self.run_seconds / self.calls if self.calls else 0.0

    @property
    def machines(self) -> str:
        """The number and the kind of IPUs that work at the same time, such as `2 x 4 x Bow`."""
        counts = [f"{count:,} x " for count in (self.replicas, self.shards) if count > 1]
        return f"{''.join(counts)}{self.target.name}"

    def for_batch(self: Self, *, graphs: float | None = None, real: Mapping[int, float] | None = None) -> Self:
        """Return the report with facts about a batch, so that it shows graphs per second and the cost of padding.

        Args:
            graphs: Mean number of real graphs in a micro-batch.
            real: Mean number of real slots for a number of slots, such as the nodes or the edges of a batch.

        Raises:
            ValueError: `real` has more real slots than slots.
        """
        graphs = self.graphs_per_micro_batch if graphs is None else graphs
        real = {**self.real_of_slots, **{int(slots): float(number) for slots, number in (real or {}).items()}}
        if bad := {slots: number for slots, number in real.items() if not 0 <= number <= slots}:
            raise ValueError(
                f"real is {bad}; pass {{slots: real slots}}. The real slots cannot be more than the slots."
            )
        return replace(self, graphs_per_micro_batch=graphs, real_of_slots=real)

    def to_frame(self, rows: str | None = None) -> pd.DataFrame:
        """Return one table of the report; its `attrs` contain `units` and `about`, the meaning of each column.

        Args:
            rows: Kind of rows: `ops`, `supersteps`, `modules`, `blocks`, `families` or `insights`. A step in stages
                also has `stages` (cycles of one micro-batch), `ipus` (cycles of a step; memory), `spans` (activity of
                each IPU over time) and `transfers` (messages between IPUs). Default: `ops`, or `stages` for stages.

        Raises:
            ValueError: the report has no such rows.

        Example:
            >>> import torch
            >>> from popgeo import ipu
            >>> table = ipu.compile(torch.exp, [torch.ones(100)]).report.to_frame("families")
            >>> table["flops"].sum(), table.attrs["units"]["flops"]
            (np.int64(100), 'FLOP')
            >>> layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
            >>> plan = ipu.pipeline(layers, [torch.ones(16, 64)], ipu.Options(device_iterations=12), stages=2)
            >>> table = plan.to_frame("ipus")
            >>> bool(table["wait"].sum() / (2 * plan.cycles) - plan.bubble < 1e-9), table.attrs["units"]["wait"]
            (True, 'cycles')
        """
        rows = rows or next(iter(self.COLUMNS))
        if rows not in self.COLUMNS:
            raise ValueError(f"No rows of {rows!r}; a {type(self).__name__.lower()} has {', '.join(self.COLUMNS)}.")
        return frame(self.COLUMNS[rows], self._table(rows))

    def _table(self, rows: str) -> Iterable[Row]:
        return map(asdict, self.insights) if rows == "insights" else getattr(self.rows, rows)

    def compare(self, other: "Figures") -> "Comparison":
        """Return the changes from this report to another; `print` it, or call its `to_frame`.

        Args:
            other: The report of the same work after a change, or on another target.
        """
        return Comparison(before=self, after=other)

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """Return the report as JSON, with the version of the format.

        Args:
            path: File to write. Default: no file.
        """
        derived = {name: getattr(self, name) for name in self.DERIVED}
        return _write(dumps(self.__getstate__() | derived, self.VERSION), path)

    @classmethod
    def from_json(cls: type[Self], text: str) -> Self:
        """Return the report that `to_json` wrote. The text need not be trusted.

        Raises:
            ValueError: the text is no such report, has another version, or contains values that cannot be shown.
        """
        given = loads(cls, cls.VERSION, text)
        try:
            report = cls(**given)
            str(report), report.to_html(), report.to_chrome_trace()
        except Exception as error:  # contradictory figures may raise any error
            raise ValueError(
                f"No {cls.__name__.lower()}: its figures contradict each other ({error!r:.200})."
            ) from error
        return report

    def to_html(self, path: str | PathLike[str] | None = None, title: str = "") -> str:
        """Return one HTML page that needs no network: timeline, memory, tables, insights.

        Args:
            path: File to write. Default: no file.
            title: Title of the page. Default: the kind of report and the target.
        """
        return _write(self._page(title), path)

    def to_chrome_trace(self, path: str | PathLike[str] | None = None) -> str:
        """Return JSON for chrome://tracing or ui.perfetto.dev: the timeline of each block of the model or each IPU.

        Args:
            path: File to write. Default: no file.
        """
        return _write(self._trace(), path)


def _write(content: str, path: str | PathLike[str] | None) -> str:
    """Write the content to a file, if a path is given, and return it. Missing folders are created."""
    if path is not None:
        write_atomically(Path(path), content.encode())
    return content


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two reports next to each other; `print` shows them.

    Attributes:
        before: The first report.
        after: The second report.
    """

    before: Figures
    after: Figures

    @property
    def speedup(self) -> float:
        """Time of the first report over time of the second, each on its own clock; infinite if the second takes 0."""
        before, after = self.before.microseconds, self.after.microseconds
        return before / after if after else math.inf if before else 1.0

    def to_frame(self, rows: str = "families") -> pd.DataFrame:
        """Return the cycles before and after, the largest difference first.

        Args:
            rows: Kind of rows: `families`, `blocks` or `ops`. Operations match if their name, module, phase and shapes
                are equal.

        Raises:
            ValueError: a comparison has no such rows.
        """
        if rows not in KEYS:
            raise ValueError(f"No rows of {rows!r}; a comparison has {', '.join(KEYS)}.")
        tables = (_cycles(report, rows, name) for name, report in vars(self).items())
        both = pd.merge(*tables, how="outer").fillna({"before": 0.0, "after": 0.0})
        both["difference"] = both["after"] - both["before"]
        return both.sort_values("difference", key=abs, ascending=False, kind="stable", ignore_index=True)

    def __str__(self) -> str:
        a, b = self.before, self.after
        lines = [
            f"{a.target.name}: {a.total_cycles:,} cycles, {a.microseconds:,.1f} µs  ->  {b.target.name}: "
            f"{b.total_cycles:,} cycles, {b.microseconds:,.1f} µs  ({self.speedup:.2f}x as fast)",
            f"{'by family':<40}{'before':>14}{'after':>14}{'difference':>14}",
        ]
        return "\n".join([*lines, *self._changed("families"), "operations that change most", *self._changed("ops")])

    def _changed(self, rows: str) -> Iterator[str]:
        """Yield a line for each of the ten largest differences."""
        table = self.to_frame(rows)
        for row in table[table["difference"].abs() >= 0.5].head(10).to_dict("records"):
            name = row["family"] if rows == "families" else f"{row['op']} {row['phase']} {row['module']}".strip()
            cycles = f"{row['before']:>14,.0f}{row['after']:>14,.0f}{row['difference']:>+14,.0f}"
            yield f"  {shorten_start(name, 37):<38}{cycles}"


def _cycles(report: Figures, rows: str, name: str) -> pd.DataFrame:
    """Return the keys and the cycles of each row, with `name` as the column of cycles.

    A number distinguishes equal operations.
    """
    keys = list(KEYS[rows])
    table = pd.DataFrame(getattr(report.rows, rows), columns=[*keys, "cycles"])
    if rows == "ops":
        table.insert(len(keys), "occurrence", table.groupby(keys).cumcount())
    return table.rename(columns={"cycles": name})
