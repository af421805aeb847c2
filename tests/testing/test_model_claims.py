"""What is planted is found by the claim meant for it, and what is right passes without a false alarm."""

import os

import pytest

from popgeo.testing import check_conformance
from tests.testing.planted.right_models import GRAPHS, RIGHT
from tests.testing.planted.wrong_models import WRONG

# The others take a second of a core each, those of torch.compile many: POPGEO_ALL_PLANTED=1 tries them all.
ALL = bool(os.environ.get("POPGEO_ALL_PLANTED"))
QUICK = [name for name in RIGHT if ALL or name in ("energy and forces", "PyG's GCN", "a function")]
FOUND = [name for name in WRONG if ALL or WRONG[name].claim not in ("torch.compile", "export", "compiled step")]


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_defect_is_found_by_the_claim_meant_for_it(name: str):
    planted = WRONG[name]
    how = {key: value for key, value in planted.how.items() if key != "also"}
    report = check_conformance(planted.make(), GRAPHS, claims=[planted.claim], shrink_seconds=0, **how)
    assert report.failed == (planted.claim,), report.text()
    assert planted.source


@pytest.mark.parametrize("name", QUICK)
def test_a_model_that_is_right_raises_no_alarm(name: str):
    make, how = RIGHT[name]
    report = check_conformance(make(), GRAPHS, shrink_seconds=0, **how)
    assert report.failed == (), report.text()
