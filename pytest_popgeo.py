"""The plug-in of pytest: the fixture `popgeo_conformance`. It stands outside of the package, so that a run of pytest
which does not use it imports neither popgeo nor torch."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def popgeo_conformance() -> Callable[..., Any]:
    """Tries every claim on a model, loader, sampler or neighbor list, as `popgeo.testing.check_conformance` does, and
    fails the test where one does not hold; returns the report."""
    from popgeo.testing import check_conformance

    def require(*args: Any, **how: Any) -> Any:
        report = check_conformance(*args, **how)
        report.require()
        return report

    return require
