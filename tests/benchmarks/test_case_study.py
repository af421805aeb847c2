"""The case study runs with PopTorch's names, and its loss falls."""

import os
import re
import subprocess

from tests.conftest import REPOSITORY
from tests.support import quick_python


def test_the_quick_run_prints_losses_beside_the_published_ones(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    environment["POPGEO_SHARED_DATA"] = str(tmp_path)  # empty, so the script uses the bundled molecules
    command = [*quick_python.command(), str(REPOSITORY / "benchmarks" / "case_study.py"), "--quick"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = map(float, re.findall(r"loss ([\d.]+) \(published", done.stdout))
    assert second < first
    assert "RANDOM DATA: the bundled molecules" in done.stdout
    assert re.search(r"Options.replicationFactor +honoured", done.stdout)
