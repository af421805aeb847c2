"""Puts faults into popgeo one at a time, and prints the share that the tests catch and the faults that they do not.

    python scripts/mutate.py --faults 300 --seed 1
    python scripts/mutate.py --sources popgeo/data/cut.py --tests tests/data/test_cut.py    # a file against its tests

A fault is one change of one line (`scripts/faults.py`). The tests run once, to learn which functions each of them
enters and how long it takes. Each fault then meets the tests that enter its function, the quickest first, in a copy of
this process that imports the package with the fault in it. Caught means that a test failed, or that the package cannot
be imported; what takes permanently or ends the process is counted apart. What survives shows a test that is missing or
a line that does nothing; a fault that can only change the speed is a reason to take a branch out.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import hypothesis.internal.constants_ast
import pytest
import torch_geometric.loader  # noqa: F401  # what tests import is imported here, so that no copy has to
from faults import Fault, code_with, faults_of
from matplotlib import pyplot  # noqa: F401
from scipy import optimize, sparse, stats  # noqa: F401

SOURCES = ("popgeo/data", "popgeo/packing", "popgeo/ops", "popgeo/engine", "popgeo/ipu/cost")
NEEDS_A_GPU = "triton_kernels.py"
PYTEST = ("-q", "-s", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist")
CAUGHT = ("caught", "cannot be imported")
# What a copy of this process ends with: a status of pytest and 100, or the signal of one of its two clocks.
OUTCOMES = {100: "survived", 101: CAUGHT[0], 102: CAUGHT[1], -signal.SIGPROF: "timed out", -signal.SIGALRM: "timed out"}


class Learner:
    """A plugin of pytest that notes which functions of a package each test enters, and how long the test takes."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.seconds: dict[str, float] = {}
        self.entered: dict[str, list[str]] = defaultdict(list)
        self.imported: list[str] = []  # what runs before any test
        self.codes: set[CodeType] = set()
        threading.settrace(self.note)
        sys.settrace(self.note)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        self.codes.add(frame.f_code)

    def functions(self) -> set[str]:
        """Those entered since the last call, as `file::qualified name`."""
        codes, self.codes = self.codes, set()
        found = ((Path(code.co_filename), code.co_qualname) for code in codes)  # type: ignore[attr-defined]
        inside = ((path, name) for path, name in found if path.is_relative_to(self.package))
        return {f"{path.relative_to(self.package.parent)}::{name}" for path, name in inside}

    def pytest_collection_finish(self) -> None:
        self.imported = sorted(self.functions())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        sys.settrace(self.note)
        yield
        sys.settrace(None)
        for function in self.functions():
            self.entered[function].append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = report.duration if report.passed else float("inf")  # what fails without a fault is never chosen
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + seconds


def learn(package: Path, tests: Collection[str], kept: Path) -> int:
    """Runs the tests once, and keeps the seconds of each, which functions it enters, and what runs on import."""
    learner, files = Learner(package), (str(package.parent / test) for test in tests)
    ignored = [f"--ignore={path}" for path in package.rglob(NEEDS_A_GPU)]
    pytest.main([*PYTEST, *ignored, f"--rootdir={package.parent}", *files], plugins=[learner])
    return kept.write_text(json.dumps({name: getattr(learner, name) for name in ("seconds", "entered", "imported")}))


def tests_for(fault: Fault, learned: dict[str, Any], repository: Path, limit: float) -> list[str]:
    """The tests that enter its function; of what runs on import, those that enter its file, then all others."""
    file = str(fault.path.relative_to(repository))
    function = f"{file}::{fault.function}"
    first, beside = set(learned["entered"].get(function, ())), set[str]()
    if not fault.function or function in learned["imported"]:
        first = {test for name, its in learned["entered"].items() if name.startswith(f"{file}::") for test in its}
        beside = learned["seconds"].keys() - first
    chosen, total = [], 0.0
    for _, seconds, test in sorted((test not in first, learned["seconds"][test], test) for test in first | beside):
        if total + seconds <= limit:
            chosen.append(test)
            total += seconds
    return chosen


def meet(fault: Fault, repository: Path, tests: Collection[str]) -> int:
    """Imports the package with a fault in this process and tests it; returns pytest's status."""
    ordinary = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
        return compile(code_with(fault), self.path, "exec") if Path(self.path) == fault.path else ordinary(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore
    hypothesis.internal.constants_ast.is_local_module_file = lambda path: False  # type: ignore  # it would read each file
    if not tests:
        return pytest.ExitCode.OK
    options = [*PYTEST, "-x", f"--rootdir={repository}"]
    status = pytest.main([*options, *(f"{repository}/{test}" for test in tests)])
    if status != pytest.ExitCode.USAGE_ERROR:
        return status
    files = {f"{repository}/{test.partition('::')[0]}" for test in tests}  # one cannot be imported, or has lost a test
    return min(pytest.main([*options, "--collect-only", *files]), pytest.ExitCode.INTERRUPTED)


def outcomes(acts: Sequence[Callable[[], int]], seconds: float, repository: Path, jobs: int) -> list[str]:
    """What becomes of each act in a copy of this process that may take that many seconds of the processor."""
    found, waiting, running = ["crashed"] * len(acts), [*range(len(acts))], dict[int, tuple[int, Path]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            number, folder = waiting.pop(0), Path(tempfile.mkdtemp(prefix="fault"))
            process = os.fork() or _answer(acts[number], seconds, repository, folder)
            running[process] = number, folder
        process, status = os.wait()
        number, folder = running.pop(process)
        found[number] = OUTCOMES.get(os.waitstatus_to_exitcode(status), "crashed")
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what its tests have started
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _answer(act: Callable[[], int], seconds: float, repository: Path, folder: Path) -> NoReturn:
    """Ends this copy of the process with the status that an act returns."""
    status = -100
    with suppress(BaseException), open(os.devnull, "w") as nowhere:
        os.setsid()
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        sys.path.insert(0, str(repository))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(int(60 + 4 * seconds))  # where it waits for something that does not come
        status = act()
    os._exit(100 + status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=300, help="how many faults, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sources", nargs="+", default=SOURCES, help="folders or files where the faults are put")
    parser.add_argument("--tests", nargs="+", default=("popgeo", "tests"), help="folders or files of tests to meet")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one fault; a third of them for tests")
    parser.add_argument("--map", type=Path, help="where to keep what is learned, for the next run with these tests")
    parser.add_argument("--repository", type=Path, default=Path(__file__).resolve().parent.parent)
    given = parser.parse_args()
    root, kept = given.repository, (given.map or Path(tempfile.mkdtemp()) / "map.json").resolve()
    if not kept.exists():
        print("running the tests once, to learn which of them enter which function", file=sys.stderr)
        outcomes([partial(learn, root / given.sources[0].partition("/")[0], given.tests, kept)], 7200, root, 1)
    learned = json.loads(kept.read_text())
    if not learned["seconds"]:
        sys.exit("No test ran, so nothing was learned. Run pytest on the same files and mend what it says.")
    paths = [path for name in given.sources for path in sorted((root / name).rglob("*.py")) or [root / name]]
    every = [fault for path in paths if path.name != NEEDS_A_GPU for fault in faults_of(path)]
    drawn = random.Random(given.seed).sample(every, min(given.faults, len(every)))
    meetings = [partial(meet, fault, root, tests_for(fault, learned, root, given.limit / 3)) for fault in drawn]
    became = outcomes(meetings, given.limit, root, given.jobs)
    for fault, outcome in sorted(zip(drawn, became, strict=True), key=lambda pair: (pair[0].path, pair[0].line)):
        if outcome not in CAUGHT:
            print(f"{fault.path.relative_to(root)}:{fault.line}: {fault.before}  ->  {fault.after}  [{outcome}]")
    kinds = ", ".join(f"{number} {kind}" for kind, number in Counter(became).most_common())
    caught = sum(outcome in CAUGHT for outcome in became)
    sure = stats.binomtest(caught, len(drawn)).proportion_ci(method="wilson")
    print(f"{len(drawn)} faults, seed {given.seed}: {kinds}")
    print(f"caught: {caught / len(drawn):.1%} (95 % interval {sure.low:.1%} to {sure.high:.1%})")


if __name__ == "__main__":
    main()
