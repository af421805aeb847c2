"""The tables of a report: what each column means, in which unit, and the same as frames of pandas."""

from dataclasses import asdict

import pandas as pd

from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.insights import insights

ROWS = ("ops", "supersteps", "modules", "blocks", "families", "insights")


def frame(report: Figures, rows: str) -> pd.DataFrame:
    """One row for each of a kind.

    Raises:
        ValueError: no such kind.
    """
    if rows not in ROWS:
        raise ValueError(f"No rows of {rows!r}; a report has {', '.join(ROWS)}.")
    found = map(asdict, insights(report)) if rows == "insights" else getattr(report.rows, rows)
    return pd.DataFrame(list(found))
