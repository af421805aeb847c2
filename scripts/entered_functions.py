"""Which tests enter which function of popgeo, learned by running them once and kept in a file."""

import json
import os
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

Function = tuple[str, str]  # file within the repository, qualified name


@dataclass(frozen=True, kw_only=True)
class Entered:
    """What running the tests once has shown.

    Attributes:
        seconds: Time of each test that passes.
        tests: The tests that enter each function.
        imported: The functions that run while modules are imported, before any test.
    """

    seconds: dict[str, float]
    tests: dict[Function, set[str]]
    imported: set[Function]

    def write(self, path: Path) -> None:
        names = list(self.seconds)
        place = {name: number for number, name in enumerate(names)}
        table = [[*function, sorted(place[test] for test in tests)] for function, tests in self.tests.items()]
        kept = {"seconds": self.seconds, "entered": table, "imported": sorted(self.imported)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept))

    @classmethod
    def read(cls, path: Path) -> "Entered":
        kept = json.loads(path.read_text())
        names = list(kept["seconds"])
        tests = {(file, name): {names[place] for place in places} for file, name, places in kept["entered"]}
        return cls(seconds=kept["seconds"], tests=tests, imported={(file, name) for file, name in kept["imported"]})

    def joined(self, newer: "Entered") -> "Entered":
        """What either knows; of tests that both ran, what the newer saw, and nothing of files that it ran anew."""
        files = {name.partition("::")[0] for name in newer.seconds}
        older = {name: seconds for name, seconds in self.seconds.items() if name.partition("::")[0] not in files}
        tests = {
            function: (self.tests.get(function, set()) & older.keys()) | newer.tests.get(function, set())
            for function in self.tests.keys() | newer.tests.keys()
        }
        return Entered(seconds=older | newer.seconds, tests=tests, imported=self.imported | newer.imported)


class NoteEntered:
    """A plugin of pytest that notes which functions below a folder each test enters, and how long it takes.

    Args:
        repository: Folder that the kept names of files start from.
        package: Folder of the functions that count.
    """

    def __init__(self, repository: Path, package: Path) -> None:
        self._repository, self._package = repository, package
        self._tests: dict[Function, set[str]] = defaultdict(set)
        self._seconds: dict[str, float] = {}
        self._useless: set[str] = set()  # a test that fails or skips without a fault says nothing of one
        self._imported: set[Function] | None = None
        self._entered: set[CodeType] = set()

    def begin(self) -> None:
        """Starts with what runs before the first test, which importing alone enters."""
        self._entered = set()
        threading.settrace(self._note)
        sys.settrace(self._note)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        if self._imported is None:
            self._imported = set(self._functions())
        start = _seconds()
        self.begin()
        yield
        sys.settrace(None)
        threading.settrace(None)
        self._seconds[item.nodeid] = _seconds() - start
        for function in self._functions():
            self._tests[function].add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self._useless.add(report.nodeid)

    def entered(self) -> Entered:
        useful = {test: seconds for test, seconds in self._seconds.items() if test not in self._useless}
        tests = {function: tests & useful.keys() for function, tests in self._tests.items()}
        return Entered(seconds=useful, tests=tests, imported=self._imported or set())

    def _functions(self) -> set[Function]:
        codes, self._entered = self._entered, set()  # threads of the test may still run
        paths = ((code, Path(code.co_filename)) for code in tuple(codes))
        return {
            (str(path.relative_to(self._repository)), code.co_qualname)  # type: ignore[attr-defined]
            for code, path in paths
            if path.is_relative_to(self._package)
        }

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        self._entered.add(frame.f_code)


def _seconds() -> float:
    """Of the processor, so that neighbours on the machine do not count; those of processes that have ended included."""
    return sum(os.times()[:4])
