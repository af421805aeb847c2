"""What a run of the tests needs before the first test, and what it prints after the last one."""

import atexit
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

REPOSITORY = Path(__file__).resolve().parent.parent
PUBLISHED = REPOSITORY / "benchmarks" / "data"  # measurements of others, with their sources


def pytest_configure(config: pytest.Config) -> None:
    """Only a process that runs tests imports torch, PyG and popgeo, not the one that hands tests to workers."""
    # Inductor would compile three programs to try the processor, and headers for more kernels than the tests have.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    if not hasattr(config, "workerinput"):
        atexit.register(_print_processor_time)  # registered before others, so called after them
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not hands_out:
        config.pluginmanager.import_plugin("tests.support.fixtures")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collects no doctests here: they skip a file that cannot be imported, and pytest then finds no test in it."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


def _print_processor_time() -> None:
    """Says what the run has cost. Workers and other children have ended by now, so their time is that of children."""
    user, system, of_children, system_of_children, _ = os.times()
    total = user + system + of_children + system_of_children
    print(f"processor time: {total:.0f} s (user and system, of all processes)")
