"""The benchmark of sampling runs, with or without its peer."""

import subprocess
from pathlib import Path

from tests.support import quick_python

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_quick_run_prints_every_way():
    done = subprocess.run(
        [*quick_python.command(), REPOSITORY / "benchmarks" / "sampling.py", "--quick"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": ""},
    )
    assert "edges into rows, popgeo" in done.stdout
    assert done.stdout.count("popgeo, sampling and features") == 2
    assert done.stdout.count("plain gather of the features") == 2
