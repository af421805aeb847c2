"""The benchmark of stores on disk runs and prints every figure next to its goal."""

import importlib.util
import sys

from tests.conftest import REPOSITORY
from tests.support import quick_python

SCRIPT = REPOSITORY / "benchmarks" / "storage.py"


def test_the_quick_run_prints_every_figure_and_trains_within_its_memory(monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", ["storage.py", "--quick"])
    specification = importlib.util.spec_from_file_location("benchmark_of_storage", SCRIPT)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    monkeypatch.setattr(script, "PYTHON", quick_python.command())
    script.main()
    printed = capsys.readouterr().out
    for goal in (">= 20,000/s", "<= 200 ms", ">= 0.5", ">= 0.6"):
        assert goal in printed
    assert "5,000 of 5,000 graphs" in printed
