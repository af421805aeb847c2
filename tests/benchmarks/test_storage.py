"""The benchmark of stores on disk runs and prints every figure beside its goal."""

import os
import subprocess
import sys

from tests.conftest import REPOSITORY


def test_the_quick_run_prints_every_figure_and_trains_within_its_memory():
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "storage.py"), "--quick"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for goal in (">= 20,000/s", "<= 200 ms", ">= 0.5", ">= 0.6"):
        assert goal in done.stdout
    assert "5,000 of 5,000 graphs" in done.stdout
