"""Multiplies in the cheaper order: products with one matrix per edge without making these matrices.

Edge-conditioned convolutions compute a matrix for each edge with a linear layer of its features:
`A_e = sum_f e_f W_f + B`. A row times that matrix, `x A_e = sum_f (e_f x) W_f + x B`, needs only rows of edges. The
same holds for the gradients of x, e, W and B. It saves memory of [num_edges, rows, columns] per layer in the forward
and in the backward pass, and the time to write and read it.

The rule looks at one operation and at the operations that made its operands, and replaces it by a function that gives
the same result, up to the order of sums. A simulated machine accounts for the original graph.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.expand import GraphWriter
from popgeo.capture.op_graph import Op, OpGraph
from popgeo.engine.fuse.def_use import SHOWS, DefUse, ref

_MM, _BMM = "aten.mm.default", "aten.bmm.default"
LEAST_PRODUCT = 2**16  # elements; smaller products are left alone
# A function that replaces an operation, the operands of the function, and a key of its other settings.
Replacement = tuple[Callable[..., Any], Sequence[int], Any]


def reassociate(graph: OpGraph) -> OpGraph:
    """Return the graph with each expensive product replaced by a cheaper function."""
    uses = DefUse(graph)
    found = [without_edge_matrices(uses, op) for op in graph.ops]
    if not any(found):
        return graph
    writer = GraphWriter(graph)
    for op, replacement in zip(graph.ops, found, strict=True):
        if replacement is None:
            writer.add(op)
        else:
            writer.put(op, *replacement)
    return writer.graph()


def without_edge_matrices(uses: DefUse, op: Op) -> Replacement | None:
    """Return the replacement of a product with a matrix per edge, or of one of its gradients; None for other ops."""
    if op.target == _BMM:
        return _row_times_matrix(uses, op)
    if op.target == _MM:
        return _gradient(uses, op)
    if op.target != "aten.sum.dim_IntList" or op.args[1:] != ([0], True):
        return None
    outer = _outer_products(uses, ref(op.args[0]))
    return None if outer is None else (bias_gradient, outer[:2], "bias")


def _row_times_matrix(uses: DefUse, op: Op) -> Replacement | None:
    """Return the replacement of `bmm(x, A)` or `bmm(x, A.transpose(1, 2))` for a row x per edge."""
    values, (rows, matrices) = uses.graph.values, map(ref, op.args)
    whole = _transposed(uses, matrices)
    v = matrices if whole is None else whole
    shape, layer = values[v].shape, uses.maker(uses.shown(v), "aten.addmm.default", _MM)
    if values[rows].shape[1] != 1 or layer is None or layer.kwargs or not _only_multiply_rows(uses, layer.makes()[0]):
        return None
    *bias, features, turned = map(ref, layer.args)
    weight = uses.untransposed(turned)
    is_layer = values[layer.makes()[0]].shape == (shape[0], shape[1] * shape[2])
    if weight is None or not is_layer or not _is_gain(values[features].shape[1], shape):
        return None
    function = rows_times_matrices if whole is None else rows_times_transposed
    return partial(function, sizes=shape[1:]), (rows, features, weight, *bias), (function, shape, len(bias))


def _only_multiply_rows(uses: DefUse, v: int) -> bool:
    """Check that all readers of the matrices are products with a row per edge, so the matrices can be dropped."""
    values = uses.graph.values
    for op in map(uses.graph.ops.__getitem__, uses.users.get(v, ())):
        if op.target in (*SHOWS, "aten.transpose.int"):
            fits = _only_multiply_rows(uses, op.makes()[0])
        else:
            fits = op.target == _BMM and ref(op.args[1]) == v and values[ref(op.args[0])].shape[1] == 1
        if not fits:
            return False
    return v not in uses.returned


def _gradient(uses: DefUse, op: Op) -> Replacement | None:
    """Return the replacement of the gradient of the layer's features or weight."""
    a, b = map(ref, op.args)
    turned = uses.untransposed(a)
    outer = _outer_products(uses, a if turned is None else turned)
    if outer is None or not _is_gain(uses.graph.values[b].shape[1], outer[2]):
        return None
    rows, columns, shape = outer
    function = features_gradient if turned is None else weight_gradient
    return partial(function, sizes=shape[1:]), (rows, columns, b), (function, shape)


def _outer_products(uses: DefUse, v: int) -> tuple[int, int, Sequence[int]] | None:
    """Return the factors and the shape of the outer products in a value [num_edges, rows * columns]; None otherwise.

    The gradient of the matrix of an edge is the outer product of its row x and the gradient of `x A_e`.
    """
    product, values = uses.maker(uses.shown(v), _BMM), uses.graph.values
    if product is None:
        return None
    (left, right), shape = map(ref, product.args), values[product.makes()[0]].shape
    is_outer = values[left].shape[2] == 1 and values[v].shape == (shape[0], shape[1] * shape[2])
    return (left, right, shape) if is_outer and math.prod(shape) >= LEAST_PRODUCT else None


def _is_gain(num_features: int, shape: Sequence[int]) -> bool:
    """Return whether rows scaled by each feature take less memory than the matrices."""
    return num_features <= min(shape[1:]) and math.prod(shape) >= LEAST_PRODUCT


def _transposed(uses: DefUse, v: int) -> int | None:
    """Return the original matrices if a value has their transposes, edge by edge; None otherwise."""
    op = uses.maker(v, "aten.transpose.int")
    return ref(op.args[0]) if op is not None and sorted(d % 3 for d in op.args[1:]) == [1, 2] else None


def rows_times_matrices(x: Tensor, features: Tensor, weight: Tensor, *bias: Tensor, sizes: Sequence[int]) -> Tensor:
    """Compute `bmm(x, linear(features, weight, bias).view(-1, *sizes))` for x of shape [num_edges, 1, sizes[0]]."""
    x = x.squeeze(1)
    made = torch.mm(_scaled(x, features), _by_feature(weight, sizes))
    return (torch.addmm(made, x, bias[0].view(*sizes)) if bias else made).unsqueeze(1)


def rows_times_transposed(x: Tensor, features: Tensor, weight: Tensor, *bias: Tensor, sizes: Sequence[int]) -> Tensor:
    """Compute `rows_times_matrices` with transposed matrices, for x of shape [num_edges, 1, sizes[1]]."""
    x = x.squeeze(1)
    made = (_products(x, weight, sizes) * features.unsqueeze(2)).sum(1)
    return (torch.addmm(made, x, bias[0].view(*sizes).t()) if bias else made).unsqueeze(1)


def weight_gradient(x: Tensor, grad: Tensor, features: Tensor, sizes: Sequence[int]) -> Tensor:
    """Compute `bmm(x, grad).flatten(1).t() @ features`; x: [num_edges, sizes[0], 1], grad: [num_edges, 1, sizes[1]]."""
    made = torch.mm(_scaled(x.squeeze(2), features).t(), grad.squeeze(1))
    return made.view(features.shape[1], -1).t().contiguous()


def features_gradient(x: Tensor, grad: Tensor, weight: Tensor, sizes: Sequence[int]) -> Tensor:
    """Compute `bmm(x, grad).flatten(1) @ weight` for x and grad as in `weight_gradient`."""
    return (_products(grad.squeeze(1), weight, sizes) * x.view(-1, 1, sizes[0])).sum(2)


def bias_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Compute `bmm(x, grad).flatten(1).sum(0, keepdim=True)` for x and grad as in `weight_gradient`."""
    return torch.mm(x.squeeze(2).t(), grad.squeeze(1)).view(1, -1)


def _scaled(rows: Tensor, features: Tensor) -> Tensor:
    """Return each row times each feature of its edge: [num_edges, features * columns]."""
    return (features.unsqueeze(2) * rows.unsqueeze(1)).view(rows.shape[0], -1)


def _products(rows: Tensor, weight: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return rows of sizes[1] numbers times the transposed matrix of each feature: [num_edges, features, sizes[0]]."""
    return torch.mm(rows, _by_feature(weight, sizes).t()).view(-1, weight.shape[1], sizes[0])


def _by_feature(weight: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return a layer's weight [rows * columns, features] as [features * rows, columns], a matrix per feature."""
    return weight.t().contiguous().view(-1, sizes[1])
