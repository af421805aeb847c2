"""Faults for mutation tests: the possible changes of a Python file, and its code with a change."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAIRS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
SWAPPED = ((ast.Add, ast.Sub), (ast.Sub, ast.Add), (ast.Mult, ast.FloorDiv), (ast.FloorDiv, ast.Mult))
ARITHMETIC = dict(SWAPPED) | {ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}
NOT_BEHAVIOUR = ("annotation", "returns", "decorator_list")  # fields of a node without effect on behaviour
HOW_THINGS_LOOK = ("__repr__", "_repr_html_", "describe")  # functions with their own tests of texts
ONLY_CHECKED_OR_SHOWN = (
    "strict",
    "repr",
    "stacklevel",
    "progress_bar",
    "show_progress",
)  # arguments without effect on results


@dataclass(frozen=True)
class Fault:
    """One change of one node of a file."""

    path: Path
    place: int  # index of the node among the nodes that `behaviour` finds in the file
    line: int
    function: str  # qualified name of the innermost function (`Batch.to.<locals>.move`); empty outside functions
    before: str
    after: str


def faults_of(path: Path) -> list[Fault]:
    """Return every fault that `change` makes in the file."""
    found = []
    for place, (node, function) in enumerate(behaviour(ast.parse(path.read_text()))):
        changed = change(node)
        if changed is not None:
            before, after = (ast.unparse(part).partition("\n")[0] for part in (node, changed))
            if before != after:  # the changed part may be below the first line
                found.append(Fault(path, place, node.lineno, function, before, after))
    return found


def code_with(fault: Fault) -> ast.Module:
    """Return the file's syntax tree with the fault."""
    tree = ast.parse(fault.path.read_text())
    target = [node for node, _ in behaviour(tree)][fault.place]
    changed = change(target)
    assert changed is not None
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, changed)
            elif isinstance(value, list):
                value[:] = [changed if item is target else item for item in value]
    return ast.fix_missing_locations(tree)


def behaviour(node: ast.AST, within: str = "", function: str = "") -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield every expression and statement below a node that affects behaviour, and its function.

    Qualified names of functions below the node begin with `within`; `function` is the innermost function so far.
    """
    for field, value in ast.iter_fields(node):
        inside, inner = within, function
        if field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside, inner = f"{within}{node.name}.<locals>.", within + node.name
        elif field == "body" and isinstance(node, ast.ClassDef):
            inside = f"{within}{node.name}."
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in NOT_BEHAVIOUR and not _is_silent(child):
                if isinstance(child, ast.expr | ast.stmt):
                    yield child, inner
                yield from behaviour(child, inside, inner)


def change(node: ast.AST) -> ast.expr | ast.stmt | None:
    """Return the changed node, or None if there is nothing to change."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operation, *_]) if type(operation) in COMPARISONS:
            changed.ops[0] = COMPARISONS[type(operation)]()
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in ARITHMETIC:
            if any(isinstance(getattr(side, "value", None), str) for side in (left, right)):
                return None  # concatenated text
            changed.op = ARITHMETIC[type(operation)]()
        case ast.BoolOp(op=operation):
            changed.op = ast.Or() if isinstance(operation, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return operand
        case ast.Constant(value=bool() | int() | float() as value):
            changed.value = not value if isinstance(value, bool) else value + 1
        case ast.If(body=[ast.Raise()], orelse=[]):
            changed.test = ast.Constant(False)
        case ast.If(test=test) | ast.IfExp(test=test):
            changed.test = ast.UnaryOp(ast.Not(), test)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return ast.copy_location(ast.Pass(), node)
        case _:
            return None
    return changed


def _is_silent(node: ast.AST) -> bool:
    """Check whether a node has no effect on behaviour."""
    if isinstance(node, ast.keyword):
        return node.arg in ONLY_CHECKED_OR_SHOWN
    looks = isinstance(node, ast.FunctionDef) and node.name in HOW_THINGS_LOOK
    return looks or isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert)  # messages, and impossible cases
