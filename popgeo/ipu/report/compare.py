"""What changes from one report to another."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pandas as pd

from popgeo.ipu.report.cost_rows import Row
from popgeo.ipu.report.figures import Figures

KEYS = {"families": ("family",), "blocks": ("module",), "ops": ("op", "module", "phase", "shapes", "occurrence")}


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
        """How many times faster the second is, each on its own clock; infinite where it takes no time any more."""
        before, after = self.before.microseconds, self.after.microseconds
        return before / after if after else math.inf if before else 1.0

    def to_frame(self, rows: str = "families") -> pd.DataFrame:
        """Cycles before and after, the largest difference first.

        Args:
            rows: One row for each of `families`, `blocks` or `ops`. Operations are matched by what they are, where they
                stand in the model and their shapes.

        Raises:
            ValueError: another kind of rows.
        """
        if rows not in KEYS:
            raise ValueError(f"No rows of {rows!r}; a comparison has {', '.join(KEYS)}.")
        keys = list(KEYS[rows])
        tables = [pd.DataFrame(_rows(report, rows), columns=[*keys, "cycles"]) for report in (self.before, self.after)]
        both = tables[0].merge(tables[1], how="outer", on=keys, suffixes=("_before", "_after"))
        both = both.rename(columns={"cycles_before": "before", "cycles_after": "after"}).fillna(
            {"before": 0.0, "after": 0.0}
        )
        both["difference"] = both["after"] - both["before"]
        order = both["difference"].abs().sort_values(ascending=False, kind="stable").index
        return both.loc[order].reset_index(drop=True)

    def __str__(self) -> str:
        a, b = self.before, self.after
        lines = [
            f"{a.target.name}: {a.total_cycles:,} cycles, {a.microseconds:,.1f} us  ->  {b.target.name}: "
            f"{b.total_cycles:,} cycles, {b.microseconds:,.1f} us  ({self.speedup:.2f}x as fast)",
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


def _rows(report: Figures, kind: str) -> list[Row]:
    if kind != "ops":
        return [*getattr(report.rows, kind)]
    rows, seen = list[Row](), Counter[tuple[str, ...]]()
    for row in report.rows.ops:
        key = (row["op"], row["module"], row["phase"], row["shapes"])
        rows.append({**row, "occurrence": seen[key]})
        seen[key] += 1
    return rows


def _line(name: str, row: dict[Any, Any]) -> str:
    name = name if len(name) <= 37 else "…" + name[-36:]
    return f"  {name:<38}{row['before']:>14,.0f}{row['after']:>14,.0f}{row['difference']:>+14,.0f}"
