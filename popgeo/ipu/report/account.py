"""What every report can be asked for: tables, text, JSON, a page, a trace, what stands out, and what has changed."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd

from popgeo.atomic_write import write_atomically
from popgeo.ipu.report.cost_rows import Row, cut_start
from popgeo.ipu.report.error_budget import ErrorBudget, error_budget
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.insights import Insight, insights
from popgeo.ipu.report.json_format import dumps, loads
from popgeo.ipu.report.tables import COLUMNS, TableColumn, frame

KEYS = {"families": ("family",), "blocks": ("module",), "ops": ("op", "module", "phase", "shapes")}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two reports side by side; `print` it.

    Attributes:
        before: The first.
        after: The second.
    """

    before: Figures
    after: Figures

    @property
    def speedup(self) -> float:
        """How many times faster the second is, each on its own clock; infinite if it takes no time any more."""
        before, after = self.before.microseconds, self.after.microseconds
        return before / after if after else math.inf if before else 1.0

    def to_frame(self, rows: str = "families") -> pd.DataFrame:
        """Cycles before and after, the largest difference first.

        Args:
            rows: One row for each of `families`, `blocks` or `ops`. Operations are matched by what they are, where they
                are in the model and their shapes.

        Raises:
            ValueError: another kind of rows.
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
        lines += [_line(row["family"], row) for row in self._changed("families")[:10]]
        lines.append("operations that change most")
        lines += [
            _line(f"{row['op']} {row['phase']} {row['module']}".strip(), row) for row in self._changed("ops")[:10]
        ]
        return "\n".join(lines)

    def _changed(self, rows: str) -> list[dict[Any, Any]]:
        table = self.to_frame(rows)
        return table[table["difference"].abs() >= 0.5].to_dict("records")


def _cycles(report: Figures, rows: str, name: str) -> pd.DataFrame:
    """What identifies each row, and its cycles under a name; a number distinguishes operations that are alike."""
    keys = list(KEYS[rows])
    table = pd.DataFrame(getattr(report.rows, rows), columns=[*keys, "cycles"])
    if rows == "ops":
        table.insert(len(keys), "occurrence", table.groupby(keys).cumcount())
    return table.rename(columns={"cycles": name})


def _line(name: str, row: dict[Any, Any]) -> str:
    return f"  {cut_start(name, 37):<38}{row['before']:>14,.0f}{row['after']:>14,.0f}{row['difference']:>+14,.0f}"


A = TypeVar("A", bound="Account")


@dataclass(frozen=True, kw_only=True, repr=False)
class Account(Figures, ABC):
    """Figures with every form that they are shown in; a kind of report says what its forms show."""

    COLUMNS: ClassVar[Mapping[str, tuple[TableColumn, ...]]] = COLUMNS
    """The columns of its tables; the first table is the one that is shown if none is asked for."""
    VERSION: ClassVar[tuple[str, int]]
    """The name of its JSON, and the version."""
    DERIVED: ClassVar[tuple[str, ...]]
    """Numbers that follow from the fields and are in the JSON, for other programs."""

    @property
    def insights(self) -> tuple[Insight, ...]:
        """What stands out, and what to do about it; what costs most comes first."""
        return insights(self)

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

    @property
    def error_budget(self) -> ErrorBudget:
        """Which part of the total was validated, and between which factors of it the machine is expected."""
        return error_budget(self.costs, self.profile)

    def for_batch(self: A, *, graphs: float | None = None, real: Mapping[int, float] | None = None) -> A:
        """The same report for what a micro-batch holds: it then knows graphs per second and the cost of padding.

        Args:
            graphs: Real graphs of a micro-batch, on average.
            real: For a number of slots, such as the nodes or the edges of a batch, how many are real on average.

        Raises:
            ValueError: more are real than there are slots.
        """
        graphs = self.graphs_per_micro_batch if graphs is None else graphs
        real = {**self.real_of_slots, **{int(slots): float(number) for slots, number in (real or {}).items()}}
        if bad := {slots: number for slots, number in real.items() if not 0 <= number <= slots}:
            raise ValueError(
                f"real is {bad}: of that many slots that many are real; pass {{slots: real}}, real at most slots."
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
        return _written(dumps(self, self.VERSION, self.DERIVED), path)

    @classmethod
    def from_json(cls: type[A], text: str) -> A:
        """The report that `to_json` wrote; it may come from a stranger.

        Raises:
            ValueError: the text is not such a report, has another version, or says what cannot be shown.
        """
        given = loads(cls, cls.VERSION, text)
        try:
            report = cls(**given)
            str(report), report.to_html(), report.to_chrome_trace()
        except Exception as error:  # figures that contradict each other may break any of the forms
            raise ValueError(
                f"No {cls.__name__.lower()}: its figures contradict each other ({error!r:.200})."
            ) from error
        return report

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
    """The content, which is written as a whole where a path is given; folders on the way to it are made."""
    if path is not None:
        write_atomically(Path(path), content.encode())
    return content
