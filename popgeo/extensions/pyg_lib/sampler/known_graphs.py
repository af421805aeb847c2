"""Graphs that were checked before: a sampler gets the same tensors in each call and checks them only once."""

import weakref
from collections.abc import Sequence

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from popgeo.native import library
from popgeo.sampling.compressed_graph import CompressedGraph, Direction

_Arguments = tuple[Tensor | None, ...]
# By the row pointers. The graphs have aliases of the given tensors, so that they do not keep the row pointers alive.
_GRAPHS = WeakTensorKeyDictionary()
_SIZES = WeakTensorKeyDictionary()


def known_graph(
    rowptr: Tensor,
    col: Tensor,
    num_cols: int,
    *,
    weight: Tensor | None = None,
    edge_time: Tensor | None = None,
    node_time: Tensor | None = None,
    direction: Direction,
) -> CompressedGraph:
    """Return a graph, checked when its tensors are seen for the first time or have changed since.

    Args:
        rowptr: The start of each row, and the end. int32 or int64 [num_rows + 1]
        col: Neighbors, row after row. The same dtype [num_edges]
        num_cols: The number of nodes that can be neighbors.
        weight: The probability of each edge, relative to other edges of its row. [num_edges]
        edge_time: The time of each edge, ascending in each row. [num_edges]
        node_time: Instead: the time of each node that can be a neighbor. [num_cols]
        direction: The direction of the edges of a row.

    Raises:
        ValueError: a tensor contradicts this description, or both times are given.

    Example:
        >>> import torch
        >>> rowptr, col = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
        >>> graph = known_graph(rowptr, col, 2, direction=Direction.INCOMING)
        >>> graph is known_graph(rowptr, col, 2, direction=Direction.INCOMING)
        True
    """
    given = (rowptr, col, weight, edge_time, node_time)
    if rowptr in _GRAPHS:
        before, versions, graph = _GRAPHS[rowptr]
        is_same = all((None if ref is None else ref()) is tensor for ref, tensor in zip(before, given, strict=True))
        if is_same and versions == _versions(given) and (graph.num_cols, graph.direction) == (num_cols, direction):
            return graph
    if edge_time is not None and node_time is not None:
        raise ValueError("Both node_time and edge_time are given; the time of an edge is one of them.")
    time = edge_time if node_time is None else node_time
    if node_time is not None:
        if node_time.shape != (num_cols,):
            raise ValueError(f"node_time has shape {[*node_time.shape]}; it needs [{num_cols}].")
        time = node_time[col.long()]
    graph = CompressedGraph(
        rowptr=library.as_read(rowptr.detach()),
        col=library.as_read(col.detach()),
        num_cols=num_cols,
        weight=None
        if weight is None
        else library.as_read(weight.detach() if weight.is_floating_point() else weight.float()),
        time=None if time is None else library.as_read(time.detach() if time.is_floating_point() else time.long()),
        direction=direction,
    )
    refs = [None if tensor is None else weakref.ref(tensor) for tensor in given]
    _GRAPHS[rowptr] = refs, _versions(given), graph
    return graph


def size_above(index: Tensor) -> int:
    """Return a power of two above all indices; it changes seldom, so that graphs stay known.

    Example:
        >>> import torch
        >>> size_above(torch.tensor([2, 5])), size_above(torch.tensor([], dtype=torch.int64))
        (8, 1)
    """
    if index not in _SIZES or _SIZES[index][0] != _versions([index]):
        largest = int(index.max()) if index.numel() else 0
        _SIZES[index] = _versions([index]), 1 << max(0, largest).bit_length()
    return int(_SIZES[index][1])


def _versions(tensors: Sequence[Tensor | None]) -> list[int]:
    """Return the number of changes of each tensor; an inference tensor has none to return."""
    return [0 if tensor is None or tensor.is_inference() else tensor._version for tensor in tensors]
