"""The allowed imports between folders, the order of the folders in `ipu`, and the absence of circles."""

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "popgeo"

GROUND = {
    "native",
    "plots",
    "datasets",
    "command_parsers",
    "command_line",
    "progress",
    "quantity",
    "atomic_write",
    "folder_lock",
    "forked",
    "replaced",
    "plain_surroundings",
    "filter_choice",
    "largest_graph",
    "byte_block",
    "sealed_file",
    "torch_archive",
    "random_numbers",
    "did_you_mean",
    "elements",
    "extension_path",
    "lazy_names",
}
MAY_IMPORT = {
    **{name: set() for name in GROUND},
    "command_parsers": {"command_line"},
    "sealed_file": {"atomic_write"},
    "torch_archive": {"sealed_file"},
    "datasets": {"progress"},
    "extension_path": {"replaced"},
    "extensions": {"capture", "command_line", "extension_path", "native", "ops", "random_numbers", "sampling"},
    "capture": {"progress", "sealed_file", "torch_archive", "forked", "replaced", "plain_surroundings"},
    "folder_lock": {"atomic_write"},
    "native": {"forked"},
    "packing": {"native", "progress", "random_numbers"},
    "sampling": {"native", "progress", "random_numbers"},
    "ops": {"native", "random_numbers"},
    "data": {
        "native",
        "packing",
        "progress",
        "atomic_write",
        "folder_lock",
        "did_you_mean",
        "largest_graph",
        "lazy_names",
    },
    "nn": {"ops", "did_you_mean", "elements", "filter_choice", "largest_graph", "lazy_names"},
    "engine": {
        "capture",
        "ops",
        "progress",
        "native",
        "torch_archive",
        "byte_block",
        "did_you_mean",
        "filter_choice",
        "forked",
        "largest_graph",
        "plain_surroundings",
        "quantity",
        "replaced",
    },
    "convert": {"data", "elements", "progress", "command_line", "command_parsers", "lazy_names", "replaced"},
    "loader": {
        "data",
        "packing",
        "sampling",
        "byte_block",
        "random_numbers",
        "did_you_mean",
        "largest_graph",
        "lazy_names",
        "plain_surroundings",
    },
    "ipu": {"atomic_write", "capture", "engine", "plots", "did_you_mean", "filter_choice", "quantity"},
    "potentials": {
        "capture",
        "command_line",
        "convert",
        "data",
        "deploy",
        "engine",
        "loader",
        "native",
        "nn",
        "ops",
        "packing",
    },
    "deploy": {
        "atomic_write",
        "command_line",
        "command_parsers",
        "convert",
        "data",
        "elements",
        "loader",
        "nn",
        "ops",
        "engine",
        "capture",
        "packing",
        "progress",
        "did_you_mean",
        "lazy_names",
        "sealed_file",
        "torch_archive",
        "forked",
        "plain_surroundings",
    },
}
MAY_IMPORT_EVERYTHING = {
    "__init__",
    "__main__",
    "compare_command",
    "demo",
    "inspect_command",
    "step_memory",
    "testing",
    "train",
    "lightning",
    "compat",
}
# Inside `ipu`, a folder imports only from folders of lower rank. All public modules have the highest rank.
RANK = {
    "target": 0, "stage_choices": 1, "options": 2, "cost": 3, "tiles": 4, "step_cost": 5, "report": 6, "systems": 7
}  # fmt: skip
DOORS = 8
LARGEST_SHARE, MOST_ROOMS_OF_THE_MACHINE = 0.35, 13

SOURCES = sorted(PACKAGE.rglob("*.py"))
FILES = [path for path in SOURCES if path.name != "__init__.py"]
FACES = [path for path in SOURCES if path.name == "__init__.py"]


def name_of(path: Path) -> str:
    """Return a file's dotted name; for `__init__.py`, the name of its folder."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(path: Path) -> str:
    """Return the folder, or the file at the top level, that a source file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


# Several tests read the same file.
text_of = functools.cache(Path.read_text)
parsed = functools.cache(ast.parse)


@functools.cache
def imports(source: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the import statements of a source text, in any block."""
    found, blocks = [], [parsed(source)]
    for block in blocks:  # the loop appends inner blocks; expressions contain no statement
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            for node in getattr(block, part, ()):
                (found if isinstance(node, ast.Import | ast.ImportFrom) else blocks).append(node)
    return tuple(found)


def imported_modules(path: Path, source: str) -> Iterator[str]:
    """Yield every imported name of the source text at `path`, in any block, relative names as absolute names."""
    package = ["popgeo", *path.relative_to(PACKAGE).parts[:-1]]
    for node in imports(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            start = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@functools.cache
def handed_on() -> dict[str, str]:
    """Return the re-exported names of all faces: the public name, and the name in its file."""
    found = {}
    for face in FACES:
        for node in imports(text_of(face)):
            if isinstance(node, ast.ImportFrom):
                found |= {f"{name_of(face)}.{a.asname or a.name}": f"{node.module}.{a.name}" for a in node.names}
    return found


def own_faces(path: Path, source: str) -> set[str]:
    """Return the faces of a file's own folders that the file imports, which would be a circular import."""
    parts = name_of(path).split(".")
    above = {".".join(parts[:n]) for n in range(2, len(parts))}
    names = {*imported_modules(path, source)}
    through = {name for name in names & {*handed_on()} if name.rpartition(".")[0] in above}
    return above & names | through


def forbidden_parts(path: Path, source: str) -> set[str]:
    """Return the folders of popgeo that a source file imports although the table forbids it."""
    parts = {name.split(".")[1] for name in imported_modules(path, source) if name.startswith("popgeo.")}
    return parts - MAY_IMPORT[part_of(path)] - {part_of(path)}


def rooms_above(path: Path, source: str) -> set[str]:
    """Return the folders of `ipu` that a file in `ipu` imports although their rank is not lower."""
    room = path.relative_to(PACKAGE / "ipu").parts[0].removesuffix(".py")
    rank = RANK.get(room, DOORS)
    names = {name.split(".")[2] for name in imported_modules(path, source) if name.startswith("popgeo.ipu.")}
    return {other for other in names - {room} if rank != DOORS and RANK.get(other, DOORS) >= rank}


def arrows(sources: Mapping[str, tuple[Path, str]], faces: Mapping[str, str] | None = None) -> dict[str, set[str]]:
    """Return for each module its imported modules, also through faces; the longest known prefix of `a.b.c`."""
    found = {}
    for name, (path, source) in sources.items():
        targets = set()
        for imported in imported_modules(path, source):
            while faces is not None and imported in faces and faces[imported] != imported:
                imported = faces[imported]
            parts = imported.split(".")
            known = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
            targets.add(next((module for module in known if module in sources), ""))
        found[name] = targets - {"", name}
    return found


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the modules of a circle, in order; empty without a circle."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        ways = [iter([start])]
        while ways:
            step = next(ways[-1], None)
            if step is None:
                ways.pop()
                done.update(path[-1:])
                path = path[:-1]
            elif step in path:
                return [*path[path.index(step) :], step]
            elif step not in done:
                path.append(step)
                ways.append(iter(sorted(graph[step])))
    return []


def offenders(check: Callable[[Path, str], set[str]], paths: Iterable[Path]) -> dict[str, set[str]]:
    """Return the files with findings of a check, and the findings."""
    found = {str(path.relative_to(PACKAGE)): check(path, text_of(path)) for path in paths}
    return {path: wrong for path, wrong in found.items() if wrong}


def test_a_folder_imports_only_what_the_table_allows():
    assert offenders(forbidden_parts, [p for p in SOURCES if part_of(p) not in MAY_IMPORT_EVERYTHING]) == {}


def test_a_room_of_the_machine_imports_from_lower_ones_only():
    assert offenders(rooms_above, [p for p in FILES if part_of(p) == "ipu"]) == {}


def test_no_file_takes_part_in_a_circle():
    assert circle_in(arrows({name_of(path): (path, text_of(path)) for path in FILES}, handed_on())) == []


def test_a_file_does_not_import_the_face_of_its_own_folder():
    assert offenders(own_faces, FILES) == {}


def test_no_folder_is_most_of_the_house():
    lines: dict[str, int] = {}
    for path in PACKAGE.rglob("*"):
        if path.suffix in {".py", ".cpp", ".h", ".js", ".css"}:
            lines[part_of(path)] = lines.get(part_of(path), 0) + len(path.read_text().splitlines())
    assert max(lines.values()) <= LARGEST_SHARE * sum(lines.values()), lines
    rooms = {path.relative_to(PACKAGE / "ipu").parts[0] for path in SOURCES if part_of(path) == "ipu"} - {"__init__.py"}
    assert len(rooms) <= MOST_ROOMS_OF_THE_MACHINE, rooms


@pytest.mark.parametrize(
    "source",
    [
        "from popgeo.loader import FixedSizeDataLoader",
        "import popgeo.loader",
        "from ...loader import data_loader",
        "def late():\n    from popgeo.loader import FixedSizeDataLoader",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import popgeo.loader.shard",
    ],
)
def test_the_check_sees_a_forbidden_import(source: str):
    assert forbidden_parts(PACKAGE / "nn" / "models" / "schnet.py", source) == {"loader"}


def test_the_check_sees_an_arrow_that_runs_back_up():
    late = "def show(self):\n    from popgeo.ipu.report.text import text"
    assert rooms_above(PACKAGE / "ipu" / "cost" / "plan.py", late) == {"report"}
    assert rooms_above(PACKAGE / "ipu" / "report" / "text.py", "from popgeo.ipu.tile_exact import TileExact") == {
        "tile_exact"
    }
    assert not rooms_above(PACKAGE / "ipu" / "report" / "text.py", "from popgeo.ipu.cost import plan")


def test_the_check_sees_a_face_of_its_own_folder_and_a_circle_through_a_face():
    plan = PACKAGE / "ipu" / "cost" / "plan.py"
    assert own_faces(plan, "from popgeo import ipu") == {"popgeo.ipu"}
    assert own_faces(plan, "def late():\n    from popgeo.ipu import Options") == {"popgeo.ipu.Options"}
    assert own_faces(plan, "from popgeo.ipu.cost import gather") == set()
    sources = {
        "popgeo.a.x": (PACKAGE / "a" / "x.py", "from popgeo.b import thing"),
        "popgeo.b.y": (PACKAGE / "b" / "y.py", "import popgeo.a.x"),
    }
    assert circle_in(arrows(sources)) == []
    circle = circle_in(arrows(sources, {"popgeo.b.thing": "popgeo.b.y.thing"}))
    assert circle == ["popgeo.a.x", "popgeo.b.y", "popgeo.a.x"]


def test_the_check_sees_a_circle_through_a_function():
    sources = {
        "popgeo.a": (PACKAGE / "a.py", "def late():\n    from popgeo.b import thing"),
        "popgeo.b": (PACKAGE / "b.py", "import popgeo.c"),
        "popgeo.c": (PACKAGE / "c.py", "if TYPE_CHECKING:\n    from popgeo import a"),
        "popgeo.d": (PACKAGE / "d.py", "from popgeo import a"),
    }
    assert circle_in(arrows(sources)) == ["popgeo.a", "popgeo.b", "popgeo.c", "popgeo.a"]
    assert circle_in({"a": ["b", "c"], "b": ["c"], "c": []}) == []
