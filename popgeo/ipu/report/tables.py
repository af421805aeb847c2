"""The tables of a report: meaning and unit of each column, and rows as pandas frames."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from popgeo.ipu.report.cost_rows import Row


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of a table.

    Attributes:
        name: Name of the column.
        unit: Unit of its numbers; empty for words, positions and truth values.
        about: Meaning of the column.
        heading: Heading in pages. Default: the name.
    """

    name: str
    unit: str
    about: str
    heading: str = ""


def rows_of(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file in this folder."""
    with Path(__file__).with_name(name).open(newline="", encoding="utf-8") as rows:
        return list(csv.DictReader(rows))


_MEANINGS = {row["name"]: row for row in rows_of("columns.csv")}


def _column(table: str, name: str) -> TableColumn:
    """Return a column with its meaning in this table, or else its meaning in all tables."""
    found = _MEANINGS.get(f"{table}.{name}") or _MEANINGS[name]
    return TableColumn(name=name, unit=found["unit"], about=found["about"], heading=found["heading"])


def _columns_of(report: str) -> dict[str, tuple[TableColumn, ...]]:
    """Return the columns of each table of a report of a `step` or of `stages`, in order."""
    its = {row["table"]: row["columns"].split() for row in rows_of("tables.csv") if row["report"] in (report, "both")}
    return {table: tuple(_column(table, name) for name in names) for table, names in its.items()}


COLUMNS = _columns_of("step")
"""The columns of each table of a report, in order."""
COLUMNS_OF_STAGES = _columns_of("stages")
"""The columns of each table of a step in stages, in order."""


def frame(columns: Sequence[TableColumn], rows: Iterable[Row]) -> pd.DataFrame:
    """Return rows as a frame; its `attrs` contain the `units` of the columns and their meaning, `about`."""
    table = pd.DataFrame(list(rows), columns=[column.name for column in columns])
    table.attrs["units"] = {column.name: column.unit for column in columns}
    table.attrs["about"] = {column.name: column.about for column in columns}
    return table
