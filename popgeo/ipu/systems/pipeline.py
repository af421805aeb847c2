"""The account of a step over several IPUs, with every form that it is shown in."""

from dataclasses import dataclass
from functools import cached_property
from inspect import getdoc
from os import PathLike
from typing import TYPE_CHECKING

import pandas as pd

from popgeo.ipu.report.insights import Insight
from popgeo.ipu.report.report import written
from popgeo.ipu.systems.pipeline_figures import PipelineFigures
from popgeo.ipu.systems.pipeline_insights import insights
from popgeo.ipu.systems.pipeline_json import dumps, loads
from popgeo.ipu.systems.pipeline_page import page, summary
from popgeo.ipu.systems.pipeline_spans import windows
from popgeo.ipu.systems.pipeline_tables import frame
from popgeo.ipu.systems.pipeline_text import text
from popgeo.ipu.systems.pipeline_trace import chrome_trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True, repr=False)
class Pipeline(PipelineFigures):
    # What the fields mean is written where they stand, and shown where users look.
    __doc__ = f"""The account of a step over several IPUs; `print` it.

{getdoc(PipelineFigures)}
"""

    @cached_property
    def insights(self) -> tuple[Insight, ...]:
        """What stands out, each with a remedy that was planned before it is named; see its `change`."""
        return insights(self)

    def to_frame(self, rows: str = "stages") -> pd.DataFrame:
        """The figures as a table; its `attrs` have the `units` of the columns, and what they are `about`.

        Args:
            rows: One row for each of `stages` (cycles of one micro-batch), `ipus` (cycles of a step; memory), `spans`
                (what an IPU does when), `transfers` (what IPUs send each other) or `insights`.

        Raises:
            ValueError: another kind of rows.

        Example:
            >>> import torch
            >>> from popgeo import ipu
            >>> layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
            >>> plan = ipu.pipeline(layers, [torch.ones(16, 64)], ipu.Options(device_iterations=12), stages=2)
            >>> table = plan.to_frame("ipus")
            >>> bool(table["wait"].sum() / (2 * plan.cycles) - plan.bubble < 1e-9), table.attrs["units"]["wait"]
            (True, 'cycles')
        """
        return frame(self, rows, self.insights if rows == "insights" else ())

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """All of it as JSON, with the version of the format.

        Args:
            path: Where to write it; it is only returned when left out.
        """
        return written(dumps(self), path)

    @classmethod
    def from_json(cls, text: str) -> "Pipeline":
        """The plan that `to_json` wrote; it keeps what stood out, but cannot `replan`.

        Raises:
            ValueError: the text is no such plan, or has another version.
        """
        return cls(**loads(text))

    def to_html(self, path: str | PathLike[str] | None = None, title: str = "") -> str:
        """One page to look at, without anything from the network: timeline, cycles and memory by IPU, stages, insights.

        Args:
            path: Where to write it; it is only returned when left out.
            title: What the page is called.
        """
        return written(page(self, self.insights, title), path)

    def to_chrome_trace(self, path: str | PathLike[str] | None = None) -> str:
        """The timeline as JSON for chrome://tracing and ui.perfetto.dev: a process for each IPU.

        Args:
            path: Where to write it; it is only returned when left out.
        """
        return written(chrome_trace(self), path)

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
        return summary(self, self.insights)

    def __str__(self) -> str:
        return text(self, self.insights)
