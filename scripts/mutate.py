"""Put faults into popgeo one at a time, and print the share of caught faults and the faults that no test catches.

    python scripts/mutate.py --faults 300 --seed 1
    python scripts/mutate.py --sources popgeo/data/cut.py --tests tests/data/test_cut.py    # a file against its tests

A fault is one change of one line (`scripts/faults.py`). The tests first run once, to record the functions that each
test enters and its run time. Then each fault is tested, quickest test first, by the tests that enter its function, in a
copy of this process that imports the package with the fault. A fault is caught if a test fails or the package cannot be
imported; timeouts and crashes are counted separately. A surviving fault shows a missing test or a line without effect.
If a fault can only change the speed, consider removing the branch.
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
import torch_geometric.loader  # noqa: F401  # modules that tests import, imported once for all copies
from faults import Fault, code_with, faults_of
from matplotlib import pyplot  # noqa: F401
from scipy import optimize, sparse, stats  # noqa: F401

SOURCES = ("popgeo/data", "popgeo/packing", "popgeo/ops", "popgeo/engine", "popgeo/ipu/cost")
NEEDS_A_GPU = "triton_kernels.py"
PYTEST = ("-q", "-s", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist")
CAUGHT = ("caught", "cannot be imported")
# Exit statuses of a copy of this process: 100 plus pytest's status, or the signal of one of two timers.
OUTCOMES = {100: "survived", 101: CAUGHT[0], 102: CAUGHT[1], -signal.SIGPROF: "timed out", -signal.SIGALRM: "timed out"}


class Learner:
    """A pytest plugin that records the functions of a package that each test enters, and its run time."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.seconds: dict[str, float] = {}
        self.entered: dict[str, list[str]] = defaultdict(list)
        self.imported: list[str] = []  # functions that run before any test
        self.codes: set[CodeType] = set()
        threading.settrace(self.note)
        sys.settrace(self.note)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        self.codes.add(frame.f_code)

    def functions(self) -> set[str]:
        """Return the functions entered since the last call, as `file::qualified name`."""
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
        seconds = (
            report.duration if report.passed else float("inf")
        )  # a test that fails without a fault is never chosen
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + seconds


def learn(package: Path, tests: Collection[str], kept: Path) -> int:
    """Run the tests once, and save each test's seconds and functions, and the functions that run on import."""
    learner, files = Learner(package), (str(package.parent / test) for test in tests)
    ignored = [f"--ignore={path}" for path in package.rglob(NEEDS_A_GPU)]
    pytest.main([*PYTEST, *ignored, f"--rootdir={package.parent}", *files], plugins=[learner])
    return kept.write_text(json.dumps({name: getattr(learner, name) for name in ("seconds", "entered", "imported")}))


def tests_for(fault: Fault, learned: dict[str, Any], repository: Path, limit: float) -> list[str]:
    """Return the tests that enter the fault's function; for code run on import, tests of its file, then others."""
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
    """Import the package with a fault in this process and test it; return pytest's status."""
    ordinary = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
        return compile(code_with(fault), self.path, "exec") if Path(self.path) == fault.path else ordinary(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore
    hypothesis.internal.constants_ast.is_local_module_file = lambda path: False  # type: ignore  # without this, it would read each file
    if not tests:
        return pytest.ExitCode.OK
    options = [*PYTEST, "-x", f"--rootdir={repository}"]
    status = pytest.main([*options, *(f"{repository}/{test}" for test in tests)])
    if status != pytest.ExitCode.USAGE_ERROR:
        return status
    files = {
        f"{repository}/{test.partition('::')[0]}" for test in tests
    }  # a test file cannot be imported, or lacks a test
    return min(pytest.main([*options, "--collect-only", *files]), pytest.ExitCode.INTERRUPTED)


def outcomes(acts: Sequence[Callable[[], int]], seconds: float, repository: Path, jobs: int) -> list[str]:
    """Run each act in a copy of this process, limited to `seconds` of processor time; return the outcomes."""
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
            os.killpg(process, signal.SIGKILL)  # processes that its tests have started
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _answer(act: Callable[[], int], seconds: float, repository: Path, folder: Path) -> NoReturn:
    """End this copy of the process with the status that an act returns."""
    status = -100
    with suppress(BaseException), open(os.devnull, "w") as nowhere:
        os.setsid()
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        sys.path.insert(0, str(repository))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(int(60 + 4 * seconds))  # in case it waits forever
        status = act()
    os._exit(100 + status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=300, help="number of random faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sources", nargs="+", default=SOURCES, help="folders or files that get the faults")
    parser.add_argument("--tests", nargs="+", default=("popgeo", "tests"), help="folders or files of tests")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel processes")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one fault; a third of them for tests")
    parser.add_argument("--map", type=Path, help="file for the recorded test runs, for later runs with the same tests")
    parser.add_argument("--repository", type=Path, default=Path(__file__).resolve().parent.parent)
    given = parser.parse_args()
    root, kept = given.repository, (given.map or Path(tempfile.mkdtemp()) / "map.json").resolve()
    if not kept.exists():
        print("running the tests once, to record the functions that each test enters", file=sys.stderr)
        outcomes([partial(learn, root / given.sources[0].partition("/")[0], given.tests, kept)], 7200, root, 1)
    learned = json.loads(kept.read_text())
    if not learned["seconds"]:
        sys.exit("No test ran. Run pytest on the same files and fix the errors that it reports.")
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
