"""The benchmark of the loader runs, also on random molecules."""

import subprocess
from pathlib import Path

from tests.support import quick_python

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_quick_run_prints_every_loader(tmp_path):
    done = subprocess.run(
        [*quick_python.command(), REPOSITORY / "benchmarks" / "loader.py", "--quick"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(REPOSITORY), "POPGEO_SHARED_DATA": str(tmp_path), "PATH": ""},
    )
    assert "made-up molecules: 200 graphs" in done.stdout
    assert done.stdout.count("popgeo, reused memory") == 2
    assert "first batch of 2,000 graphs" in done.stdout
