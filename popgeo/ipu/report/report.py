"""The two reports: `Report` for a step on one IPU or one shard, `Pipeline` for a step over several IPUs in stages."""

from dataclasses import dataclass, replace
from functools import cached_property
from inspect import getdoc
from typing import TYPE_CHECKING

from popgeo.ipu.report.chrome_trace import trace_of_stages, trace_of_step
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.html_page import summary
from popgeo.ipu.report.insights import Insight, insights
from popgeo.ipu.report.pages import page, page_of_stages
from popgeo.ipu.report.pipeline_figures import PipelineFigures
from popgeo.ipu.report.stage_insights import stage_insights
from popgeo.ipu.report.tables import COLUMNS_OF_STAGES
from popgeo.ipu.report.text import headline, text, text_of_stages
from popgeo.ipu.tiles.memory_use import MemoryUse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SUMS = (
    "costs", "micro_batches", "captured_ops", "state_bytes", "buffer_bytes", "compile_seconds", "calls", "steps",
    "run_seconds",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Figures):
    """The report of one compiled step; `print` shows it. Reports of the same target add up with `+`."""

    memory: MemoryUse | None = None

    VERSION = ("popgeo.ipu.report", 1)
    DERIVED = ("families", "total_cycles", "microseconds", "error_budget")

    _page = page
    _trace = trace_of_step
    __str__ = text

    def __repr__(self) -> str:
        return (
            f"Report({self.target.name}: {self.total_cycles:,} cycles, {self.microseconds:,.1f} µs, "
            f"{len(self.costs):,} operations, {self.profile.value})"
        )

    def _repr_html_(self) -> str:
        columns = ["family", "ops", "cycles", "share", "compute", "exchange", "sync", "validated"]
        rows = [row for row in self.rows.families if row["cycles"] and row["family"] != "host"]
        speed = f", {self.graphs_per_second:,.0f} graphs/s" if self.graphs_per_second else ""
        bold = f"{self.target.name}: {self.total_cycles:,} cycles, {self.microseconds:,.1f} µs{speed}"
        shown = [column for column in self.COLUMNS["families"] if column.name in columns]
        return summary(bold, f" ({self.profile.value})", shown, rows, self.insights)

    def __add__(self, other: "Report") -> "Report":
        """Return the cost of both steps together, with the memory of the step with the fuller tile.

        Raises:
            ValueError: the reports have different targets, numbers of replicas or shards, or profiles.
        """
        machines = [(r.target, r.profile, r.replicas, r.shards) for r in (self, other)]
        if machines[0] != machines[1]:
            named = [f"{r.machines} ({r.profile.value}, {r.replicas} replicas)" for r in (self, other)]
            raise ValueError(
                f"Reports add up on one target and profile, not {named[0]} and {named[1]}; compile both for the same."
            )
        uses = [use for use in (self.tile_memory, other.tile_memory) if use is not None]
        captured = {self.update_captured, other.update_captured} - {None}
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMS},
            memory=max(uses, key=lambda use: int(use.peak.max(initial=0)), default=None),
            update_captured=all(captured) if captured else None,
            graphs_per_micro_batch=_graphs(self, other),
            real_of_slots={**self.real_of_slots, **other.real_of_slots},
        )


def _graphs(first: Figures, second: Figures) -> float | None:
    """Return the mean over the micro-batches of both reports."""
    a, b = first.graphs_per_micro_batch, second.graphs_per_micro_batch
    if a is None or b is None:
        return None
    return (a * first.micro_batches + b * second.micro_batches) / (first.micro_batches + second.micro_batches)


@dataclass(frozen=True, kw_only=True, repr=False)
class Pipeline(PipelineFigures):
    """The report of a step over several IPUs; `print` shows it. It also has all fields of a `Report`."""

    COLUMNS = COLUMNS_OF_STAGES
    VERSION = ("popgeo.ipu.pipeline", 2)
    DERIVED = (
        "cycles", "seconds", "micro_batches_per_second", "bubble", "bottleneck", "num_ipus", "fits", "families",
        "table_of_stages", "table_of_ipus", "error_budget",
    )  # fmt: skip

    @cached_property
    def insights(self) -> tuple[Insight, ...]:
        """The insights about the stages, each with a planned remedy (its `change`), and about their operations."""
        if self.insights_found is not None:
            return self.insights_found
        return *stage_insights(self), *insights(self.rows, self.tile_memory, self.real_of_slots)

    _page = page_of_stages
    _trace = trace_of_stages
    __str__ = text_of_stages

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the timeline of all IPUs, and leave out the middle of a long step.

        Args:
            ax: Axes to draw on. Default: a new figure.

        Returns:
            The Axes; a notebook shows `plan.plot().figure`.
        """
        from popgeo.plots.pipelines import pipeline_timeline  # here, because importing matplotlib takes a second

        return pipeline_timeline(self.to_frame("spans"), clock=self.target.clock, between=self.windows, ax=ax)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.stages)} stages on {self.num_ipus} x {self.target.name}, "
            f"{self.micro_batches:,} micro-batches in {self.cycles:,.0f} cycles, bubble {self.bubble:.1%})"
        )

    def _repr_html_(self) -> str:
        speed = f"{1e3 * self.seconds:,.3f} ms, {self.micro_batches_per_second:,.1f} micro-batches/s"
        bold = f"{headline(self)}: {self.cycles:,.0f} cycles, {speed}"
        rest = f"; IPUs wait {self.bubble:.1%} of the time"
        return summary(bold, rest, self.COLUMNS["stages"], self.table_of_stages, self.insights)


# `help` shows no attributes of base classes.
Report.__doc__ = f"{Report.__doc__}\n\n{getdoc(Figures)}\n"
Pipeline.__doc__ = f"{Pipeline.__doc__}\n\n{getdoc(PipelineFigures)}\n\n{getdoc(Figures)}\n"
