"""What each part of the machine model says on its own stays what it is, against a committed table."""

import pytest

from tests.support import cost_phases
from tests.support.cost_phases import Row

KEPT = cost_phases.kept()


@pytest.mark.parametrize("section", cost_phases.CALLS)
def test_every_figure_is_that_of_the_committed_table(section):
    found, kept = list(cost_phases.rows(section)), KEPT[section]
    moved = [f"{new}\n  kept: {old}" for new, old in zip(found, kept, strict=False) if not _are_the_same(new, old)]
    moved += [f"{len(found)} rows, kept: {len(kept)}"] * (len(found) != len(kept))
    assert not moved, "\n".join(
        ["If this is meant, run python -m tests.support.cost_phases and read what moved.", *moved[:3]]
    )


def test_the_table_holds_nothing_else():
    assert list(KEPT) == list(cost_phases.CALLS)


def _are_the_same(found: Row, kept: Row) -> bool:
    """Numbers may differ by what another processor rounds off."""
    new, old = " ".join(found).split(), " ".join(kept).split()
    return len(new) == len(old) and all(a == b or _are_close(a, b) for a, b in zip(new, old, strict=True))


def _are_close(a: str, b: str) -> bool:
    try:
        return float(a) == pytest.approx(float(b), rel=1e-8)
    except ValueError:
        return False
