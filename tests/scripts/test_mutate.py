"""The mutation tool counts a fault as caught only if a test has caught it."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import quick_python

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="code names its class from Python 3.11 on")
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TOY = """
    import os

    def steps(n):
        while n:
            n -= 1  # without this line, the loop does not end
        return n

    def larger(a, b):
        return a if a > b else b

    def leave(now):
        if now:
            os._exit(0)  # the process ends before a test fails or passes

    def double(x):
        return 2 * x

    FOUR = double(2)
    LAST = tuple(range(8))[7]
"""
TESTS = """
    from toy import arithmetic

    def test_a_loop_ends():
        assert arithmetic.steps(2) == 0

    def test_the_larger_one():
        assert arithmetic.larger(1, 2) == arithmetic.larger(2, 1) == 2

    def test_nobody_leaves():
        arithmetic.leave(False)

    def test_four():
        assert arithmetic.FOUR == 4

    def test_that_is_wrong_without_a_fault():
        assert arithmetic.larger(1, 1) == 3
"""
NOT_CAUGHT = {
    "n -= 1  ->  pass": "timed out",
    "1  ->  2": "survived",  # a step of 2 also ends, since n is even
    "a > b  ->  a >= b": "survived",  # no effect: for equal numbers, both results are equal
    "if now:  ->  if not now:": "crashed",
    "0  ->  1": "survived",
    "os._exit(0)  ->  pass": "survived",
    "8  ->  9": "survived",
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> list[str]:
    """Run the tool on every fault of the toy; return its lines."""
    repository = tmp_path_factory.mktemp("toy")
    files = {"toy/__init__.py": "", "toy/arithmetic.py": TOY, "tests/test_arithmetic.py": TESTS}
    for name, text in files.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(textwrap.dedent(text).lstrip())
    toy = ["--repository", str(repository), "--sources", "toy", "--tests", "tests", "--limit", "2"]
    command = [*quick_python.command(), str(SCRIPTS / "mutate.py"), *toy]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_fault_that_no_test_catches_is_printed_with_what_became_of_it(printed):
    said = [line.partition(": ")[2] for line in printed[:-2]]
    assert sorted(said) == sorted(f"{fault}  [{outcome}]" for fault, outcome in NOT_CAUGHT.items())


def test_a_fault_that_shows_on_import_is_caught_by_tests_that_do_not_enter_its_function(printed):
    assert not [line for line in printed if "2 * x" in line]


def test_only_what_a_test_has_caught_counts_and_the_share_has_its_interval(printed):
    assert printed[-2] == "12 faults, seed 0: 5 survived, 4 caught, 1 cannot be imported, 1 timed out, 1 crashed"
    assert printed[-1] == "caught: 41.7% (95 % interval 19.3% to 68.0%)"
