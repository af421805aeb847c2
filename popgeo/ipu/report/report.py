"""The account of a compiled step, with every form that it is shown in."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import getdoc
from os import PathLike
from pathlib import Path

import pandas as pd

from popgeo.ipu.report.add import add
from popgeo.ipu.report.chrome_trace import chrome_trace
from popgeo.ipu.report.compare import Comparison
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.html import page, summary
from popgeo.ipu.report.insights import Insight, insights
from popgeo.ipu.report.json_format import dumps, loads
from popgeo.ipu.report.tables import frame
from popgeo.ipu.report.text import text


@dataclass(frozen=True, kw_only=True)
class Report(Figures):
    # What the fields mean is written where they stand, and shown where users look.
    __doc__ = f"""The account of one compiled step; `print` it. Reports of the same target add up with `+`.

{getdoc(Figures)}
"""

    @property
    def insights(self) -> tuple[Insight, ...]:
        """What stands out, and what to do about it; what costs most comes first."""
        return insights(self)

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

    def to_frame(self, rows: str = "ops") -> pd.DataFrame:
        """The figures as a table; its `attrs` have the `units` of the columns, and what they are `about`.

        Args:
            rows: One row for each of `ops`, `supersteps`, `modules`, `blocks`, `families` or `insights`.

        Raises:
            ValueError: another kind of rows.

        Example:
            >>> import torch
            >>> from popgeo import ipu
            >>> table = ipu.compile(torch.exp, [torch.ones(100)]).report.to_frame("families")
            >>> table["flops"].sum(), table.attrs["units"]["flops"]
            (np.int64(100), 'FLOP')
        """
        return frame(self, rows)

    def compare(self, other: "Report") -> Comparison:
        """What changes from this report to another; `print` it, or take its `to_frame`.

        Args:
            other: The report of the same work after a change, or on another target.
        """
        return Comparison(before=self, after=other)

    def to_json(self) -> str:
        """All of it as JSON, with the version of the format."""
        return dumps(self)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """The report that `to_json` wrote.

        Raises:
            ValueError: the text is no such report, or has another version.
        """
        return cls(**loads(text))

    def to_html(self, path: str | PathLike[str] | None = None, title: str = "") -> str:
        """One page to look at, without anything from the network: tables, timeline, memory, flame view, insights.

        Args:
            path: Where to write it; it is only returned when left out.
            title: What the page is called.
        """
        return written(page(self, title), path)

    def to_chrome_trace(self, path: str | PathLike[str] | None = None) -> str:
        """JSON for chrome://tracing or ui.perfetto.dev: compute, exchange and sync of each block of the model.

        Args:
            path: Where to write it; it is only returned when left out.
        """
        return written(chrome_trace(self), path)

    def __repr__(self) -> str:
        return (
            f"Report({self.target.name}: {self.total_cycles:,} cycles, {self.microseconds:,.1f} us, "
            f"{len(self.costs):,} operations, {self.profile.value})"
        )

    def _repr_html_(self) -> str:
        return summary(self)

    def __add__(self, other: "Report") -> "Report":
        return add(self, other)

    def __str__(self) -> str:
        return text(self)


def written(content: str, path: str | PathLike[str] | None) -> str:
    """The content, which is written where a path is given; folders on the way to it are made."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content, encoding="utf-8")
    return content
