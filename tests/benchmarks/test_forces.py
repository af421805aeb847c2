"""The benchmark of forces runs, also on random molecules, and prints its comparisons."""

import importlib.util
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "forces.py"


def test_quick_prints_times_memory_goals_and_a_roofline(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("POPGEO_SHARED_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", ["forces.py", "--quick", "--only", "schnet"])
    specification = importlib.util.spec_from_file_location("benchmark_of_forces", SCRIPT)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    script.main()
    printed = capsys.readouterr().out
    assert printed.count(" ms ") >= 6
    assert printed.count("(goal 4.0: ") == printed.count("(goal 2.5: ") == 1
    assert printed.count("'s memory (goal 0.33)") == printed.count("roofline: ") == 2
