"""Lets the tests of a repository meet faults, each in a process of its own, and tells what became of each.

There are two ways. The quick one collects the tests once, and for each fault puts the changed code into the functions
that are already there, in a copy of the process (`fork`). A fault that shows only where a module is imported needs the
other: a copy of the process that has not imported the package yet imports it with the fault and collects the tests
anew.
"""

import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import torch
from faults import Fault, code_with

TEMPORARY = Path(tempfile.gettempdir()) / "popgeo-faults"
PATIENCE = (8.0, 10.0)  # seconds of processor time of a test, and how many times its own
PYTEST = ("-q", "-s", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist")


class Outcome(Enum):
    """What became of a fault.

    `CAUGHT`: a test failed. `NO_IMPORT`: the package, or the tests, cannot be imported with it, so every test fails.
    `SURVIVED`: every test passed. `UNTESTED`: no test enters its function. `TIMED_OUT`: a test took many times as long
    as without it, or waited for ever. `CRASHED`: the process died, or pytest itself failed, which says nothing about
    the tests. `NEEDS_IMPORT`: the quick way cannot show it.
    """

    CAUGHT = "caught"
    NO_IMPORT = "cannot be imported"
    SURVIVED = "survived"
    UNTESTED = "untested"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"
    NEEDS_IMPORT = "needs import"


Told = tuple[Outcome, str | None]  # and the test that failed


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """A fault, None for the package as it is, with the tests that it meets, the quickest first, and their seconds."""

    fault: Fault | None
    tests: Sequence[str]
    seconds: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of the fault of a trial, and the test that failed, where one did, or what could not be imported."""

    trial: Trial
    outcome: Outcome
    failed: str | None = None


class WatchTests:
    """A plugin of pytest that orders the tests of a trial, stops those without an end and notes which one failed.

    Args:
        trial: The tests, which run in the given order, and how long each takes without a fault.
    """

    def __init__(self, trial: Trial) -> None:
        self.seconds = dict(zip(trial.tests, trial.seconds, strict=True))
        self.began: set[str] = set()
        self.failed: str | None = None
        self.not_imported: str | None = None

    def chosen(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        place = {test: number for number, test in enumerate(self.seconds)}
        return sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = self.chosen(items)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.began.add(item.nodeid)
        # Seconds of processor time, so that neighbours on the machine do not matter; the signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, PATIENCE[0] + PATIENCE[1] * self.seconds[item.nodeid])
        yield
        signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.not_imported = report.nodeid

    def told(self) -> Told:
        """What the tests said: that one failed, or that all passed. Anything else is no word of theirs."""
        if self.failed is not None:
            return Outcome.CAUGHT, self.failed
        if self.not_imported is not None:
            return Outcome.NO_IMPORT, self.not_imported
        return (Outcome.SURVIVED if self.began == self.seconds.keys() else Outcome.CRASHED), None


class FaultyModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one file with a fault in it and all others as they are."""

    def __init__(self, fault: Fault, name: str) -> None:
        self.name = name
        self.fault = fault

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if fullname != self.name:
            return None
        package = [str(self.fault.path.parent)] if self.fault.path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, self.fault.path, loader=self, submodule_search_locations=package
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(code_with(self.fault), str(self.fault.path), "exec"), module.__dict__)


def put_into_functions(fault: Fault, functions: Iterable[FunctionType]) -> bool:
    """Gives those of its file's functions that the fault changes their changed code; says whether there was any."""
    path = str(fault.path)
    before = _codes(compile(fault.path.read_text(), path, "exec", dont_inherit=True))
    after = _codes(compile(code_with(fault), path, "exec", dont_inherit=True))
    changed = False
    for function in functions:
        code = function.__code__
        key = (code.co_qualname, code.co_firstlineno)  # type: ignore[attr-defined]  # of Python 3.11
        if before.get(key) == after.get(key) or None in (before.get(key), after.get(key)):
            continue
        try:
            function.__code__ = after[key]  # type: ignore[assignment]
        except ValueError:  # other free variables than before
            return False
        changed = True
    return changed


def _codes(whole: CodeType) -> dict[tuple[str, int], CodeType | None]:
    """The code of each function by name and first line; None where two share both."""
    found: dict[tuple[str, int], CodeType | None] = {}
    for code in (part for part in whole.co_consts if isinstance(part, CodeType)):
        key = (code.co_qualname, code.co_firstlineno)  # type: ignore[attr-defined]
        found[key] = None if key in found else code
        found |= {inner: None if inner in found else value for inner, value in _codes(code).items()}
    return found


class Meetings:
    """Lets trials run, some at once, each in a copy of this process.

    Args:
        repository: Folder that the tests' names start from.
        output: Folder for the logs, one a trial.
        jobs: How many trials run at once.
        told: Called with each result as it comes.
    """

    def __init__(self, repository: Path, output: Path, jobs: int, told: Callable[[Result], None]) -> None:
        self.repository, self.output, self.jobs, self.told = repository, output, jobs, told

    @staticmethod
    def work_of(process: int) -> Path:
        """Where the tests of a copy may write; a short name, since those of sockets must be."""
        return TEMPORARY / str(process)

    def quickly(self, trials: Sequence[Trial]) -> list[Result]:
        """Collects the tests once, in a copy of this process, and gives each fault to functions that are there."""
        kept = self.output / "results.jsonl"
        kept.unlink(missing_ok=True)

        def collect() -> Told:
            done = kept.open("a")

            def write(result: Result) -> None:
                number = trials.index(result.trial)
                done.write(json.dumps([number, result.outcome.value, result.failed]) + "\n")
                done.flush()
                self.told(result)

            meetings = Meetings(self.repository, self.output, self.jobs, write)
            tests = {test for trial in trials for test in trial.tests}
            self._pytest(tests, [_RunTrials(meetings, trials)], "--continue-on-collection-errors")
            return Outcome.SURVIVED, None

        process = self._copy(collect, self.output / "collect")
        os.waitpid(process, 0)
        shutil.rmtree(self.work_of(process), ignore_errors=True)
        lines = kept.read_text().splitlines() if kept.exists() else []
        if len(lines) < len(trials):
            raise RuntimeError(
                f"The tests could not be collected, or the run was ended; see {self.output}/collect/log."
            )
        results = (json.loads(line) for line in lines)
        return [
            Result(trial=trials[number], outcome=Outcome(found), failed=failed) for number, found, failed in results
        ]

    def importing(self, trials: Sequence[Trial]) -> list[Result]:
        """Imports the package with each fault anew."""
        return self.run(trials, self._import_and_test, "imported")

    def run(self, trials: Sequence[Trial], act: Callable[[Trial], Told], name: str) -> list[Result]:
        """Lets `act` say in a copy of its own what became of each trial; the folders of the logs bear the name."""
        running: dict[int, tuple[Trial, Path, float]] = {}
        results: list[Result] = []
        gc.freeze()  # what is there already is the same in every copy, and need not be looked through again
        for number, trial in enumerate(trials):
            while len(running) >= self.jobs:
                results.append(self._next(running))
            folder = self.output / f"{name}_{number}"
            shutil.rmtree(folder, ignore_errors=True)
            process = self._copy(lambda trial=trial: act(trial), folder)  # type: ignore[misc]
            running[process] = (trial, folder, time.monotonic() + 240 + 30 * sum(trial.seconds))
        while running:
            results.append(self._next(running))
        return results

    def _next(self, running: dict[int, tuple[Trial, Path, float]]) -> Result:
        """Waits until a process ends, or has waited too long, and says what became of its fault."""
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process in running:
                trial, folder, _ = running.pop(process)
                with suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)  # what its tests have started
                shutil.rmtree(self.work_of(process), ignore_errors=True)
                outcome, failed = what_was_told(status, folder)
                result = Result(trial=trial, outcome=outcome, failed=failed)
                self.told(result)
                return result
            for late, (_, _, deadline) in running.items():
                if time.monotonic() > deadline:
                    os.kill(late, signal.SIGPROF)  # collected on the next round
            time.sleep(0.005)

    def _copy(self, act: Callable[[], Told], folder: Path) -> int:
        """Starts `act` in a copy of this process, whose output goes to a folder, and returns its number."""
        folder.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        process = os.fork()
        if process:
            return process
        os.setsid()
        work = self.work_of(os.getpid())
        shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
        work.mkdir(parents=True)
        with (folder / "log").open("w") as file, suppress(BaseException):
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            os.chdir(work)
            os.environ |= {"TMPDIR": str(work), "PYTEST_DEBUG_TEMPROOT": str(work)}
            tempfile.tempdir = None
            if str(self.repository) not in sys.path:
                sys.path.insert(0, str(self.repository))
            torch.set_num_threads(1)
            try:
                outcome, failed = act()
                (folder / "told").write_text(json.dumps([outcome.value, failed]))
            except BaseException:
                traceback.print_exc()  # nothing else would tell that the tests never began
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)

    def _import_and_test(self, trial: Trial) -> Told:
        if trial.fault is not None:
            name = self.module_of(trial.fault)
            sys.meta_path.insert(0, FaultyModule(trial.fault, name))
            try:
                importlib.import_module(name)
            except BaseException:
                traceback.print_exc()
                return Outcome.NO_IMPORT, name
        watch = WatchTests(trial)
        self._pytest(trial.tests, [watch], "-x")
        return watch.told()

    def _pytest(self, tests: Iterable[str], plugins: list[Any], *arguments: str) -> int:
        files = sorted({str(self.repository / test.partition("::")[0]) for test in tests})
        return int(pytest.main([*PYTEST, "--rootdir", str(self.repository), *arguments, *files], plugins=plugins))

    def module_of(self, fault: Fault) -> str:
        parts = fault.path.relative_to(self.repository).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _RunTrials:
    """A plugin of pytest that runs the trials where pytest would run its tests."""

    def __init__(self, meetings: Meetings, trials: Sequence[Trial]) -> None:
        self.meetings, self.trials = meetings, trials

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        functions: dict[str, list[FunctionType]] = defaultdict(list)
        for one in gc.get_objects():
            if type(one) is FunctionType:  # no proxies
                functions[one.__code__.co_filename].append(one)

        def test(trial: Trial) -> Told:
            if trial.fault is not None:
                name = self.meetings.module_of(trial.fault)
                if name in sys.modules and not put_into_functions(trial.fault, functions[str(trial.fault.path)]):
                    return Outcome.NEEDS_IMPORT, None
                sys.meta_path.insert(0, FaultyModule(trial.fault, name))
            watch = WatchTests(trial)
            session.config.pluginmanager.register(watch)
            chosen = watch.chosen(session.items)
            for item, following in zip(chosen, [*chosen[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if watch.failed:
                    break
            return watch.told()

        self.meetings.run(self.trials, test, "quick")
        return True


def what_was_told(status: int, folder: Path) -> Told:
    """What became of a process, from what `os.waitpid` says of it and what it has left behind, if it came so far."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return Outcome.TIMED_OUT, None
    if not (folder / "told").exists():
        return Outcome.CRASHED, None
    outcome, failed = json.loads((folder / "told").read_text())
    return Outcome(outcome), failed
