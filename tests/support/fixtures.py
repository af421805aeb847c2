"""Fixtures that several folders use, and rules for every test."""

import contextlib
import gc
import importlib
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.logging import caplog_handler_key
from torch_geometric.nn import Sequential

from popgeo.capture.op_graph import OpGraph
from popgeo.data import attribute_names
from popgeo.ipu.tiles import graph_program
from popgeo.ipu.tiles.program import Program
from popgeo.native import library
from tests.support.check_graph import check_graph
from tests.support.check_program import check

# Collected doctests import popgeo.extensions, which switches PyG's extensions on for the whole process.
logging.getLogger("popgeo.extensions").setLevel(logging.ERROR)
importlib.import_module("popgeo.extensions").disable()

# Imported modules and collected tests live until the end, so the garbage collector can skip them.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Record logs only for tests that ask for them by `caplog`.

    pytest attaches two handlers to each of torch's loggers, three times for each test: 0.8 ms.
    """
    plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
    if plugin is None:
        return
    record = plugin._runtest_for

    @contextlib.contextmanager
    def record_where_asked(item: pytest.Item, when: str) -> Iterator[None]:
        item.stash[caplog_handler_key] = plugin.caplog_handler
        with record(item, when) if "caplog" in getattr(item, "fixturenames", ()) else contextlib.nullcontext():
            yield

    plugin._runtest_for = record_where_asked


def pytest_collection_finish() -> None:
    """Let the garbage collector search only new objects of tests, and rarely."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _every_graph_and_program_is_checked() -> Iterator[None]:
    """Check that every captured, rewritten or read graph can run, and that every program has its data on its tiles.

    Programs that a test writes by hand are not checked.
    """
    make_graph = OpGraph.__init__

    def make_and_check_graph(self: OpGraph, *args: Any, **kwargs: Any) -> None:
        make_graph(self, *args, **kwargs)
        check_graph(self)

    def make_and_check_program(**parts: Any) -> Program:
        program = Program(**parts)
        check(program)
        return program

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpGraph, "__init__", make_and_check_graph)
        patch.setattr(graph_program, "Program", make_and_check_program)
        yield


@pytest.fixture(autouse=True)
def _each_test_starts_alike(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start each test with the same random numbers, one thread, and no model of another test.

    Weights and data without a seed are then equal in every run. On a busy machine, two threads wait for each other
    longer than a small step takes; a test can set more threads.

    PyG's `Sequential` writes its `forward` to a file with a random name, and leaves the last `forward` in its class. If
    two models draw the same name, one silently runs the other's `forward`. So Python's random numbers differ between
    tests and between processes, and the fixture restores the class's own `forward`.
    """
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` formats the stack for each kind of device: 0.8 ms
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    random.seed(f"{request.node.nodeid} {os.getpid()}")
    threads, forward = torch.get_num_threads(), Sequential.forward
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    Sequential.forward = forward
    attribute_names._REGISTERED.clear()  # levels that an example has registered


@pytest.fixture(params=["compiled", "fallback"])
def native(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test twice: with the compiled library, and without it."""
    if request.param == "fallback":
        with library.without_native():
            yield request.param
        return
    if not library.is_available():
        pytest.skip(library.reason())
    yield request.param


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data; skip the test if it is missing."""
    folder = os.environ.get("POPGEO_SHARED_DATA")
    if folder is None or not Path(folder).is_dir():
        pytest.skip(f"POPGEO_SHARED_DATA is {folder or 'not set'}; set it to a folder with qm9.npz, tu/ and planetoid/")
    return Path(folder)


@pytest.fixture
def generator() -> torch.Generator:
    """Return a new seeded generator for each test."""
    return torch.Generator().manual_seed(0)
