"""What every report can be asked for: tables, text, JSON, a page, a trace, and what stands out."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import ClassVar, TypeVar

import pandas as pd

from popgeo.ipu.report.compare import Comparison
from popgeo.ipu.report.cost_rows import Row
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.insights import Insight
from popgeo.ipu.report.json_format import dumps, loads
from popgeo.ipu.report.tables import COLUMNS, TableColumn, frame

A = TypeVar("A", bound="Account")


@dataclass(frozen=True, kw_only=True, repr=False)
class Account(Figures, ABC):
    """Figures with every form that they are shown in; a kind of report says what its forms show."""

    COLUMNS: ClassVar[Mapping[str, tuple[TableColumn, ...]]] = COLUMNS
    """The columns of its tables; the first table is the one that is shown where none is asked for."""
    VERSION: ClassVar[tuple[str, int]]
    """The name of its JSON, and the version."""
    LEFT_OUT: ClassVar[tuple[str, ...]] = ()
    """Fields that its JSON does not have."""
    DERIVED: ClassVar[tuple[str, ...]]
    """Numbers that follow from the fields and stand in the JSON, for other programs."""

    @property
    @abstractmethod
    def insights(self) -> tuple[Insight, ...]:
        """What stands out, and what to do about it; what costs most comes first."""

    @abstractmethod
    def __str__(self) -> str:
        """On one screen."""

    @abstractmethod
    def _page(self, title: str) -> str:
        """As a page."""

    @abstractmethod
    def _trace(self) -> str:
        """As a trace in Chrome's format."""

    def _table(self, rows: str) -> Iterable[Row]:
        """The rows of one of its tables."""
        return map(asdict, self.insights) if rows == "insights" else getattr(self.rows, rows)

    def for_batch(self: A, *, graphs: float | None = None, real: Mapping[int, float] | None = None) -> A:
        """The same report for what a micro-batch holds: it then knows graphs per second and the cost of padding.

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

    def to_frame(self, rows: str | None = None) -> pd.DataFrame:
        """The figures as a table; its `attrs` have the `units` of the columns, and what they are `about`.

        Args:
            rows: One row for each of `ops`, `supersteps`, `modules`, `blocks`, `families` or `insights`; of a step in
                stages also for each of `stages` (cycles of one micro-batch), `ipus` (cycles of a step; memory), `spans`
                (what an IPU does when) or `transfers` (what IPUs send each other). The first of them when left out:
                operations, or stages.

        Raises:
            ValueError: another kind of rows.

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

    def compare(self, other: Figures) -> Comparison:
        """What changes from this report to another; `print` it, or take its `to_frame`.

        Args:
            other: The report of the same work after a change, or on another target.
        """
        return Comparison(before=self, after=other)

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """All of it as JSON, with the version of the format.

        Args:
            path: Where to write it; it is only returned when left out.
        """
        return _written(dumps(self, self.VERSION, self.DERIVED, self.LEFT_OUT), path)

    @classmethod
    def from_json(cls: type[A], text: str) -> A:
        """The report that `to_json` wrote.

        Raises:
            ValueError: the text is no such report, or has another version.
        """
        return cls(**loads(cls, cls.VERSION, text))

    def to_html(self, path: str | PathLike[str] | None = None, title: str = "") -> str:
        """One page to look at, without anything from the network: timeline, memory, tables, insights.

        Args:
            path: Where to write it; it is only returned when left out.
            title: What the page is called.
        """
        return _written(self._page(title), path)

    def to_chrome_trace(self, path: str | PathLike[str] | None = None) -> str:
        """JSON for chrome://tracing or ui.perfetto.dev: what happens when, in each block of the model or on each IPU.

        Args:
            path: Where to write it; it is only returned when left out.
        """
        return _written(self._trace(), path)


def _written(content: str, path: str | PathLike[str] | None) -> str:
    """The content, which is written where a path is given; folders on the way to it are made."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content, encoding="utf-8")
    return content
