"""Puts faults into popgeo one at a time and prints the share that the tests catch, and which they do not.

    python scripts/mutate.py --faults 300                      # over data, packing, ops, engine and ipu/cost
    python scripts/mutate.py --faults 50 --folders popgeo/packing --seed 1
    python scripts/mutate.py --faults 9999 --folders popgeo/data/cut.py    # every fault of a file
    python scripts/mutate.py --faults 9999 --folders popgeo/data/cut.py --tests tests/data/test_cut.py    # by its tests
    python scripts/mutate.py --learn tests/data/test_cut.py    # tests that are new since the map was made

A fault is one change of one line: another comparison, a number one larger, a condition turned round, a statement left
out (`scripts/faults.py`). The tests run once to learn which of them enter which function, with their times; then each
fault meets the tests that enter its function, the quickest first, in a process of its own that ends at the first
failure (`scripts/meet_faults.py`). Only a test that fails counts, or a package that cannot be imported; what takes for
ever or crashes is printed apart. At the end the tests that caught something run without a fault: where one fails even
so, what it caught is not counted.

What survives is either equivalent to the original, or only a choice of speed, and then belongs with its reason into
`scripts/equivalent_faults.txt`; or it shows a test that is missing.

popgeo itself is not imported here, but in copies of this process.
"""

import argparse
import ast
import random
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import hypothesis.internal.constants_ast
import pytest
import scipy.optimize
import scipy.sparse.csgraph
import scipy.spatial
import scipy.stats
import torch_geometric.loader
from entered_functions import Entered, NoteEntered
from faults import Fault, faults_of
from matplotlib import pyplot
from meet_faults import PYTEST, Meetings, Outcome, Result, Told, Trial
from tqdm import tqdm

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "popgeo"
FOLDERS = ("popgeo/data", "popgeo/packing", "popgeo/ops", "popgeo/engine", "popgeo/ipu/cost")
TESTED = ("data", "packing", "ops", "engine", "ipu", "loader", "capture", "contracts", "testing", "nn", "compat")
NEEDS_A_GPU = REPOSITORY / "popgeo" / "ops" / "triton_kernels.py"  # its tests skip without one, and so it is left out
TESTS = (*FOLDERS[:4], "popgeo/ipu", *(f"tests/{folder}" for folder in TESTED))
EQUIVALENT = REPOSITORY / "scripts" / "equivalent_faults.txt"
IMPORTED_BEFORE = (torch_geometric.loader, pyplot, scipy, hypothesis)  # so that no copy of this process has to
CAUGHT = (Outcome.CAUGHT, Outcome.NO_IMPORT)


def learn(paths: Sequence[str], output: Path) -> Entered:
    """Runs the tests of files or folders once, in a copy of this process."""

    def run(trial: Trial) -> Told:
        noted = NoteEntered(REPOSITORY, PACKAGE)
        noted.begin()
        files = [str(REPOSITORY / path) for path in paths]
        options = ["--rootdir", str(REPOSITORY), f"--ignore={NEEDS_A_GPU}"]
        status = pytest.main([*PYTEST, *options, *files], plugins=[noted])
        if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            noted.entered().write(output / "learned.json")
        return Outcome.SURVIVED, None

    (output / "learned.json").unlink(missing_ok=True)
    trial = Trial(fault=None, tests=(), seconds=(3600,))
    Meetings(REPOSITORY, output, 1, lambda result: None).run([trial], run, "learn")
    if not (output / "learned.json").exists():
        sys.exit(f"The tests could not be run; see {output}/learn_0/log.")
    return Entered.read(output / "learned.json")


def trial_of(fault: Fault, entered: Entered, limit: float, only: Sequence[str] = ("",)) -> Trial:
    """The fault with the tests that enter its function, the quickest first, as many as fit into the limit.

    What takes effect while modules are imported meets all tests of its file, and those of the files that import it.
    Only tests whose names start with one of `only` count.
    """
    file = str(fault.path.relative_to(REPOSITORY))
    if not fault.function or (file, fault.function) in entered.imported:
        files = {file, *importers(fault.path)}
        found = {test for (path, _), tests in entered.tests.items() if path in files for test in tests}
        found |= {test for test in entered.seconds if test.partition("::")[0] in files}
    else:
        found = entered.tests.get((file, fault.function), set())
    found = {test for test in found if test.startswith(tuple(only))}
    chosen: list[str] = []
    total = 0.0
    for test in sorted(found, key=lambda test: entered.seconds[test]):
        total += entered.seconds[test]
        if total > limit and chosen:
            break
        chosen.append(test)
    return Trial(fault=fault, tests=chosen, seconds=[entered.seconds[test] for test in chosen])


@cache
def importers(path: Path) -> set[str]:
    """Files of the package and of its tests that import from one of the package."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    *within, last = parts[:-1] if parts[-1] == "__init__" else parts
    found = set()
    for name, tree in _sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (
                node.module == ".".join((*within, last))
                or (node.module == ".".join(within) and any(alias.name == last for alias in node.names))
            ):
                found.add(name)
    return found


@cache
def _sources() -> dict[str, ast.Module]:
    paths = [*PACKAGE.rglob("*.py"), *(REPOSITORY / "tests").rglob("*.py")]
    return {str(path.relative_to(REPOSITORY)): ast.parse(path.read_text()) for path in paths}


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


def meet(trials: Sequence[Trial], imported: set[tuple[str, str]], meetings: Meetings) -> list[Result]:
    """Tries each fault the quick way first, and again by importing where that may not show it."""

    def needs_import(trial: Trial) -> bool:
        assert trial.fault is not None
        function = trial.fault.function
        return not function or (str(trial.fault.path.relative_to(REPOSITORY)), function) in imported

    untested = [Result(trial=trial, outcome=Outcome.UNTESTED) for trial in trials if not trial.tests]
    tested = [trial for trial in trials if trial.tests]
    quick = [trial for trial in tested if trial.fault is not None and trial.fault.function]
    found = {result.trial: result for result in (meetings.quickly(quick) if quick else [])}
    again = [
        trial
        for trial in tested
        if trial not in found
        or found[trial].outcome is Outcome.NEEDS_IMPORT
        or (found[trial].outcome not in CAUGHT and needs_import(trial))
    ]
    found |= {result.trial: result for result in meetings.importing(again)}
    return [*untested, *found.values()]


def without_a_fault(results: Sequence[Result], entered: Entered, meetings: Meetings) -> set[str]:
    """Which of the tests that caught something fail without a fault too."""
    tests = sorted({result.failed for result in results if result.outcome is Outcome.CAUGHT and result.failed})
    trials = [Trial(fault=None, tests=[test], seconds=[entered.seconds[test]]) for test in tests]
    control = meetings.quickly(trials) if trials else []
    return {result.trial.tests[0] for result in control if result.outcome is not Outcome.SURVIVED}


def report(results: Sequence[Result], doubtful: set[str], seed: int) -> str:
    """Every fault that nothing caught, and how many of each kind there were."""
    equivalent = equivalent_faults()
    lines, counts = [], Counter[str]()
    for result in sorted(results, key=lambda result: (result.trial.fault.path, result.trial.fault.line)):  # type: ignore[union-attr]
        fault = result.trial.fault
        assert fault is not None
        text = f"{fault.path.relative_to(REPOSITORY)}:{fault.line}: {fault.before}  ->  {fault.after}"
        listed = named(fault) in equivalent
        kind = "doubtful" if result.failed in doubtful else result.outcome.value
        if listed and result.outcome not in CAUGHT:
            kind = "equivalent"
        elif result.outcome not in CAUGHT or kind == "doubtful":
            lines.append(f"{text}  [{kind}]")
        elif listed:
            lines.append(f"{text}  [listed as equivalent, but caught by {result.failed}]")
        counts[kind] += 1
    caught = sum(counts[outcome.value] for outcome in CAUGHT)
    counted = len(results) - counts["equivalent"]
    kinds = ", ".join(f"{number} {kind}" for kind, number in counts.most_common())
    share = f"caught of the {counted} that are not equivalent: {caught} ({caught / max(1, counted):.1%}; goal: 95 %)"
    return "\n".join([*lines, f"{len(results)} faults, seed {seed}: {kinds}", share])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=300, help="how many faults, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="folders or files where the faults are put")
    parser.add_argument("--jobs", type=int, default=2, help="faults tried at once")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of tests that one fault meets at most")
    parser.add_argument("--map", type=Path, default=REPOSITORY / "build" / "entered.json", help="kept between runs")
    parser.add_argument("--learn", nargs="+", default=(), help="tests to run for the map before, which it keeps")
    parser.add_argument("--tests", nargs="+", default=("",), help="folders or files of tests to meet, and no others")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "faults", help="folder for the logs")
    given = parser.parse_args()
    if sys.version_info < (3, 11):
        parser.error("functions carry their qualified names since Python 3.11; use that or a later one")
    paths = [
        path for name in given.folders for path in sorted((REPOSITORY / name).rglob("*.py")) or [REPOSITORY / name]
    ]
    every = [fault for path in paths if path != NEEDS_A_GPU for fault in faults_of(path)]
    if not every:
        parser.error(f"no file of {', '.join(given.folders)} holds anything to change")
    drawn = random.Random(given.seed).sample(every, min(given.faults, len(every)))
    if not given.map.exists() or given.learn:
        names = given.learn or TESTS
        print(f"learning which tests enter which function (kept in {given.map}): {', '.join(names)}", flush=True)
        learned = learn(names, given.output)
        (Entered.read(given.map).joined(learned) if given.map.exists() else learned).write(given.map)
    entered = Entered.read(given.map)
    hypothesis.internal.constants_ast.is_local_module_file = lambda path: False  # it reads every file in every copy
    trials = [trial_of(fault, entered, given.limit, given.tests) for fault in drawn]
    with tqdm(total=len(trials), desc="faults", disable=not sys.stderr.isatty()) as bar:
        meetings = Meetings(REPOSITORY, given.output, given.jobs, lambda result: bar.update())
        results = meet(trials, entered.imported, meetings)
    control = Meetings(REPOSITORY, given.output / "control", given.jobs, lambda result: None)
    doubtful = without_a_fault(results, entered, control)
    for test in sorted(doubtful):
        print(f"fails without a fault too: {test}")
    print(report(results, doubtful, given.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
