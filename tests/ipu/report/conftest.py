"""What the tests of a report look at."""

import pytest

from popgeo import ipu
from tests.support.small_models import training_report


@pytest.fixture(scope="session")
def report() -> ipu.Report:
    """The report of a small training step in which every phase and most families occur."""
    return training_report().for_batch(graphs=2, real={12: 11, 40: 30})
