"""Every column of every table has one meaning and one unit, and the guide lists them."""

import csv
from pathlib import Path

import pytest
import torch

from popgeo import ipu
from popgeo.ipu.report import tables
from popgeo.ipu.report.tables import COLUMNS, COLUMNS_OF_STAGES, TableColumn

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "report.md"
UNITS = {"", "0 to 1", "B", "FLOP", "cycles", "operations", "pieces", "plans", "runs", "tiles", "workers"}


def test_other_tables_are_refused(report):
    with pytest.raises(ValueError, match="No rows of 'layers'; a report has ops, supersteps"):
        report.to_frame("layers")


@pytest.mark.parametrize("rows", COLUMNS)
def test_a_table_has_the_columns_that_are_written_down(report, rows):
    table = report.to_frame(rows)
    assert len(table)
    assert list(table) == [column.name for column in COLUMNS[rows]]
    if rows != "insights":
        assert {frozenset(row) for row in getattr(report.rows, rows)} == {frozenset(table)}


@pytest.mark.parametrize("rows", COLUMNS)
def test_numbers_have_a_unit_and_words_have_none(report, rows):
    table = report.to_frame(rows)
    for column in COLUMNS[rows]:
        assert column.unit in UNITS
        assert column.about
        is_counted = table[column.name].dtype.kind in "if" and column.name not in ("index", "op_index")
        assert bool(column.unit) == is_counted, column


def test_a_frame_tells_the_units_and_the_meaning_of_its_columns(report):
    table = report.to_frame("supersteps")
    assert table.attrs["units"]["bytes_in"] == "B"
    assert table.attrs["about"]["length"] == "one run, by the profile of the report"
    assert list(table.attrs["units"]) == list(table.attrs["about"]) == list(table)


def test_a_table_without_rows_has_its_columns_all_the_same():
    report = ipu.compile(lambda x: x.view(-1), [torch.ones(3, 2)]).report
    table = report.to_frame("insights")
    assert len(table) == 0
    assert list(table) == [column.name for column in COLUMNS["insights"]]


def test_a_meaning_that_no_table_uses_is_none():
    with Path(tables.__file__).with_name("columns.csv").open(newline="") as file:
        known = [row["name"] for row in csv.DictReader(file)]
    every = COLUMNS | COLUMNS_OF_STAGES
    used = {f"{rows}.{c.name}" if f"{rows}.{c.name}" in known else c.name for rows in every for c in every[rows]}
    assert sorted(used) == sorted(known)


def guide_lines() -> list[str]:
    """Return the columns as the guide shows them: one line per meaning, with its tables."""
    tables: dict[TableColumn, list[str]] = {}
    for rows, columns in COLUMNS.items():
        for column in columns:
            tables.setdefault(column, []).append(f"`{rows}`")
    lines = [f"| `{c.name}` | {', '.join(its)} | {c.unit} | {c.about} |" for c, its in tables.items()]
    return ["| column | tables | unit | what it means |", "| --- | --- | --- | --- |", *lines]


def test_the_guide_lists_every_column_as_it_is():
    shown = [line for line in GUIDE.read_text().splitlines() if line.startswith("|")]
    assert shown == guide_lines(), "put this into the guide:\n" + "\n".join(guide_lines())
