"""Run the tests and print their processor time: by part, by kind, by folder, and of the most expensive tests.

    python scripts/test_times.py                        # the whole suite, as `make test` runs it
    python scripts/test_times.py --top 20 tests/data    # any arguments of pytest may follow

Processor time is user and system time. Time of child processes counts for the test that waits for them. Copies of
`tests/support/quick_python.py` and kernels of notebooks count in the row "other processes".
The share of activities comes from a sample of the running functions every 10 ms of processor time.
"""

import argparse
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import pytest

# Name of an activity, part of a file name, and a function (empty for any function). The first match counts.
ACTIVITIES = (
    ("capture of a step", "popgeo/capture/capture.py", "capture"),
    ("compilation of a captured step", "popgeo/engine/graph_runner.py", "GraphRunner.__init__"),
    ("compilation of a captured step", "popgeo/capture/capture_step.py", "optimize"),
    ("torch.compile", "torch/_dynamo/convert_frame.py", ""),
    ("torch.compile", "torch/_inductor/", ""),
    ("check of every captured graph and program", "tests/support/fixtures.py", ""),
    ("cost, tiles and programs of the machine", "popgeo/ipu/", ""),
    ("steps that run", "popgeo/engine/", ""),
    ("loaders and batches", "popgeo/loader/", ""),
    ("loaders and batches", "popgeo/data/", ""),
    ("conformance kit", "popgeo/testing/", ""),
    ("imports", "importlib._bootstrap", ""),
)
STARTS_A_PROCESS = ("subprocess.Popen", "os.fork", "os.posix_spawn")  # Python's audit events
TOP = 50


def processor_seconds() -> tuple[float, float]:
    """Return the seconds of this process, and of the child processes that it has waited for."""
    used = os.times()
    return used.user + used.system, used.children_user + used.children_system


class Worker:
    """The measurement in the process that runs tests: each report gets the seconds of its phase."""

    def __init__(self, output: dict[str, Any]) -> None:
        self.output, self.samples = output, Counter[str]()
        self.before = processor_seconds()
        self.started = False
        output["start-up"] = sum(self.before)
        sys.addaudithook(self.note_event)
        signal.signal(signal.SIGPROF, self.sample)
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)

    def note_event(self, event: str, arguments: Any) -> None:
        self.started |= event in STARTS_A_PROCESS

    def sample(self, number: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            stack.append((frame.f_code.co_filename, frame.f_code.co_name, frame))
            frame = frame.f_back
        for activity, file, function in ACTIVITIES:
            owner, _, name = function.rpartition(".")
            if any(file in path and name in ("", code) and _is_of(frame, owner) for path, code, frame in stack):
                self.samples[activity] += 1
                return
        self.samples["other work of tests"] += 1

    def pytest_collection_finish(self) -> None:
        self.output["collection"] = sum(processor_seconds()) - self.output["start-up"]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.before, self.started = processor_seconds(), False
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        outcome = yield
        report = outcome.get_result()  # type: ignore[attr-defined]
        after = processor_seconds()
        report.seconds = [now - then for now, then in zip(after, self.before, strict=True)]
        report.kind = self.kind(item)
        self.before = after

    def kind(self, item: pytest.Item) -> str:
        if type(item).__name__ == "DoctestItem":
            return "doctests"
        if "test_examples" in item.nodeid or "test_documents" in item.nodeid or "notebooks" in item.nodeid:
            return "examples, documents and notebooks"
        if self.started:
            return "tests that start processes"
        return "hypothesis" if hasattr(getattr(item, "obj", None), "hypothesis") else "other tests"

    def pytest_sessionfinish(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.output |= {"samples": dict(self.samples), "in all": processor_seconds()}


def _is_of(frame: FrameType, owner: str) -> bool:
    """Check whether a method's frame belongs to an object of the class `owner`; True if `owner` is empty."""
    return not owner or type(frame.f_locals.get("self")).__name__ == owner


class Table:
    """The figures of all workers."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.workers: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.reports.append(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.workers.append(node.workeroutput["times"])

    def show(self, total: float, own: float, top: int) -> None:
        """Print every table.

        Args:
            total: Processor time of all processes (s).
            own: Processor time of this process, which distributes the tests (s).
            top: Number of tests to list.
        """
        phases, kinds, folders, tests = (defaultdict[str, list[float]](lambda: [0.0, 0.0, 0]) for _ in range(4))
        for report in self.reports:
            path = report.nodeid.partition("::")[0].split("/")
            for table, key in (
                (phases, {"call": "tests themselves"}.get(report.when, "fixtures")),
                (kinds, report.kind),
                (folders, "/".join(path[:2])),
                (tests, report.nodeid),
            ):
                for column, seconds in enumerate(report.seconds):
                    table[key][column] += seconds
                table[key][2] += report.when == "call"
        for part in ("start-up", "collection"):
            phases[f"{part} of workers"] = [sum(worker[part] for worker in self.workers), 0.0, len(self.workers)]
        in_tests = sum(sum(report.seconds) for report in self.reports)
        in_workers = sum(sum(worker["in all"]) for worker in self.workers)
        before = sum(phases[f"{part} of workers"][0] for part in ("start-up", "collection"))
        phases["pytest around tests"] = [in_workers - in_tests - before, 0.0, 0]
        phases["process that distributes tests"] = [own, 0.0, 1]
        phases["other processes"] = [0.0, total - own - in_workers, 0]
        samples = sum((Counter(worker["samples"]) for worker in self.workers), Counter[str]())
        _print("part", phases, total)
        _print("kind of test", kinds, total)
        sampled = sum(worker["in all"][0] - worker["start-up"] for worker in self.workers)
        share = sampled / max(1, sum(samples.values()))
        _print("activity of workers", {name: [count * share, 0.0, 0] for name, count in samples.items()}, total)
        _print("folder", folders, total)
        _print(f"the {top} most expensive tests", dict(sorted(tests.items(), key=_cost)[:top]), total)


def _cost(row: tuple[str, Sequence[float]]) -> float:
    return -row[1][0] - row[1][1]


def _print(title: str, rows: dict[str, Any], total: float) -> None:
    print(f"\n{'seconds':>8} {'children':>8} {'share':>6} {'number':>7}  {title}")
    for name, (own, children, number) in sorted(rows.items(), key=_cost):
        print(f"{own + children:8.1f} {children:8.1f} {(own + children) / total:6.1%} {number or '':>7}  {name}")


def pytest_configure(config: pytest.Config) -> None:
    """Register the measurement; pytest loads this file as a plug-in in each process."""
    output = getattr(config, "workeroutput", None)
    if output is not None:
        config.pluginmanager.register(Worker(output.setdefault("times", {})))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=int, default=TOP, help="number of tests to list")
    given, arguments = parser.parse_known_args()
    table = Table()
    options = ["-q", "-n", "2", "--dist", "worksteal", "-p", "test_times"]
    status = pytest.main([*options, *arguments], plugins=[table])
    own, of_workers = processor_seconds()
    table.show(own + of_workers, own, given.top)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
