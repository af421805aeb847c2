"""Products of rows that edges take from a table, taken before the edges take them: nodes are fewer than edges.

`cat([x[i], x[j], e], 1) @ W` is `(x @ W1)[i] + (x @ W2)[j] + e @ W3`. Backward, what edges have for a row of the table
is summed before it is multiplied, for the gradient of the weight as for that of the table.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op
from popgeo.engine.fuse.def_use import SHOWS, DefUse, ref
from popgeo.engine.fuse.message_sums import GATHERS, SCATTERS, is_zero, rows_of

LEAST_PRODUCT = 2**16  # elements from which on an operand is worth a look

# What to run in the place of an operation, the values that it is given, and what else it depends on.
Instead = tuple[Callable[..., Any], Sequence[int], Any]
_Columns = tuple[tuple[int, bool], ...]  # how many a part has, and whether edges take it from a table


@dataclass(frozen=True)
class _Part:
    """Columns of rows of edges; without an index they are the edges' own."""

    rows: int
    index: int | None
    width: int


def before_rows_are_taken(uses: DefUse, op: Op) -> Instead | None:
    """What does the work of a product of such rows, or of a gradient of one, with a product of fewer rows."""
    if op.target in SCATTERS:
        return _product_of_sums(uses, op)
    if op.target not in ("aten.mm.default", "aten.addmm.default") or op.kwargs:
        return None
    *bias, a, b = map(ref, op.args)
    grad = uses.untransposed(a)
    parts = _parts(uses, a if grad is None else b)
    if not parts or (grad is not None and bias):
        return None
    columns: _Columns = tuple((part.width, part.index is not None) for part in parts)
    given = [part.rows for part in parts] + [part.index for part in parts if part.index is not None]
    if grad is not None:
        return partial(taken_rows_gradient, columns=columns), (grad, *given), ("gradient", columns)
    function = partial(taken_rows_product, columns=columns, has_bias=bool(bias))
    return function, (*bias, b, *given), ("product", columns, len(bias))


def _parts(uses: DefUse, v: int) -> list[_Part]:
    """What lies beside one another in rows of edges; nothing where no table is so much smaller that it is a gain."""
    values, shape = uses.graph.values, uses.graph.values[v].shape
    v = uses.shown(v)
    beside = uses.maker(v, "aten.cat.default")
    is_beside = beside is not None and (*beside.args, 0)[1] in (-1, len(values[v].shape) - 1)
    parts = [_part(uses, part) for part in (map(ref, beside.args[0]) if beside is not None and is_beside else (v,))]
    if sum(part.width for part in parts) != shape[-1] or math.prod(shape) < LEAST_PRODUCT:
        return []
    cost = sum(part.width * values[part.rows].shape[0] for part in parts)
    return parts if 5 * cost < 4 * math.prod(shape) else []


def _part(uses: DefUse, v: int) -> _Part:
    values, taken = uses.graph.values, uses.maker(uses.shown(v), *GATHERS)
    width = math.prod(values[v].shape[1:])
    if taken is not None:
        table, made = ref(taken.args[0]), values[taken.makes()[0]].shape
        if taken.args[1] in (0, -len(made)) and uses.is_plain(table) and made[:1] == values[v].shape[:1]:
            index = rows_of(uses, taken, made)
            if index is not None:
                return _Part(table, index, width)
    return _Part(v, None, width)


def _product_of_sums(uses: DefUse, op: Op) -> Instead | None:
    values, (base, summed), (made,) = uses.graph.values, map(ref, op.args[::3]), op.makes()
    shape, sizes = values[summed].shape, values[made].shape
    if values[summed].numel < LEAST_PRODUCT or not sizes or 5 * sizes[0] > 4 * shape[0] or not is_zero(uses, base):
        return None
    by_rows = op.args[1] in (0, -len(shape)) and op.kwargs.get("alpha", 1) == 1
    index = rows_of(uses, op, shape) if by_rows else None
    if index is None:
        return None
    cut = uses.maker(uses.shown(summed), "aten.slice.Tensor")
    v = uses.shown(summed if cut is None else ref(cut.args[0]))
    product = uses.maker(v, "aten.mm.default")
    if product is None or uses.untransposed(ref(product.args[0])) is not None or not _only_summed(uses, v):
        return None
    width = values[v].shape[1]
    first, last = (0, width) if cut is None else (cut.args[2], min(cut.args[3], width))
    is_columns = cut is None or cut.args[1] in (-1, len(values[ref(cut.args[0])].shape) - 1)
    if not is_columns or last - first != math.prod(shape[1:]):
        return None
    grad, weight = map(ref, product.args)
    if _parts(uses, grad):  # it is of few rows already; and many equal rows, summed first, would lose digits
        return None
    return partial(product_of_sums, columns=(first, last), sizes=sizes), (grad, weight, index), (first, last, sizes)


def _only_summed(uses: DefUse, v: int) -> bool:
    """Whether nothing needs a product, or columns of it, but sums at rows."""
    for op in map(uses.graph.ops.__getitem__, uses.users.get(v, ())):
        shows = op.target in SHOWS or op.target == "aten.slice.Tensor"
        if not (_only_summed(uses, op.makes()[0]) if shows else op.target in SCATTERS and ref(op.args[3]) == v):
            return False
    return v not in uses.returned


def taken_rows_product(*tensors: Tensor, columns: _Columns, has_bias: bool) -> Tensor:
    """`cat([x[index], ...], 1) @ weight [+ bias]`, given the bias, the weight, all x and the indices."""
    weight, products = tensors[has_bias], []
    for rows, index, first, last in _split(tensors[1 + has_bias :], columns):
        product = torch.mm(rows, weight[first:last])
        products.append(product if index is None else product.index_select(0, index))
    return sum(products[1:], products[0]) + tensors[0] if has_bias else sum(products[1:], products[0])


def taken_rows_gradient(grad: Tensor, *tensors: Tensor, columns: _Columns) -> Tensor:
    """`grad.t() @ cat([x[index], ...], 1)`."""
    made = []
    for rows, index, _, _ in _split(tensors, columns):
        made.append(torch.mm((grad if index is None else _sums(grad, index, rows.shape[0])).t(), rows))
    return torch.cat(made, 1)


def product_of_sums(
    grad: Tensor, weight: Tensor, index: Tensor, columns: tuple[int, int], sizes: Sequence[int]
) -> Tensor:
    """The sums of `(grad @ weight)[:, columns]` at the rows of a table of these sizes."""
    return torch.mm(_sums(grad, index, sizes[0]), weight[:, slice(*columns)]).view(*sizes)


def _sums(grad: Tensor, index: Tensor, num_rows: int) -> Tensor:
    return grad.new_zeros(num_rows, grad.shape[1]).index_add(0, index, grad)


def _split(tensors: Sequence[Tensor], columns: _Columns) -> list[tuple[Tensor, Tensor | None, int, int]]:
    """The rows of each part, the index that edges take them by, and the columns that they fill."""
    indices, first, found = iter(tensors[len(columns) :]), 0, []
    for rows, (width, is_taken) in zip(tensors, columns, strict=False):
        found.append((rows.view(-1, width), next(indices) if is_taken else None, first, first + width))
        first += width
    return found
