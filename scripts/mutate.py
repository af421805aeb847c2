"""Puts faults into popgeo one at a time and prints the share that the tests catch, and which they do not.

    python scripts/mutate.py --faults 300                      # over data, packing, ops, engine and ipu/cost
    python scripts/mutate.py --faults 50 --folders popgeo/packing --seed 1

A fault is one change of one line: another comparison, a number one larger, a condition turned round, a statement left
out (`scripts/faults.py`). The tests run once to learn which of them enter which function, with their times; then each
fault meets the tests that enter its function, the quickest first, in a process of its own that ends at the first
failure. What survives is either equivalent to the original, or only a choice of speed, and then belongs with its reason
into `scripts/equivalent_faults.txt`; or it shows a test that is missing.

popgeo itself is not imported here: each process that meets a fault is a copy of this one that imports popgeo with it.
"""

import argparse
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest
import torch
import torch_geometric.loader
from faults import Fault, code_with, faults_of
from matplotlib import pyplot
from tqdm import tqdm

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = ("popgeo/data", "popgeo/packing", "popgeo/ops", "popgeo/engine", "popgeo/ipu/cost")
TESTED = ("data", "packing", "ops", "engine", "ipu", "loader", "capture", "contracts", "testing")
TESTS = (*FOLDERS[:4], "popgeo/ipu", *(f"tests/{folder}" for folder in TESTED))
PYTEST = [
    "-q",
    "--assert=plain",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:randomly",
    "-p",
    "no:xdist",
    "--rootdir",
    str(REPOSITORY),
]
EQUIVALENT = REPOSITORY / "scripts" / "equivalent_faults.txt"
IMPORTED_BEFORE = (torch, torch_geometric.loader, pyplot)  # so that no copy of this process has to
Function = tuple[str, int]  # file, first line


class EnteredFunctions:
    """A plugin of pytest that notes which functions of popgeo each test enters, and how long it takes."""

    def __init__(self) -> None:
        self.tests: dict[Function, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self._entered: set[CodeType] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._entered = set()
        start = time.perf_counter()
        threading.settrace(self._note)
        sys.settrace(self._note)
        yield
        sys.settrace(None)
        threading.settrace(None)
        self.seconds[item.nodeid] = time.perf_counter() - start
        entered, self._entered = self._entered, set()  # threads of the test may still run
        for code in tuple(entered):
            path = Path(code.co_filename)
            if path.is_relative_to(REPOSITORY / "popgeo"):
                self.tests[str(path.relative_to(REPOSITORY)), code.co_firstlineno].add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.seconds[report.nodeid] = float("inf")  # a test that fails without a fault says nothing of one

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        self._entered.add(frame.f_code)

    def write(self, path: Path) -> None:
        useful = {test: seconds for test, seconds in self.seconds.items() if seconds != float("inf")}
        table = [[*function, sorted(tests & useful.keys())] for function, tests in self.tests.items()]
        path.write_text(json.dumps({"seconds": useful, "entered": table}))


class OnlyThese:
    """A plugin of pytest that runs the given tests in the given order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.place = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.place), key=lambda i: self.place[i.nodeid])


class FaultyModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one file with a fault in it and all others as they are."""

    def __init__(self, fault: Fault) -> None:
        parts = fault.path.relative_to(REPOSITORY).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.fault = fault

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.fault.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(code_with(self.fault), str(self.fault.path), "exec"), module.__dict__)


def in_a_copy(act: Callable[[], int], output: Path) -> int:
    """Starts `act` in a copy of this process, whose output goes to a file, and returns its number."""
    process = os.fork()
    if process:
        return process
    os.setsid()
    status = 1
    with output.open("w") as file, suppress(BaseException):
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        os.chdir(tempfile.mkdtemp(prefix="popgeo-mutate-"))
        sys.path[:0] = [str(REPOSITORY)]
        torch.set_num_threads(1)
        try:
            status = act()
        except BaseException:
            traceback.print_exc()  # nothing else would tell that the tests never began
    os._exit(status)


def learn(path: Path) -> int:
    noted = EnteredFunctions()
    status = pytest.main([*PYTEST, *(str(REPOSITORY / folder) for folder in TESTS)], plugins=[noted])
    noted.write(path)
    return int(status)


def meet(fault: Fault | None, tests: Sequence[str]) -> int:
    """Runs the tests on popgeo with the fault, or as it is; 0 where every one passes."""
    if fault is not None:
        sys.meta_path.insert(0, FaultyModule(fault))
    files = sorted({test.partition("::")[0] for test in tests})
    return int(pytest.main([*PYTEST, "-x", *(str(REPOSITORY / file) for file in files)], plugins=[OnlyThese(tests)]))


def tests_of(fault: Fault, entered: dict[Function, set[str]], seconds: dict[str, float], limit: float) -> list[str]:
    """The tests that enter the fault's function, the quickest first, as many as fit into the limit."""
    file = str(fault.path.relative_to(REPOSITORY))
    where = [tests for (path, line), tests in entered.items() if path == file and fault.function in (0, line)]
    chosen: list[str] = []
    total = 0.0
    for test in sorted(set().union(*where), key=lambda test: seconds[test]):
        total += seconds[test]
        if total > limit and chosen:
            break
        chosen.append(test)
    return chosen


def equivalent_faults(path: Path = EQUIVALENT) -> set[tuple[str, str]]:
    """Changes, and the lines of source that they stand in, that are known to alter nothing but perhaps the speed.

    Raises:
        ValueError: an entry is not a change of a file, a line of source and a reason.
    """
    known = set()
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    for entry in text.strip().split("\n\n"):
        change, *rest = (line.strip() for line in entry.splitlines())
        if "  ->  " not in change or len(rest) != 2:
            raise ValueError(f"{path.name} has {entry!r}; write `path: before  ->  after`, the line, and the reason.")
        known.add((change, rest[0]))
    return known


def named(fault: Fault) -> tuple[str, str]:
    """A fault as `equivalent_faults` holds it, which does not change when lines are put in before it."""
    line = fault.path.read_text().splitlines()[fault.line - 1].strip()
    return f"{fault.path.relative_to(REPOSITORY)}: {fault.before}  ->  {fault.after}", line


def require_passing(tests: Sequence[str], log: Path) -> None:
    """Ends the program where tests cannot pass without a fault either, since then every fault would count as caught."""
    _, status = os.waitpid(in_a_copy(lambda: meet(None, tests), log), 0)
    if status:
        sys.exit(f"A test that passed fails without a fault: {tests[0]}. See {log}, or remove the map of the tests.")


def wait_for_one(running: dict[int, tuple[Fault, float]]) -> tuple[Fault, bool]:
    """Waits until a process ends or its time is over, and says whether its fault was caught."""
    while True:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process in running:
            return running.pop(process)[0], status != 0
        for late, (_, deadline) in running.items():
            if time.monotonic() > deadline:
                os.killpg(late, signal.SIGKILL)  # a loop without end is a failure too; collected on the next round
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=300, help="how many faults, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="where the faults are put")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at once")
    parser.add_argument("--limit", type=float, default=40.0, help="seconds of tests that one fault meets at most")
    parser.add_argument("--map", type=Path, default=REPOSITORY / "build" / "entered.json", help="kept between runs")
    given = parser.parse_args()
    paths = sorted(path for folder in given.folders for path in (REPOSITORY / folder).rglob("*.py"))
    every = [fault for path in paths for fault in faults_of(path)]
    if not every:
        parser.error(f"no file of {', '.join(given.folders)} holds anything to change")
    drawn = random.Random(given.seed).sample(every, min(given.faults, len(every)))
    equivalent = equivalent_faults()
    given.map.parent.mkdir(parents=True, exist_ok=True)
    if not given.map.exists():
        print(f"learning which tests enter which function (some minutes; kept in {given.map})", flush=True)
        os.waitpid(in_a_copy(lambda: learn(given.map), given.map.with_suffix(".log")), 0)
    known = json.loads(given.map.read_text())
    entered = {(path, line): set(tests) for path, line, tests in known["entered"]}
    require_passing([min(known["seconds"], key=known["seconds"].__getitem__)], given.map.with_suffix(".log"))
    running: dict[int, tuple[Fault, float]] = {}
    results: list[tuple[Fault, bool]] = []
    for number, fault in enumerate(tqdm(drawn, "faults", disable=not sys.stderr.isatty())):
        tests = tests_of(fault, entered, known["seconds"], given.limit)
        if not tests:
            results.append((fault, False))
            continue
        if len(running) == given.jobs:
            results.append(wait_for_one(running))
        log = given.map.with_name(f"fault_{number}.log")
        process = in_a_copy(lambda fault=fault, tests=tests: meet(fault, tests), log)  # type: ignore[misc]
        running[process] = (fault, time.monotonic() + 60 + 10 * given.limit)
    while running:
        results.append(wait_for_one(running))
    missed = [fault for fault, caught in results if not caught]
    survivors = [fault for fault in missed if named(fault) not in equivalent]
    for fault in sorted(survivors, key=lambda fault: (fault.path, fault.line)):
        print(f"{fault.path.relative_to(REPOSITORY)}:{fault.line}: {fault.before}  ->  {fault.after}")
    counted = len(drawn) - (len(missed) - len(survivors))
    print(
        f"{len(drawn)} faults, seed {given.seed}: {len(drawn) - len(missed)} caught, "
        f"{len(drawn) - counted} equivalent, {len(survivors)} survived; caught of those that are not equivalent: "
        f"{1 - len(survivors) / max(1, counted):.1%} (goal: 95 %)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
