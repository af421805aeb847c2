"""Warnings about training loops that weight a sum or a mean by slots instead of real graphs."""

import ast
import linecache
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import FrameType

import torch

_COUNTS = {"num_graphs", "num_nodes", "num_edges", "batch_size"}
_KEEP = {"append", "update", "log"}
_MODELS = ("torch.nn.modules.module.", "torch_geometric.", "popgeo.")


def warn_of_counted_slots(name: str, real: str) -> None:
    """Warn if the code that reads a number of slots uses it in a sum, a product or a quotient.

    `total += float(loss) * batch.num_graphs` weights a mean by slots, padding included. Models, PyG and this package
    may compute with slots, because their shapes have that size. Code without a source file, such as a script from a
    pipe, never gets the warning.

    Args:
        name: The attribute that the caller of the calling function reads.
        real: The attribute without padding.
    """
    if torch.compiler.is_compiling() or _is_of_a_model(frame := sys._getframe(2)):
        return
    is_for_sum = (frame.f_lineno, name) in _reads_for_sums(frame.f_code.co_filename)
    if is_for_sum and not any(_is_of_a_model(caller) for caller, _ in traceback.walk_stack(frame)):
        what = real.rpartition("_")[2]
        warnings.warn(
            f"batch.{name} counts the slots of a batch, padding included, and goes into a sum or a mean. Use "
            f"batch.{real}, which counts real {what}; to count slots, write len(batch.{what}_mask).",
            stacklevel=3,
        )


@cache
def _reads_for_sums(filename: str) -> set[tuple[int, str]]:
    """Return the line and the attribute of each number of slots that a source file uses in a sum."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):  # for example a template of generated code
        return set()
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    reads = [node for node in parents if isinstance(node, ast.Attribute) and node.attr in _COUNTS]
    is_summed = partial(_goes_into_a_sum, parents=parents)
    return {(read.lineno, read.attr) for read in reads if any(map(is_summed, [read, *_variable(read, parents)]))}


def _variable(value: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Sequence[ast.AST]:
    """Return the reads of a variable that is assigned this value and no other value."""
    match parents[value]:
        case ast.Assign(targets=[ast.Name(id=name) as target]):
            scope = _scope_of(target, parents)
            same = [one for one in ast.walk(scope) if isinstance(one, ast.Name) and one.id == name]
            reads = [one for one in same if isinstance(one.ctx, ast.Load)]
            others = [one for one in same if one not in reads and one is not target]
            return [] if any(_scope_of(one, parents) is scope for one in others) else reads
    return []


def _goes_into_a_sum(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Check whether a value is added, multiplied, divided or stored for a sum."""
    parent = parents[node]
    match parent:
        case ast.BinOp(left=ast.Constant(value=int())) | ast.BinOp(right=ast.Constant(value=int())):
            return False  # 2 * num_graphs makes a shape
        case ast.AugAssign(op=ast.Add() | ast.Mult() | ast.Div()) | ast.BinOp(op=ast.Div()):
            return True
        case ast.BinOp(op=ast.Add() | ast.Mult()):
            return not _is_a_shape(parent, parents)
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in _KEEP and isinstance(parents[parent], ast.Expr)
        case ast.IfExp() | ast.keyword():
            return _goes_into_a_sum(parent, parents)
    return False


def _is_a_shape(product: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Check whether a sum or product of sizes is used as a shape: as an index, or in a call such as `torch.zeros`."""
    match parents[product]:
        case ast.Call(func=ast.Attribute(attr=method)):
            return method not in _KEEP
        case place:
            return isinstance(place, ast.Slice | ast.Subscript)


def _scope_of(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> ast.AST:
    while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
        node = parents[node]
    return node


def _is_of_a_model(frame: FrameType) -> bool:
    return f"{frame.f_globals.get('__name__')}.".startswith(_MODELS)
