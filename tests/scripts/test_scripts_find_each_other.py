"""Scripts and benchmarks import names from each other that exist there."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = {
    path.stem: path for folder in ("scripts", "benchmarks", "examples") for path in (REPOSITORY / folder).glob("*.py")
}
TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}


def names_of(tree: ast.Module) -> set[str]:
    """Return the names that a file defines or imports at its top."""
    names = {alias.asname or alias.name for node in ast.walk(tree) for alias in getattr(node, "names", ())
             if isinstance(alias, ast.alias)}  # fmt: skip
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_script_imports_what_its_neighbors_have(name: str):
    found = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.ImportFrom) and node.module in FILES]
    missing = [{alias.name for alias in node.names} - names_of(TREES[str(node.module)]) for node in found]
    assert not any(missing), missing
