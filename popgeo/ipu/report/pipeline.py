"""The report of a step over several IPUs."""

from dataclasses import dataclass
from functools import cached_property
from inspect import getdoc
from typing import TYPE_CHECKING

from popgeo.ipu.report.chrome_trace import trace_of_stages
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.html_page import summary
from popgeo.ipu.report.insights import Insight, insights
from popgeo.ipu.report.pages import page_of_stages
from popgeo.ipu.report.pipeline_figures import PipelineFigures
from popgeo.ipu.report.stage_insights import stage_insights
from popgeo.ipu.report.tables import COLUMNS_OF_STAGES
from popgeo.ipu.report.text import headline, text_of_stages

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True, repr=False)
class Pipeline(PipelineFigures):
    # The fields are explained next to their definition, and shown in this class too.
    __doc__ = f"""The account of a step over several IPUs; `print` it. It has what a report of one IPU has, too.

{getdoc(PipelineFigures)}

{getdoc(Figures)}
"""

    COLUMNS = COLUMNS_OF_STAGES
    VERSION = ("popgeo.ipu.pipeline", 2)
    LEFT_OUT = ("again",)
    DERIVED = (
        "cycles", "seconds", "micro_batches_per_second", "bubble", "bottleneck", "num_ipus", "fits", "families",
        "table_of_stages", "table_of_ipus", "error_budget",
    )  # fmt: skip

    @cached_property
    def insights(self) -> tuple[Insight, ...]:
        """What stands out: of the stages, each with a remedy that was planned before it is named, see its `change`;
        then of their operations."""
        if self.insights_found is not None:
            return self.insights_found
        return *stage_insights(self), *insights(self)

    _page = page_of_stages
    _trace = trace_of_stages
    __str__ = text_of_stages

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draws the timeline of all IPUs; a long step without its middle.

        Args:
            ax: Where to draw; a figure of its own when left out.

        Returns:
            The Axes; `plan.plot().figure` is what a notebook shows.
        """
        from popgeo.plots.pipelines import pipeline_timeline  # only here, since figures take a second to import

        return pipeline_timeline(self.to_frame("spans"), clock=self.target.clock, between=self.windows, ax=ax)

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
            self.COLUMNS["stages"],
            self.table_of_stages,
            self.insights,
        )
