"""What a run of the tests needs before the first test, and what it prints after the last one."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PUBLISHED = REPOSITORY / "benchmarks" / "data"  # measurements of others, with their sources


def pytest_configure(config: pytest.Config) -> None:
    """Only a process that runs tests imports torch, PyG and popgeo, not the one that hands tests to workers."""
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if not hands_out:
        config.pluginmanager.import_plugin("tests.support.fixtures")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Says what the run has cost; workers have ended by now, so their time is that of children."""
    if not hasattr(config, "workerinput"):
        user, system, of_children, system_of_children, _ = os.times()
        total = user + system + of_children + system_of_children
        config.get_terminal_writer().line(f"processor time: {total:.0f} s (user and system, of all processes)")
