"""No operation that a file may name ends the process, for any arguments of its types."""

import subprocess

from tests.conftest import REPOSITORY
from tests.support import quick_python


def test_no_call_ends_the_process():
    command = [*quick_python.command(), "-m", "tests.fuzz.crafted_operations", "--calls", "250", "--verbose"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout[-200:] + ended.stderr[-1000:]
    assert ended.stdout.endswith("\n250 calls\n")
