"""PyG in the state that programs of PopTorch Geometric expect, for the tests of this folder."""

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from popgeo.compat.poptorch_geometric.pyg_extensions import stand_in, take_back
from popgeo.extension_path import provide, withdraw


@pytest.fixture(scope="module", autouse=True)
def _extensions_for_fixtures() -> Iterator[None]:
    provide()
    stand_in()
    yield
    take_back()
    withdraw()


@pytest.fixture(autouse=True)
def _extensions_again() -> None:
    """Accept old arguments again, in case a test has called `compat.disable`."""
    stand_in()


@pytest.fixture
def torch_cluster() -> ModuleType:
    return importlib.import_module("torch_cluster")
