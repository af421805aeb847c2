"""The tool that puts faults into the sources counts as caught only what a test has caught."""

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.support import quick_python

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
TOY = """
    import os

    def steps(n):
        while n:
            n -= 1  # a loop without an end where this is left out
        return n

    def larger(a, b):
        return a if a > b else b

    def leave(now):
        if now:
            os._exit(0)  # no test has failed then, and none has passed

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
WHAT_BECOMES = {
    "a if a > b else b  ->  a if not a > b else b": "caught",
    "a > b  ->  a >= b": "survived",  # nothing to notice: of two equal numbers either is the larger
    "n -= 1  ->  pass": "timed out",
    "if now:  ->  if not now:": "crashed",
    "2 * x  ->  2 // x": "caught",  # though no test enters `double`
    "7  ->  8": "cannot be imported",
    "os._exit(0)  ->  pass": "survived",
}
RUN = """
    import json, sys
    from pathlib import Path
    import faults, meet_faults, mutate
    from entered_functions import Entered

    repository = Path.cwd()
    mutate.REPOSITORY, mutate.PACKAGE, meet_faults.PATIENCE = repository, repository / "toy", (0.3, 0)
    mutate.learn(["tests"], repository / "output").write(repository / "map.json")
    entered = Entered.read(repository / "map.json")
    found = faults.faults_of(repository / "toy" / "arithmetic.py")
    texts = {f"{fault.before}  ->  {fault.after}": fault for fault in found}
    meetings = meet_faults.Meetings(repository, repository / "output", 2, lambda result: None)
    trials = [mutate.trial_of(texts[text], entered, 60) for text in sys.argv[1:]]
    results = {result.trial: result for result in mutate.meet(trials, entered.imported, meetings)}
    print(json.dumps([list(entered.seconds), [results[trial].outcome.value for trial in trials]]))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The tests that count, and what became of each fault."""
    repository = tmp_path_factory.mktemp("toy")
    for name, text in {
        "toy/__init__.py": "",
        "toy/arithmetic.py": TOY,
        "tests/test_arithmetic.py": TESTS,
        "run.py": RUN,
    }.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(textwrap.dedent(text).lstrip())
    environment = os.environ | {"PYTHONPATH": f"{SCRIPTS}{os.pathsep}{repository}"}
    command = [*quick_python.command(), "run.py", *WHAT_BECOMES]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_each_fault_is_called_what_it_has_become(seen):
    assert dict(zip(WHAT_BECOMES, seen[1], strict=True)) == WHAT_BECOMES


def test_a_test_that_fails_without_a_fault_catches_none(seen):
    assert {name.partition("::")[2] for name in seen[0]} == {
        "test_a_loop_ends",
        "test_the_larger_one",
        "test_nobody_leaves",
        "test_four",
    }
