"""Fixtures that more than one folder of tests uses."""

import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import Sequential

from popgeo.capture.check_graph import check_graph
from popgeo.capture.op_graph import OpGraph
from popgeo.ipu.tiles import graph_program
from popgeo.ipu.tiles.program import Program
from popgeo.native import library
from tests.support.check_program import check

REPOSITORY = Path(__file__).resolve().parent.parent
PUBLISHED = REPOSITORY / "benchmarks" / "data"  # measurements of others, with their sources


# What is imported and collected stays to the end: the collector need not look at a million objects again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on the collector looks only at what the tests make."""
    gc.freeze()
    gc.enable()


@pytest.fixture(params=["compiled", "fallback"])
def native(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test twice: with the compiled library, and as on a machine without a compiler."""
    if request.param == "fallback":
        with library.without_native():
            yield request.param
        return
    if not library.is_available():
        pytest.skip(library.reason())
    yield request.param


@pytest.fixture(autouse=True)
def _every_graph_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever captures, rewrites or reads a graph in a test leaves one that can run."""
    made = OpGraph.__init__

    def make_and_check(self: OpGraph, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        check_graph(self)

    monkeypatch.setattr(OpGraph, "__init__", make_and_check)


@pytest.fixture(autouse=True)
def _every_program_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is lowered in a test has all data where the tiles need it; programs written by hand may break rules."""

    def make_and_check(**parts: Any) -> Program:
        program = Program(**parts)
        check(program)
        return program

    monkeypatch.setattr(graph_program, "Program", make_and_check)


@pytest.fixture(autouse=True)
def _the_same_random_numbers(request: pytest.FixtureRequest) -> None:
    """Weights and data that a test does not seed itself are those of its last run.

    Python's own differ between tests and processes: PyG's `Sequential` draws the name of its file with them, and where
    two write the same one, a model runs with the `forward` of another without a word.
    """
    torch.manual_seed(0)
    random.seed(f"{request.node.nodeid} {os.getpid()}")


@pytest.fixture(autouse=True)
def _no_model_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyG's `Sequential` leaves the last one's `forward` in its class, where those find it that could not write theirs.

    A test's module cannot be imported by its file's name, so no model that a test makes has a `forward` of its own.
    """
    monkeypatch.setattr(Sequential, "forward", Sequential.forward)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """On a busy machine two threads wait for each other for longer than a small step takes; a test may ask for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data that is not part of the package; tests that need it skip where it is absent."""
    folder = os.environ.get("POPGEO_SHARED_DATA")
    if folder is None or not Path(folder).is_dir():
        pytest.skip(
            f"POPGEO_SHARED_DATA is {folder or 'not set'}; it names a folder that holds qm9.npz, tu/ and planetoid/"
        )
    return Path(folder)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of randomness, new for each test."""
    return torch.Generator().manual_seed(0)
