"""What is planted is found by the claim meant for it, and what is right passes without a false alarm."""

import pytest

from popgeo.testing import check_conformance
from tests.testing.planted.right_models import GRAPHS, RIGHT
from tests.testing.planted.wrong_models import WRONG


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_defect_is_found_by_the_claim_meant_for_it(name: str):
    planted = WRONG[name]
    how = {key: value for key, value in planted.how.items() if key != "also"}
    report = check_conformance(planted.make(), GRAPHS, claims=[planted.claim], shrink_seconds=0, **how)
    assert report.failed == (planted.claim,), report


@pytest.mark.parametrize("name", RIGHT)
def test_a_model_that_is_right_raises_no_alarm(name: str):
    make, how = RIGHT[name]
    report = check_conformance(make(), GRAPHS, shrink_seconds=0, **how)
    assert report.failed == (), report
