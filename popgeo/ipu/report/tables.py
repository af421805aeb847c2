"""The tables of a report: what each column means and in which unit, and rows as frames of pandas."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


# The unit and the meaning of a name wherever it stands; "table.name" where it means something else in that table.
_MEANINGS = {
    "index": ("", "place in Report.costs"),
    "op_index": ("", "place in Report.costs"),
    "op": ("", "name of the operation"),
    "target": ("", "whole name of the operation in torch"),
    "family": ("", "kind of work, such as gather or matmul"),
    "phase": ("", "forward, backward or update; accumulate adds up gradients, host moves data in and out"),
    "module": ("", "module that asked for it; (optimizer) or (host) where none did"),
    "modules.module": ("", "dotted name; (model) is the whole step"),
    "blocks.module": ("", "block of the model; (model) is what lies in none, (optimizer) the update"),
    "step": ("", "what the superstep does"),
    "activity": ("", "compute, exchange, sync or host"),
    "count": ("runs", "how often one step runs it: once a micro-batch, or once an update"),
    "ops": ("operations", "how many one step runs"),
    "cycles": ("cycles", "all runs of one step together, by the profile of the report"),
    "share": ("0 to 1", "part of the step's cycles; the host runs beside them and has none"),
    "compute": ("cycles", "spent on work, by the slowest tile"),
    "exchange": ("cycles", "spent on moving data between tiles"),
    "sync": ("cycles", "spent on starting and finishing, as measurements show"),
    "host": ("cycles", "spent on transfers from and to the host, beside all others"),
    "fixed": ("cycles", "spent on synchronisation and on starting compute sets; smaller tensors do not save it"),
    "ideal": ("cycles", "all runs of one step together, by the formulas alone"),
    "calibrated": ("cycles", "all runs of one step together, with constants fitted to published measurements"),
    "start": ("cycles", "from the start of one micro-batch and its update"),
    "length": ("cycles", "one run, by the profile of the report"),
    "supersteps.ideal": ("cycles", "one run, by the formulas alone"),
    "supersteps.calibrated": ("cycles", "one run, with constants fitted to published measurements"),
    "own": ("cycles", "without submodules"),
    "forward": ("cycles", "in the forward pass"),
    "backward": ("cycles", "in the backward pass"),
    "update": ("cycles", "in the update, and in adding up gradients for it"),
    "balance": ("0 to 1", "work of the mean tile over that of the slowest"),
    "tiles": ("tiles", "at work; in the compute step that has most"),
    "supersteps.tiles": ("tiles", "at work"),
    "workers": ("workers", "at work on a tile, on average; in the superstep that has most"),
    "supersteps.workers": ("workers", "at work on a tile, on average"),
    "traffic": ("B", "received by all tiles together, in all runs of one step"),
    "bytes_in": ("B", "most that any tile receives in one run"),
    "bytes_out": ("B", "most that any tile sends in one run"),
    "bytes_total": ("B", "received by all tiles together in one run"),
    "fragments": ("pieces", "most that any tile receives in one run"),
    "temporary_bytes": ("B", "most of any tile while it runs, beyond arguments and results"),
    "flops": ("FLOP", "all runs of one step together; a multiply-accumulate is two"),
    "split": ("", "the plan: into how many parts each dimension is cut"),
    "considered": ("plans", "how many were compared"),
    "shapes": ("", "shapes of its tensors, arguments first"),
    "validated": ("0 to 1", "part of the cycles whose formula was checked on published measurements at such sizes"),
    "trust": (
        "",
        "how far the formula was checked on measurements: validated, extrapolated to other sizes, or estimate",
    ),
    "known": ("", "False where no rule knows the operation and a careful one stood in"),
    "why": ("", "reason for an estimate or an extrapolation"),
    "source": ("", "line of the model that asked for it"),
    "title": ("", "what stands out"),
    "text": ("", "what was found, with figures"),
    "remedy": ("", "what to do about it"),
    "insights.share": (
        "0 to 1",
        "part of the step's cycles that it is about, or that its remedy saves; 0 where it is not about cycles",
    ),
    "insights.ops": ("", "places in Report.costs of the operations that it is about"),
    "fatal": ("", "True where the machine could not run the step as it is"),
}
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


def columns_of(names: Mapping[str, str], meanings: Mapping[str, tuple[str, str]]) -> dict[str, tuple[TableColumn, ...]]:
    """The columns of some tables, in order.

    Args:
        names: The names of each table's columns, with spaces between them.
        meanings: Unit and meaning of a name; that of `table.name` where it means something else in a table.
    """

    def column(table: str, name: str) -> TableColumn:
        unit, about = meanings.get(f"{table}.{name}") or meanings[name]
        return TableColumn(name=name, unit=unit, about=about)

    return {table: tuple(column(table, name) for name in its.split()) for table, its in names.items()}


COLUMNS = columns_of(_NAMES, _MEANINGS)
"""The columns of each table of a report, in order."""


def frame(columns: Sequence[TableColumn], rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a frame; `attrs` has the `units` of the columns, and what they are `about`."""
    table = pd.DataFrame(list(rows), columns=[column.name for column in columns])
    table.attrs["units"] = {column.name: column.unit for column in columns}
    table.attrs["about"] = {column.name: column.about for column in columns}
    return table
