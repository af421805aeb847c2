"""Faults that can be put into a file of Python: what each changes, and the file's code with one of them in it."""

import ast
import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
# Of `zip` an assertion; of a field, a warning and whatever takes long, how it looks.
ONLY_CHECKED_OR_SHOWN = ("strict", "repr", "stacklevel", "progress_bar", "show_progress")
NOT_BEHAVIOUR = ("__repr__", "_repr_html_", "describe")  # how things look has tests of its own, which compare texts
ANY_NUMBER_SERVES = ("manual_seed",)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One change of one node, found again by its place among the nodes of the file.

    Attributes:
        path: The file.
        node: Which of the file's nodes, in the order of `ast.walk`.
        line: Line of the change.
        function: The innermost function round it, as Python calls it (`Batch.to.<locals>.move`); empty outside of any.
        before: What stands there.
        after: What stands there with the fault.
    """

    path: Path
    node: int
    line: int
    function: str
    before: str
    after: str


def faults_of(path: Path) -> list[Fault]:
    """Every fault that `change` knows for the file."""
    tree = ast.parse(path.read_text())
    functions, left_alone = _places(tree)
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in left_alone or not isinstance(node, ast.expr | ast.stmt):
            continue
        changed = change(node)
        if changed is None:
            continue
        before, after = (ast.unparse(part).partition("\n")[0] for part in (node, changed))
        if before == after:  # the changed part stands below the first line
            continue
        line, function = node.lineno, functions.get(id(node), "")
        found.append(Fault(path=path, node=number, line=line, function=function, before=before, after=after))
    return found


def code_with(fault: Fault) -> ast.Module:
    """The file's syntax tree with the fault in it."""
    tree = ast.parse(fault.path.read_text())
    target = list(ast.walk(tree))[fault.node]
    changed = change(target)
    assert changed is not None
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, changed)
            elif isinstance(value, list) and any(item is target for item in value):
                value[:] = [changed if item is target else item for item in value]
    return ast.fix_missing_locations(tree)


def change(node: ast.AST) -> ast.expr | ast.stmt | None:
    """The node with its fault, or None where there is nothing to change."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operation, *_]) if type(operation) in COMPARISONS:
            changed.ops[0] = COMPARISONS[type(operation)]()
        case ast.BinOp(op=operation) if type(operation) in ARITHMETIC and not _is_text(changed):
            changed.op = ARITHMETIC[type(operation)]()
        case ast.BoolOp(op=ast.And()):
            changed.op = ast.Or()
        case ast.BoolOp(op=ast.Or()):
            changed.op = ast.And()
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            changed = operand
        case ast.Constant(value=bool() as value):
            changed.value = not value
        case ast.Constant(value=int() as value):
            changed.value = value + 1
        case ast.Constant(value=float() as value):
            changed.value = 2 * value + 1
        case ast.If(body=[ast.Raise()], orelse=[]):
            changed.test = ast.Constant(False)
        case ast.If(test=test) | ast.IfExp(test=test):
            changed.test = ast.UnaryOp(ast.Not(), test)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            changed = ast.copy_location(ast.Pass(), node)
        case _:
            return None
    return changed


def _is_text(node: ast.BinOp) -> bool:
    """Whether the operation puts text together, which says nothing of what the code does."""
    sides = (node.left, node.right)
    return any(isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str) for side in sides)


def _places(tree: ast.Module) -> tuple[dict[int, str], set[int]]:
    """The name of the function round each node, and the nodes that hold no behaviour."""
    functions: dict[int, str] = {}
    left_alone: set[int] = set()
    for node, name in _named(tree, ""):  # outer functions come before the inner ones, which overwrite them
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions |= {id(part): name for statement in node.body for part in ast.walk(statement)}
            if node.name in NOT_BEHAVIOUR:
                left_alone |= {id(part) for part in ast.walk(node)}
    for node in ast.walk(tree):
        left_alone |= {id(part) for whole in _silent_parts(node) for part in ast.walk(whole)}
    return functions, left_alone


def _named(node: ast.AST, within: str) -> Iterator[tuple[ast.AST, str]]:
    """Every function and class below the node with its qualified name, the outer ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child, within + child.name
            inside = "." if isinstance(child, ast.ClassDef) else ".<locals>."
            yield from _named(child, within + child.name + inside)
        else:
            yield from _named(child, within)


def _silent_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Types, decorators, texts, what words an error or is asserted, seeds, and keywords that only check or show."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        yield from (part for part in (node.returns, *node.decorator_list) if part is not None)
        yield from (one.annotation for one in arguments if one is not None and one.annotation is not None)
    elif isinstance(node, ast.ClassDef):
        yield from node.decorator_list
    elif isinstance(node, ast.keyword) and node.arg in ONLY_CHECKED_OR_SHOWN:
        yield node
    elif isinstance(node, ast.AnnAssign):
        yield node.annotation
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ANY_NUMBER_SERVES:
        yield from node.args
    elif isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
        yield node
    for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
        if isinstance(body, list) and body and isinstance(body[-1], ast.Raise):
            yield from itertools.takewhile(lambda part: isinstance(part, ast.Assign), reversed(body[:-1]))
