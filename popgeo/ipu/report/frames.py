"""The rows of a report as tables of pandas."""

from dataclasses import asdict

import pandas as pd

from popgeo.ipu.report.insights import insights
from popgeo.ipu.report.report import Report
from popgeo.ipu.report.tables import family_rows, group_rows, module_rows, op_rows, superstep_rows

ROWS = {
    "ops": op_rows,
    "supersteps": superstep_rows,
    "modules": module_rows,
    "blocks": group_rows,
    "families": family_rows,
    "insights": lambda report: [asdict(insight) for insight in insights(report)],
}


def frame(report: Report, rows: str) -> pd.DataFrame:
    """One row for each of a kind.

    Raises:
        ValueError: no such kind.
    """
    if rows not in ROWS:
        raise ValueError(f"No rows of {rows!r}; a report has {', '.join(ROWS)}.")
    return pd.DataFrame(ROWS[rows](report))
