"""The pytest plug-in with the fixture `popgeo_conformance`.

It is outside of the package, so that a run of pytest without this fixture imports neither popgeo nor torch.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def popgeo_conformance() -> Callable[..., Any]:
    """Check every claim on a model, loader, sampler or neighbor list with `popgeo.testing.check_conformance`.

    The fixture is a function that fails the test if a claim does not hold, and otherwise returns the report.
    """
    from popgeo.testing import check_conformance

    def require(*args: Any, **how: Any) -> Any:
        report = check_conformance(*args, **how)
        report.require()
        return report

    return require
