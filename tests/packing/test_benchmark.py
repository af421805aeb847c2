"""The benchmark of packing runs, and prints what documents claim."""

import subprocess
from pathlib import Path

from tests.support import quick_python

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_quick_benchmark_prints_fill_time_and_the_ratio_to_data_objects():
    script = REPOSITORY / "benchmarks" / "packing.py"
    run = subprocess.run(
        [*quick_python.command(), script, "--quick"],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "variance_ratio" in run.stdout
    assert "optimal, next epoch" in run.stdout
    assert "times as fast as the peer" in run.stdout
