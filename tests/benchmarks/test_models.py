"""The benchmark of the models runs, on real molecules and on random molecules, and prints its ratios."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "models.py"


@pytest.mark.parametrize("data", ["real", "absent"])
def test_quick_prints_a_ratio_for_each_way_of_finding_edges(data, monkeypatch, capsys, request, tmp_path):
    folder = request.getfixturevalue("shared_data") if data == "real" else tmp_path
    monkeypatch.setenv("POPGEO_SHARED_DATA", str(folder))
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", ["models.py", "--quick"])
    specification = importlib.util.spec_from_file_location("benchmark_of_models", SCRIPT)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    script.main()
    printed = capsys.readouterr().out
    assert printed.count(" filters ") == 10
    assert printed.count("x flushed (goal ") == 2
    assert printed.count("roofline: ") == 2
    assert "messages and sums" in printed
