"""Graphs that were checked before: a sampler gets the same tensors in each call and checks them only once."""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from popgeo.native import library
from popgeo.sampling.compressed_graph import CompressedGraph, Direction

# Values by the identities of their tensors. An entry is removed when one of its tensors is freed, so identities stay
# valid. The graphs have aliases of the given tensors, so they do not keep the tensors alive.
_KNOWN: dict[Any, tuple[list[int], Any, list[weakref.ref[Tensor]]]] = {}


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
    given = [tensor for tensor in (rowptr, col, weight, edge_time, node_time) if tensor is not None]
    key = (*map(id, (rowptr, col, weight, edge_time, node_time)), num_cols, direction)
    known = _known(key, given)
    if known is not None:
        return known
    if edge_time is not None and node_time is not None:
        raise ValueError("Both node_time and edge_time are given; the time of an edge is one of them.")
    time = edge_time if node_time is None else node_time
    if node_time is not None:
        if node_time.shape != (num_cols,):
            raise ValueError(f"node_time has shape {[*node_time.shape]}; it needs [{num_cols}].")
        time = node_time[col.long()]
    if weight is not None and not weight.is_floating_point():
        weight = weight.float()
    if time is not None and not time.is_floating_point():  # CompressedGraph takes int64 only
        time = time.long()
    graph = CompressedGraph(
        rowptr=library.as_read(rowptr.detach()),
        col=library.as_read(col.detach()),
        num_cols=num_cols,
        weight=None if weight is None else library.as_read(weight.detach()),
        time=None if time is None else library.as_read(time.detach()),
        direction=direction,
    )
    return _remember(key, given, graph)


def size_above(index: Tensor) -> int:
    """Return a power of two above all indices; it changes seldom, so that graphs stay known.

    Example:
        >>> import torch
        >>> size_above(torch.tensor([2, 5])), size_above(torch.tensor([], dtype=torch.int64))
        (8, 1)
    """
    known = _known(id(index), [index])
    if known is None:
        largest = int(index.max()) if index.numel() else 0
        known = _remember(id(index), [index], 1 << max(0, largest).bit_length())
    return int(known)


def _known(key: Any, tensors: Iterable[Tensor]) -> Any:
    """Return the value of unchanged tensors, or None."""
    versions, value, _ = _KNOWN.get(key, ([], None, []))
    return value if versions == _versions(tensors) else None


def _remember(key: Any, tensors: Iterable[Tensor], value: Any) -> Any:
    references = [weakref.ref(tensor, lambda _: _KNOWN.pop(key, None)) for tensor in tensors]
    _KNOWN[key] = _versions(tensors), value, references
    return value


def _versions(tensors: Iterable[Tensor]) -> list[int]:
    """Return the number of changes of each tensor; an inference tensor does not count them."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]
