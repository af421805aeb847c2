"""The report of a step on one IPU, or on one IPU's share of shards."""

from dataclasses import dataclass
from inspect import getdoc

from popgeo.ipu.cost.plan import Activity
from popgeo.ipu.report.account import Account
from popgeo.ipu.report.add import add
from popgeo.ipu.report.chrome_trace import chrome_trace
from popgeo.ipu.report.cost_rows import block_names
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.html_page import summary
from popgeo.ipu.report.insights import OF_ONE_IPU, Insight, insights
from popgeo.ipu.report.step_page import page
from popgeo.ipu.report.text import text
from popgeo.ipu.tiles.memory_use import MemoryUse

_SHOWN_IN_A_TRACE = ("op", "module", "phase", "balance", "tiles", "workers", "bytes_in", "bytes_out", "bytes_total")


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Account):
    # What the fields mean is written where they stand, and shown where users look.
    __doc__ = f"""The account of one compiled step; `print` it. Reports of the same target add up with `+`.

{getdoc(Figures)}
"""
    memory: MemoryUse | None = None

    VERSION = ("popgeo.ipu.report", 1)
    DERIVED = ("families", "total_cycles", "microseconds")

    @property
    def insights(self) -> tuple[Insight, ...]:
        return insights(self, OF_ONE_IPU)

    def _page(self, title: str) -> str:
        return page(self, title)

    def _trace(self) -> str:
        """A process for each block of the model, with a track for each activity; of one micro-batch and its update."""
        steps = self.rows.supersteps
        names = block_names([step["module"] for step in steps])
        used = {(name, step["activity"]) for step, name in zip(steps, names, strict=True)}
        blocks = list(dict.fromkeys(names))
        tracks = [activity.value for activity in Activity]
        events = [
            {
                "name": f"{step['op']}: {step['step']}",
                "cat": f"{step['activity']},{step['phase']}",
                "pid": blocks.index(name),
                "tid": tracks.index(step["activity"]),
                "start": step["start"],
                "length": step["length"],
                "args": {key: step[key] for key in _SHOWN_IN_A_TRACE},
            }
            for step, name in zip(steps, names, strict=True)
        ]
        lanes = [(name, {n: a for n, a in enumerate(tracks) if (name, a) in used}) for name in blocks]
        return chrome_trace(lanes, events, self.target, profile=self.profile.value)

    def __repr__(self) -> str:
        return (
            f"Report({self.target.name}: {self.total_cycles:,} cycles, {self.microseconds:,.1f} us, "
            f"{len(self.costs):,} operations, {self.profile.value})"
        )

    def _repr_html_(self) -> str:
        columns = ["family", "ops", "cycles", "share", "compute", "exchange", "sync", "validated"]
        rows = [row for row in self.rows.families if row["cycles"] and row["family"] != "host"]
        speed = f", {self.graphs_per_second:,.0f} graphs/s" if self.graphs_per_second else ""
        shown = [column for column in self.COLUMNS["families"] if column.name in columns]
        return summary(
            f"{self.target.name}: {self.total_cycles:,} cycles, {self.microseconds:,.1f} µs{speed}",
            f" ({self.profile.value})",
            shown,
            rows,
            self.insights,
        )

    def __add__(self, other: "Report") -> "Report":
        return add(self, other)

    def __str__(self) -> str:
        return text(self)
