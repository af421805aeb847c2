"""PyG in the state that programs of PopTorch Geometric expect, for the tests of this folder."""

from collections.abc import Iterator

import pytest

from popgeo.compat.poptorch_geometric.pyg_extensions import stand_in, take_back


@pytest.fixture(scope="module", autouse=True)
def _extensions_for_fixtures() -> Iterator[None]:
    stand_in()
    yield
    take_back()


@pytest.fixture(autouse=True)
def _extensions_again() -> None:
    """Replace PyG's extensions again, in case a test has called `compat.disable`."""
    stand_in()
