"""The set-up of a test run, and its last line of output."""

import atexit
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

REPOSITORY = Path(__file__).resolve().parent.parent
PUBLISHED = REPOSITORY / "benchmarks" / "data"  # published measurements with their sources


def pytest_configure(config: pytest.Config) -> None:
    """Import torch, PyG and popgeo only in a process that runs tests, not in the process that distributes tests."""
    # Otherwise inductor would compile three programs to test the processor, and headers for many kernels.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    if not hasattr(config, "workerinput"):
        atexit.register(_print_processor_time)  # registered first, so called last
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not hands_out:
        config.pluginmanager.import_plugin("tests.support.fixtures")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect no doctests here: they would skip a file that cannot be imported, and hide its tests."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


def _print_processor_time() -> None:
    """Print the processor time of the run. Workers and other children have ended, so their time is included."""
    user, system, of_children, system_of_children, _ = os.times()
    total = user + system + of_children + system_of_children
    print(f"processor time: {total:.0f} s (user and system, of all processes)")
