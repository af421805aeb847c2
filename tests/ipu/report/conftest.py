"""The report that the tests share."""

import pytest

from popgeo import ipu
from tests.support.small_models import training_report


@pytest.fixture(scope="session")
def report() -> ipu.Report:
    """Return the report of a small training step with every phase and most families."""
    return training_report().for_batch(graphs=2, real={12: 11, 40: 30})
