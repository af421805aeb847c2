"""Lowers gradients that are summed graph by graph, and the first rows of the graphs."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.engine.fuse.sums_by_graph import GRAPH_ROWS, GRAPH_SUM
from popgeo.engine.program.lower_products import words_of_product
from popgeo.engine.program.native_call import LOWERINGS, NativeCall, native_call


def lower_graph_rows(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall:
    """Return the native call that lists the first row of each graph."""
    ids, batch, count, each, is_padded = op.args
    owners, nodes, made = None if ids is None else tensors[ids.value], tensors[batch.value], tensors[op.makes()[0]]
    return native_call("popgeo_graph_rows", owners, nodes, made, count, len(nodes), each, is_padded)


def lower_graph_sum(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall:
    """Return the native call that adds up a gradient."""
    parts, first_rows = op.args
    out = tensors[op.makes()[0]]
    matrix = out.view(1, -1) if parts[0][0] is None else out.view(-1, out.shape[-1])
    one = torch.ones(1, 1, dtype=out.dtype)
    terms = []
    for pair in parts:
        left, right = (None if part is None else _matrix(tensors[part[0].value], part[1]) for part in pair)
        assert right is not None
        left = one.expand(1, len(right)) if left is None else left
        terms.append(words_of_product([left, right, matrix], in_order=True))
    table = np.array(terms, np.int64)
    places = np.array([tensors[rows.value].data_ptr() for rows in first_rows], np.int64)
    call = native_call("popgeo_graph_sum", table.ctypes.data, places.ctypes.data, len(terms), 1, num_threads=3)
    return replace(call, tables=(table, places), held=one)


def _matrix(tensor: Tensor, is_turned: bool) -> Tensor:
    """Return a factor as a matrix; a tensor of several dimensions has a row per index of the first."""
    return tensor.t() if is_turned else tensor if tensor.dim() == 2 else tensor.view(len(tensor), -1)


LOWERINGS |= {GRAPH_ROWS: lower_graph_rows, GRAPH_SUM: lower_graph_sum}
