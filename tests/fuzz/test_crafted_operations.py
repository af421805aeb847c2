"""No operation that a file may name ends the process, for any arguments of its types."""

import subprocess
import sys

from tests.conftest import REPOSITORY


def test_no_call_ends_the_process():
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.crafted_operations", "--calls", "250", "--verbose"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout[-200:] + ended.stderr[-1000:]
    assert ended.stdout.endswith("\n250 calls\n")
