"""popgeo's versions of PyG's extensions, under their own names, for the tests of this folder."""

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from popgeo.extension_path import provide, withdraw


@pytest.fixture(autouse=True)
def _extensions() -> Iterator[None]:
    provide(shadow=True)
    yield
    withdraw()


@pytest.fixture
def torch_scatter() -> ModuleType:
    return importlib.import_module("torch_scatter")


@pytest.fixture
def torch_cluster() -> ModuleType:
    return importlib.import_module("torch_cluster")


@pytest.fixture
def pyg_lib() -> ModuleType:
    return importlib.import_module("pyg_lib")
