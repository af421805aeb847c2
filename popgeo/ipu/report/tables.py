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
_INSIGHTS = "title text remedy share ops fatal"
_NAMES = {
    "ops": f"index op family phase module cycles share count {_ACTIVITIES} fixed ideal calibrated balance tiles "
    "workers traffic flops temporary_bytes split considered shapes trust known why source target",
    "supersteps": "op_index op module phase step activity start length cycles ideal calibrated balance tiles workers "
    "bytes_in bytes_out bytes_total fragments",
    "modules": "module cycles share own ops forward backward update",
    "blocks": f"module {_GROUPED}",
    "families": f"family {_GROUPED}",
    "insights": _INSIGHTS,
}
_NAMES_OF_STAGES = {
    "stages": "stage ipu layers forward backward receive other received_bytes weight_bytes stash_bytes in_flight "
    "memory busy",
    "ipus": "ipu stages forward backward receive host streaming update wait weights optimizer stashes working memory",
    "spans": "kind ipu stage micro_batch start end",
    "transfers": "sender receiver backward nbytes cycles",
    **_NAMES,
    "insights": f"{_INSIGHTS} change",
}


def _columns_of(names: Mapping[str, str]) -> dict[str, tuple[TableColumn, ...]]:
    """The columns of some tables, in order, with the units and meanings that the file next to this one has.

    The file calls a column by its name, or by `table.name` if it means something else in that table.
    """
    with Path(__file__).with_name("columns.csv").open(newline="") as rows:
        meanings = {row["name"]: row for row in csv.DictReader(rows)}

    def column(table: str, name: str) -> TableColumn:
        found = meanings.get(f"{table}.{name}") or meanings[name]
        return TableColumn(name=name, unit=found["unit"], about=found["about"])

    return {table: tuple(column(table, name) for name in its.split()) for table, its in names.items()}


COLUMNS = _columns_of(_NAMES)
"""The columns of each table of a report, in order."""
COLUMNS_OF_STAGES = _columns_of(_NAMES_OF_STAGES)
"""The columns of each table of a step in stages, in order."""


def frame(columns: Sequence[TableColumn], rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a frame; `attrs` has the `units` of the columns, and what they are `about`."""
    table = pd.DataFrame(list(rows), columns=[column.name for column in columns])
    table.attrs["units"] = {column.name: column.unit for column in columns}
    table.attrs["about"] = {column.name: column.about for column in columns}
    return table
