"""The benchmark of dynamics runs on a small crystal, and the models that it compares agree."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "dynamics.py"


def test_quick_prints_a_step_of_a_molecule_and_of_a_crystal(monkeypatch, capsys):
    pytest.importorskip("ase", reason="ase is not installed")
    pytest.importorskip("vesin", reason="vesin is not installed")
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", ["dynamics.py", "--quick"])
    specification = importlib.util.spec_from_file_location("benchmark_of_dynamics", SCRIPT)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    script.main()
    printed = capsys.readouterr().out
    for claim in ("a step of ethanol: ", "(goal 0.8: ", "x PyG's SchNet (goal 5: ", "x our eager PaiNN"):
        assert claim in printed
    assert printed.count("of 32 atoms of copper, ") >= 2
