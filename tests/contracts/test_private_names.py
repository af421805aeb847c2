"""The table of all private names of other libraries that popgeo uses, and of all functions that it patches.

The table has the versions of each name. The test looks up each name, so that it reports a change upstream by name.
"""

import ast
import contextlib
import csv
import importlib
import pkgutil
import re
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
import torch_geometric.data
from torch_geometric.loader import DataLoader

from tests.conftest import REPOSITORY
from tests.contracts.test_imports import SOURCES, imports, parsed, text_of

TABLE = REPOSITORY / "tests" / "contracts" / "private_names.csv"
ROWS = {row["name"]: row for row in csv.DictReader(TABLE.read_text().splitlines())}
UPSTREAM = ("torch", "torch_geometric", "argparse", "sys")
SAMPLES = (
    torch.nn.BatchNorm1d(1),
    torch.zeros(1),
    torch.optim.Adam([torch.zeros(1)]),
    torch_geometric.data.Data(),
    torch_geometric.data.HeteroData(),
    DataLoader([torch_geometric.data.Data()]),
)


def is_private(name: str) -> bool:
    """Check whether a part of a dotted name begins with one underscore."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


# Attributes of the samples belong to other libraries, even if a class of popgeo has the same name.
THEIRS = {name for sample in SAMPLES for name in dir(sample) if is_private(name)}


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions, classes, variables and attributes that a source file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            yield getattr(node, "attr", None) or getattr(node, "id", "")


def names_of_others(source: str, ours: set[str]) -> set[str]:
    """Return private names of other libraries in a source text: dotted names, and `._name` for attributes.

    Patched functions are `module:path`; they may be public.
    """
    tree, found, origins = parsed(source), set(), {}
    for node in imports(source):
        for alias in node.names:
            full = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            if full.split(".")[0] in UPSTREAM:
                whole = isinstance(node, ast.ImportFrom) or alias.asname
                origins[alias.asname or alias.name.split(".")[0]] = full if whole else full.split(".")[0]
                found.add(full)

    def dotted(node: ast.AST) -> str:
        """Return the full name of an expression; empty if it does not belong to another library."""
        if isinstance(node, ast.Attribute):
            return f"{above}.{node.attr}" if (above := dotted(node.value)) else ""
        return origins.get(getattr(node, "id", ""), "")

    here, inner = {*defined(tree)}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node not in inner and (full := dotted(node)):
                inner.update(ast.walk(node.value))
                found.add(full)
            elif not dotted(node):
                of_popgeo = ours if node.attr not in THEIRS or getattr(node.value, "id", "") == "self" else here
                found |= set() if node.attr in of_popgeo else {f".{node.attr}"}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "replaced"):
            match node.args[:2]:
                case [holder, ast.Constant(value=str(name))] if dotted(holder) and node.func.id == "replaced":
                    found.add(f"{dotted(holder)}:{name}")
                case [_, ast.Constant(value=str(name))] if name not in (here if name in THEIRS else ours):
                    found.add(f".{name}")
        elif isinstance(node, ast.Tuple):
            match node.elts:
                case [ast.Constant(value=str(module)), ast.Constant(value=str(path))] if "." in module:
                    found |= {f"{module}:{path}"} if module.split(".")[0] in UPSTREAM else set()
    private = {name.removesuffix(".items").removesuffix(".get") for name in found if is_private(name) or ":" in name}
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def used() -> set[str]:
    """Return the names of other libraries that all files of popgeo use."""
    ours = {name for path in SOURCES for name in defined(parsed(text_of(path)))}
    return {name for path in SOURCES for name in names_of_others(text_of(path), ours)}


def look_up(name: str, expression: str) -> None:
    """Evaluate the table's expression for a name; without an expression, import the name."""
    if not expression:
        pkgutil.resolve_name(name.replace(":", "."))
        return
    root, *parts = re.match(r"[\w.]+", expression)[0].split(".")
    names = {root: importlib.import_module(root)}
    for depth in range(1, len(parts)):
        with contextlib.suppress(ImportError):  # a class is not a module
            importlib.import_module(".".join([root, *parts[:depth]]))
    eval(expression, names)


def test_the_table_has_every_private_or_patched_name_that_popgeo_uses_and_no_other():
    assert used() == {*ROWS}, f"{used() ^ {*ROWS}}: add a row with its versions and its use, or remove a row"


@pytest.mark.parametrize("name", ROWS)
def test_a_name_of_another_library_exists_in_the_installed_version(name: str):
    expression = ROWS[name]["looked up as"]
    if not find_spec(re.match(r"\w+", expression or name)[0]):
        pytest.skip("the library is not installed")
    look_up(name, expression)


def test_the_check_sees_imports_attributes_and_patches():
    source = """
import torch
from torch._C import _functorch as functorch
import torch_geometric.utils as utils

class Ours:
    _own = 1

def f(x, ours):
    functorch.peek()
    torch._C._one(x._version, ours._own, utils.scatter)
    replaced(torch.nn.Module, "forward", hasattr(x, "_theirs"))
    return ("torch.nn.modules", "_Norm.forward")
"""
    found = {"torch._C._functorch.peek", "torch._C._one", "._version", "._theirs"}
    found |= {"torch.nn.Module:forward", "torch.nn.modules:_Norm.forward"}
    assert names_of_others(source, {"_own"}) == found
    with pytest.raises(AttributeError, match="_gone"):
        look_up("torch._C._gone", "")
    with pytest.raises(AttributeError, match="_gone"):
        look_up("._gone", "torch.zeros(1)._gone")
