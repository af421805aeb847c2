"""The benchmark scripts run, and print their ratios."""

import os
import subprocess

import pytest

from tests.conftest import REPOSITORY
from tests.support import quick_python


@pytest.mark.parametrize(
    ("script", "claim"), [("executor.py", "x faster, compiled in"), ("end_to_end.py", "x as fast as dynamic")]
)
def test_a_benchmark_prints_its_ratio(script, claim):
    # One thread, because pytest's workers share the cores.
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [*quick_python.command(), str(REPOSITORY / "benchmarks" / script), "--quick"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert claim in done.stdout
