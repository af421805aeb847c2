"""The benchmark of scatter and gather runs, prints its goals and draws its picture."""

import os
import subprocess
from pathlib import Path

from tests.support import quick_python

ROOT = Path(__file__).resolve().parents[2]


def test_quick_run_prints_goals_and_draws(tmp_path):
    command = [*quick_python.command(), "benchmarks/scatter_gather.py", "--quick", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for claim in (
        "cfconv on molecular batches",
        "scatter-add, random index",
        "sorted index",
        "call overhead",
        "goal >= 4",
    ):
        assert claim in run.stdout
    assert (tmp_path / "scatter_gather.png").stat().st_size > 0
