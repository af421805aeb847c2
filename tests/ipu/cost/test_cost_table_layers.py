"""What layers, losses, loops and collectives cost stays what it is, case by case, against a committed table."""

import csv
import math
from itertools import islice, zip_longest

import pytest

from tests.support import cost_rows_layers as support


@pytest.fixture(scope="module")
def kept() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    with support.TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["file"], []).append(row)
    return found


@pytest.mark.parametrize("name", support.FILES)
def test_every_figure_of_every_case_is_that_of_the_committed_table(name, kept):
    moved = (
        f"{found}, kept: {row}"
        for found, row in zip_longest(support.rows(name), kept[name])
        if found is None or row is None or not all(_is_same(found[column], row[column]) for column in row)
    )
    first = list(islice(moved, 3))
    assert not first, "\n".join(
        ["If this is meant, run python -m tests.support.cost_rows_layers and read what moved.", *first]
    )


def _is_same(found: str | float, kept: str) -> bool:
    return found == kept if isinstance(found, str) else math.isclose(found, float(kept), rel_tol=1e-10)
