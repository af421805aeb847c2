"""The reported costs of small programs of every family are those of a committed table."""

import csv
from itertools import islice, zip_longest

import pytest

from tests.support import cost_results

NAMES = ("program", "machine", "inputs")


def test_every_program_costs_what_the_committed_table_says():
    with cost_results.TABLE.open(newline="") as file:
        kept = list(csv.DictReader(file))
    moved = (
        f"{found}, kept: {row}" for found, row in zip_longest(cost_results.rows(), kept) if not _is_same(found, row)
    )
    first = list(islice(moved, 3))
    assert not first, "\n".join(
        ["If this is meant, run python -m tests.support.cost_results and read what moved.", *first]
    )
    assert len(kept) <= 300


def _is_same(found: dict[str, str] | None, kept: dict[str, str] | None) -> bool:
    if found is None or kept is None:
        return False
    return all(
        value == kept[name] if name in NAMES else float(value) == pytest.approx(float(kept[name]), rel=1e-6)
        for name, value in found.items()
    )
