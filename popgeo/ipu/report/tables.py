"""The tables of a report: what each column means and in which unit, and rows as frames of pandas."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from popgeo.ipu.report.cost_rows import Row


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: What the table calls it.
        unit: What its numbers count; empty for words, places and truth values.
        about: What it means.
    """

    name: str
    unit: str
    about: str


_ACTIVITIES = "compute exchange sync host"
_GROUPED = f"ops cycles share {_ACTIVITIES} fixed ideal calibrated traffic flops balance validated trust"
_NAMES = {
    "ops": f"index op family phase module cycles share count {_ACTIVITIES} fixed ideal calibrated balance tiles "
    "workers traffic flops temporary_bytes split considered shapes trust known why source target",
    "supersteps": "op_index op module phase step activity start length cycles ideal calibrated balance tiles workers "
    "bytes_in bytes_out bytes_total fragments",
    "modules": "module cycles share own ops forward backward update",
    "blocks": f"module {_GROUPED}",
    "families": f"family {_GROUPED}",
    "insights": "title text remedy share ops fatal",
}


def columns_of(names: Mapping[str, str], file: Path) -> dict[str, tuple[TableColumn, ...]]:
    """The columns of some tables, in order.

    Args:
        names: The names of each table's columns, with spaces between them.
        file: Has the unit and the meaning of each name, wherever it stands; those of `table.name` if it means
            something else in that table.
    """
    with file.open(newline="") as rows:
        meanings = {row["name"]: row for row in csv.DictReader(rows)}

    def column(table: str, name: str) -> TableColumn:
        found = meanings.get(f"{table}.{name}") or meanings[name]
        return TableColumn(name=name, unit=found["unit"], about=found["about"])

    return {table: tuple(column(table, name) for name in its.split()) for table, its in names.items()}


COLUMNS = columns_of(_NAMES, Path(__file__).with_name("columns.csv"))
"""The columns of each table of a report, in order."""


def frame(columns: Sequence[TableColumn], rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a frame; `attrs` has the `units` of the columns, and what they are `about`."""
    table = pd.DataFrame(list(rows), columns=[column.name for column in columns])
    table.attrs["units"] = {column.name: column.unit for column in columns}
    table.attrs["about"] = {column.name: column.about for column in columns}
    return table
