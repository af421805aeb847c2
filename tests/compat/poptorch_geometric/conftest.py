"""PyG as programs of PopTorch Geometric find it, for the tests of this folder alone."""

from collections.abc import Iterator

import pytest

from popgeo.compat.poptorch_geometric.pyg_extensions import stand_in, take_back


@pytest.fixture(autouse=True)
def _stand_ins_for_extensions() -> Iterator[None]:
    stand_in()
    yield
    take_back()
