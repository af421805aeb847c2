"""The report of a step over several IPUs."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from inspect import getdoc
from os import PathLike
from typing import TYPE_CHECKING, Any

from popgeo.ipu.report.chrome_trace import chrome_trace
from popgeo.ipu.report.cost_rows import Row
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.html_page import summary
from popgeo.ipu.report.insights import Insight, insights
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.pipeline_insights import stage_insights
from popgeo.ipu.systems.pipeline_page import page
from popgeo.ipu.systems.pipeline_text import headline, text
from popgeo.ipu.systems.stage_spans import spans, windows
from popgeo.ipu.systems.stage_tables import COLUMNS, ipus_of, stages_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True, repr=False)
class Pipeline(PipelineFigures):
    # What the fields mean is written where they stand, and shown where users look.
    __doc__ = f"""The account of a step over several IPUs; `print` it. It has what a report of one IPU has, too.

{getdoc(PipelineFigures)}

{getdoc(Figures)}
"""

    COLUMNS = COLUMNS
    VERSION = ("popgeo.ipu.pipeline", 2)
    LEFT_OUT = ("again",)
    DERIVED = (
        "cycles", "seconds", "micro_batches_per_second", "bubble", "bottleneck", "num_ipus", "fits", "families",
        "table_of_stages", "table_of_ipus",
    )  # fmt: skip

    @cached_property
    def insights(self) -> tuple[Insight, ...]:
        """What stands out: of the stages, each with a remedy that was planned before it is named, see its `change`;
        then of their operations."""
        if self.insights_found is not None:
            return self.insights_found
        return *stage_insights(self), *insights(self)

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """All of it as JSON, with what stands out, since a plan that is read again cannot be planned with changes.

        Args:
            path: Where to write it; it is only returned when left out.
        """
        known = replace(self, insights_found=self.insights)
        return super(Pipeline, known).to_json(path)

    @property
    def table_of_stages(self) -> list[dict[str, Any]]:
        """The rows of `to_frame("stages")`."""
        return stages_of(self)

    @property
    def table_of_ipus(self) -> list[dict[str, Any]]:
        """The rows of `to_frame("ipus")`."""
        return ipus_of(self)

    def _table(self, rows: str) -> Iterable[Row]:
        if rows in ("stages", "ipus"):
            return self.table_of_stages if rows == "stages" else self.table_of_ipus
        if rows == "spans":
            return map(asdict, spans(self))
        if rows == "transfers":
            return (asdict(transfer) for stage in self.stages for transfer in stage.transfers)
        return super()._table(rows)

    def _page(self, title: str) -> str:
        return page(self, title)

    def _trace(self) -> str:
        """A process for each IPU, with a track for each of its stages and one for its update."""
        last = len(self.stages)
        tracks = [{last: "update"} if cycles else dict[int, str]() for cycles in self.update]
        for number, stage in enumerate(self.stages):
            tracks[stage.ipu][number] = f"stage {number}: {stage.layers}"
        events = [
            {
                "name": span.kind if span.micro_batch is None else f"{span.kind} {span.micro_batch}",
                "cat": span.kind,
                "pid": span.ipu,
                "tid": last if span.stage is None else span.stage,
                "start": span.start,
                "length": span.end - span.start,
                "args": {"micro_batch": span.micro_batch},
            }
            for span in spans(self)
        ]
        processes = [(f"IPU {ipu}", its) for ipu, its in enumerate(tracks)]
        return chrome_trace(processes, events, self.target, schedule=self.schedule.value)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draws the timeline of all IPUs; a long step without its middle.

        Args:
            ax: Where to draw; a figure of its own when left out.

        Returns:
            The Axes; `plan.plot().figure` is what a notebook shows.
        """
        from popgeo.plots.pipelines import pipeline_timeline  # only here, since figures take a second to import

        return pipeline_timeline(self.to_frame("spans"), clock=self.target.clock, between=windows(self), ax=ax)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.stages)} stages on {self.num_ipus} x {self.target.name}, "
            f"{self.micro_batches:,} micro-batches in {self.cycles:,.0f} cycles, bubble {self.bubble:.1%})"
        )

    def _repr_html_(self) -> str:
        bold = f"{headline(self)}: {self.cycles:,.0f} cycles, {1e3 * self.seconds:,.3f} ms, "
        return summary(
            f"{bold}{self.micro_batches_per_second:,.1f} micro-batches/s",
            f"; IPUs wait {self.bubble:.1%} of the time",
            COLUMNS["stages"],
            self.table_of_stages,
            self.insights,
        )

    def __str__(self) -> str:
        return text(self)
