"""The size of the package: budgets of code lines for its parts, no duplicate names, no file too long or too short.

A code line is a line of Python or C++ that is not only a comment or a docstring, or a line of a table (`*.csv`).
Growth is a decision: a change that needs more lines names the mechanism that it replaces, or raises a number here with
the reason.
"""

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.contracts.test_imports import FILES, PACKAGE, SOURCES, arrows, name_of, parsed, text_of

# Parts with a separate budget; all other files are the core.
PLACES = {
    "compat": ("compat/",),
    "systems": ("ipu/systems/", "engine/pipeline/", "nn/parallel/"),
    "models": ("nn/models/",),
    "reach": ("potentials/", "deploy/"),
    "kit": ("testing/",),
    "train": ("train/", "lightning.py"),
}
# Round numbers, about 2 % above the present counts, so that a guest can add a model or an operation. The core has 1,800
# lines for kernels with torch's bits, since a step would otherwise return to Python for a third of its operations. The
# calculators have 130 lines for campaigns: two shapes that processes agree on, in place of one shape that grew often.
# The core has 730 lines for a GPU: interactions, extremes, softmax and neighbor searches in Triton, which has its own
# language, so only checks, plans and derivatives are shared with the processor's kernels; steps of several processes;
# and batches that are put together in page-locked memory.
# The potentials have 40 lines to make a batch without data, so that the memory of their steps is known before data are.
# The core has 250 lines so that nothing old is used silently: kept steps depend on all values that a model reads,
# loaders of a large graph notice values that were replaced, and loaders that feed a device check the graphs of a batch.
# The core has 1,300 more lines for PyG's extensions and their searches among points, which replace 200 lines of compat.
# The core has 90 lines for faults that random programs showed: transposed arguments, the order of draws on tiles,
# tensors without elements there, and errors in place of silent differences.
BUDGETS = {
    "core": 43_450,
    "compat": 3_270,
    "systems": 2_190,
    "models": 1_570,
    "reach": 3_660,
    "kit": 2_080,
    "train": 870,
}
ALL = 56_900
REMEDY = "A new mechanism names the one it replaces: take that out, or raise the budget here and say why."
LONGEST_FILE, SHORTEST_FILE_OF_ONE_USER = 350, 40
# An operation's cost and its lowering are found by one name.
MIRRORED = {"ipu/cost", "ipu/tiles/lower"}
# Names that were given twice before there was this test: each list may only shrink.
CLASSES_STILL_TWICE: set[str] = set()
FILES_STILL_TWICE: set[str] = set()


@functools.cache
def code_lines(source: str) -> int:
    """Count the lines of Python with code: no blank line, no comment, no docstring."""
    lines = {number for number, line in enumerate(source.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    documents: set[int] = set()
    nodes = [parsed(source)]
    for node in nodes:  # the loop appends the children that span several lines, or have no line
        nodes += [n for n in ast.iter_child_nodes(node) if getattr(n, "lineno", 0) != getattr(n, "end_lineno", 1)]
        if isinstance(node, ast.Constant | ast.JoinedStr):  # blank lines inside a text count
            lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            documents.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines - documents)


def lines_of_cpp(source: str) -> int:
    """Count the lines of C++ with code."""
    source = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment.group().count("\n"), source, flags=re.DOTALL)
    return sum(bool(line.split("//")[0].strip()) for line in source.splitlines())


def size_of(path: str, source: str) -> int:
    """Count the code lines of a file of Python or C++, or the lines of a table."""
    if path.endswith(".csv"):
        return len(source.splitlines())
    return code_lines(source) if path.endswith(".py") else lines_of_cpp(source)


def budget_of(path: str) -> str:
    """Return the part of the package that a file belongs to."""
    return next((part for part, places in PLACES.items() if path.startswith(places)), "core")


def over_budget(sources: Mapping[str, str]) -> list[str]:
    """Return a sentence for each part with more code lines than its budget."""
    counted: Counter[str] = Counter()
    for path, source in sources.items():
        counted[budget_of(path)] += size_of(path, source)
    counted["all"] = sum(counted.values())
    return [
        f"{part} has {counted[part]:,} code lines, {counted[part] - budget:,} over its budget of {budget:,}. {REMEDY}"
        for part, budget in (*BUDGETS.items(), ("all", ALL))
        if counted[part] > budget
    ]


def classes_given_twice(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Return public class names in several files, with the files; names in compat belong to other projects."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        if budget_of(path) != "compat":
            for node in parsed(source).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def files_named_twice(paths: list[str]) -> dict[str, list[str]]:
    """Return file names in several folders, except `__init__.py`, `__main__.py` and files of compat."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name not in {"__init__.py", "__main__.py"} and budget_of(path) != "compat":
            found[name].append(folder)
    return {name: folders for name, folders in found.items() if len(folders) > 1 and {*folders} != MIRRORED}


def too_long(sources: Mapping[str, str]) -> dict[str, int]:
    """Return files that are too long to read in one go, with their lengths."""
    lengths = {path: len(source.splitlines()) for path, source in sources.items()}
    return {path: length for path, length in lengths.items() if length > LONGEST_FILE}


def too_short(sources: Mapping[str, str]) -> list[str]:
    """Return short files that only one other file uses, so that they could be part of it.

    Files of compat have names of other projects, and each family of operations has its own files: these may be short.
    """
    modules = {name_of(PACKAGE / path): (PACKAGE / path, source) for path, source in sources.items()}
    targets = arrows(modules)
    users = Counter(target for found in targets.values() for target in found)
    return [
        name
        for name, (path, source) in modules.items()
        if len(source.splitlines()) < SHORTEST_FILE_OF_ONE_USER and users[name] == 1 and not _has_its_name(path)
    ]


def _has_its_name(path: Path) -> bool:
    """Check whether readers look for a file by its name, so that it cannot be part of another file."""
    place = path.relative_to(PACKAGE).as_posix()
    return budget_of(place) == "compat" or place.rpartition("/")[0] in MIRRORED


def texts(paths: list[Path]) -> dict[str, str]:
    """Return the sources of files by their path inside the package."""
    return {path.relative_to(PACKAGE).as_posix(): text_of(path) for path in paths}


def test_no_part_of_the_house_is_over_its_budget():
    counted = (path for suffix in ("py", "cpp", "h", "csv") for path in PACKAGE.rglob(f"*.{suffix}"))
    over = over_budget(texts(sorted(counted)))
    assert not over, "\n".join(over)


def test_no_two_classes_have_one_name():
    found = classes_given_twice(texts(SOURCES))
    assert found.keys() == CLASSES_STILL_TWICE, {name: found.get(name) for name in found.keys() ^ CLASSES_STILL_TWICE}


def test_no_two_rooms_have_a_file_of_one_name():
    found = files_named_twice([*texts(FILES)])
    assert found.keys() == FILES_STILL_TWICE, {name: found.get(name) for name in found.keys() ^ FILES_STILL_TWICE}


def test_no_file_is_longer_than_one_reads_in_one_go():
    assert too_long(texts(FILES)) == {}


def test_no_file_is_a_few_lines_for_one_other_file():
    assert too_short(texts(FILES)) == []


def test_only_code_is_counted():
    source = '"""A page."""\n\nimport math\n\n\n# A reason.\ndef area(r):\n    """Of a circle.\n\n    Two lines."""\n'
    assert code_lines(source + "    return (\n        math.pi\n        * r**2\n    )\n") == 6
    assert code_lines('text = """two\n\nlines"""\n') == 3
    assert lines_of_cpp("/* a\n   reason */\nint x;  // why\n// only this\n\nint y;\n") == 2
    assert size_of("elements.csv", "name,mass\nH,1.008\n") == 2


def test_the_check_says_which_part_is_over_and_by_how_much():
    line = "x = 1\n"
    models, systems = BUDGETS["models"], BUDGETS["systems"]
    within = {"nn/models/schnet.py": line * models, "data/batch.py": line * 1_536}
    assert over_budget(within) == []
    (over,) = over_budget(within | {"nn/models/gcn.py": line * 12})
    assert over.startswith(
        f"models has {models + 12:,} code lines, 12 over its budget of {models:,}. A new mechanism names"
    )
    (over,) = over_budget(
        {"engine/pipeline/replay.py": line * 2_000, "nn/parallel/linear.py": line * (systems - 1_999)}
    )
    assert over.startswith(f"systems has {systems + 1:,} code lines, 1 over")
    core, over = over_budget({"ops/part.py": line * ALL, "compat/a.py": line})
    assert core.startswith("core has ")
    assert over.startswith("all has ")


def test_the_check_sees_a_class_of_the_same_name():
    cut, other = {"data/cut.py": "class Cut: ..."}, {"nn/parallel/shard_model.py": "class Cut: ...\nclass _Cut: ..."}
    assert classes_given_twice(cut | other) == {"Cut": ["data/cut.py", "nn/parallel/shard_model.py"]}
    others_name = {"compat/poptorch/blocks.py": "class Cut: ...", "ops/rows.py": "class _Cut: ..."}
    assert classes_given_twice(cut | others_name) == {}


def test_the_check_sees_a_file_of_the_same_name():
    assert files_named_twice(["ipu/cost/gather.py", "ipu/tiles/lower/gather.py", "data/cut.py"]) == {}
    assert files_named_twice(["ipu/cost/rows.py", "ipu/tiles/lower/rows.py", "ops/rows.py"]) == {
        "rows.py": ["ipu/cost", "ipu/tiles/lower", "ops"]
    }
    assert files_named_twice(["data/cut.py", "compat/poptorch/cut.py", "__main__.py", "compat/__main__.py"]) == {}


def test_the_check_sees_a_file_that_is_too_long_or_too_short():
    line = "x = 1\n"
    assert too_long({"ops/first.py": line * 350, "ops/second.py": line * 351}) == {"ops/second.py": 351}
    user = "from popgeo.ops.first import x\n"
    short = {"ops/first.py": line * 39, "ops/second.py": user}
    assert too_short(short) == ["popgeo.ops.first"]
    assert too_short(short | {"ops/third.py": user}) == []
    assert too_short(short | {"ops/first.py": line * 40}) == []
    family = {"ipu/cost/sorting.py": line, "ops/second.py": "from popgeo.ipu.cost.sorting import x\n"}
    assert too_short(family) == []
