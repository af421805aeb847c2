"""Which folder may import which: the table of the architecture, enforced on the source itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "popgeo"

MAY_IMPORT = {
    "native": set(),
    "datasets": set(),
    "plots": set(),
    "settings": set(),
    "packing": {"native"},
    "ops": {"native"},
    "data": {"native", "packing"},
    "loader": {"data", "packing"},
    "nn": {"ops"},
    "ipu": {"ops"},
}
MAY_IMPORT_EVERYTHING = {"__init__", "__main__", "testing"}
IPU_NOUNS = {
    *("target.py", "options.py", "op_graph.py", "structure.py", "compiled_step.py", "plan.py", "mapping.py"),
    *("memory_use.py", "program.py", "report.py"),
}
IPU_VERBS = {"compiler", "codelets", "engine", "stepper", "executor", "executable", "tile_exact"}


def part_of(path: Path) -> str:
    """The folder, or the file at the top level, that a source file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path, source: str) -> Iterator[str]:
    """Every module name that the source text at `path` imports, relative ones made absolute."""
    package = ["popgeo", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def forbidden_parts(path: Path, source: str) -> set[str]:
    """The folders of popgeo that a source file imports against the table."""
    parts = {name.split(".")[1] for name in imported_modules(path, source) if name.startswith("popgeo.")}
    return parts - MAY_IMPORT[part_of(path)] - {part_of(path)}


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if part_of(path) not in MAY_IMPORT_EVERYTHING)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_folder_imports_only_what_the_table_allows(path: Path):
    assert not forbidden_parts(path, path.read_text()), (
        f"{part_of(path)} may import {sorted(MAY_IMPORT[part_of(path)])}"
    )


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name in IPU_NOUNS], ids=lambda path: path.name)
def test_nouns_of_the_machine_import_no_verbs(path: Path):
    names = {
        part
        for name in imported_modules(path, path.read_text())
        if name.startswith("popgeo.ipu")
        for part in name.split(".")
    }
    assert not names & IPU_VERBS


@pytest.mark.parametrize(
    "source",
    ["from popgeo.loader import FixedSizeDataLoader", "import popgeo.loader", "from ..loader import fixed_size"],
)
def test_the_check_sees_a_forbidden_import(source: str):
    assert forbidden_parts(PACKAGE / "nn" / "schnet.py", source) == {"loader"}
