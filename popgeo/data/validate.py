"""Checks of graphs when they are read: indices stay inside their graph, and positions are finite numbers."""

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import Attribute, Axis, row_pointer
from popgeo.data.columns import Columns
from popgeo.data.store.first_use import compare_stored
from popgeo.data.store.mapped import file_of
from popgeo.native import library

_POSITIONS, _ROWS_AT_ONCE = {"pos", "cell"}, 1 << 20


def check_indices(columns: Columns, numbers: np.ndarray | None = None) -> None:
    """Check that every edge ends in its own graph; in a batch, it could otherwise end in a different graph.

    This checks `edge_index` and other attributes that PyG increments, with names of edges or faces.

    Args:
        columns: The graphs.
        numbers: The number of each graph in error messages. Default: its position in the view.

    Raises:
        ValueError: an index is negative, or not below the number of nodes. The error names graph and attribute.

    Example:
        >>> from torch_geometric.data import Data
        >>> from popgeo.data import FlatStore
        >>> FlatStore.from_dataset([Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [2]]))])
        Traceback (most recent call last):
        ...
        ValueError: Graph 0 has 2 in edge_index[1], but 2 nodes, numbered from 0: ...
    """
    compare_stored(columns)
    for attribute in columns.attributes:
        if _points_at_nodes(attribute) and attribute.tensor.numel():
            _check_index(columns, attribute, numbers)


def check_positions(columns: Columns) -> None:
    """Check that positions and cells are finite.

    Raises:
        ValueError: a number is NaN or infinite. The error names graph and attribute.
    """
    compare_stored(columns)
    for attribute in columns.attributes:
        if attribute.name not in _POSITIONS or not attribute.is_tensor or not attribute.tensor.is_floating_point():
            continue
        # A store on disk may be larger than memory.
        pieces = attribute.tensor.movedim(attribute.dim, 0).split(_ROWS_AT_ONCE)
        finite = torch.cat([piece.isfinite().flatten(1).all(dim=1) for piece in pieces])
        if (graph := _first_shown(columns, attribute.axis, ~finite)) is not None:
            raise ValueError(
                f"Graph {graph} has {_named(attribute)} that is NaN or infinite. Correct it, leave the graph out, or "
                f"pass validate=None, which checks indices only."
            )


def is_unchecked(attribute: Attribute) -> bool:
    """Check whether an attribute has unchecked indices: indices in a file, which any program may have written."""
    return _points_at_nodes(attribute) and file_of(attribute.values) is not None


def _points_at_nodes(attribute: Attribute) -> bool:
    name = attribute.name
    return (
        attribute.is_tensor
        and attribute.increments is not None
        and (("edge" in name and "index" in name) or name == "face")
        and not attribute.tensor.is_floating_point()
        and attribute.tensor.dtype is not torch.bool
    )


def _check_index(columns: Columns, attribute: Attribute, numbers: np.ndarray | None) -> None:
    limits, pointer = attribute.increments, columns.row_pointers[attribute.axis]
    assert limits is not None  # `_points_at_nodes` asked
    if _is_inside(attribute, pointer, limits):
        return
    outside = _outside(attribute, pointer, limits)
    graph = _first_shown(columns, attribute.axis, outside.any(dim=0))
    if graph is None:
        return
    stored = graph if columns.indices is None else int(columns.indices[graph])
    start, stop = int(pointer[stored]), int(pointer[stored + 1])
    row, column = (int(i) for i in outside[:, start:stop].nonzero()[0])
    value = attribute.tensor.reshape(outside.shape[0], outside.shape[1], -1)[row, start + column]
    limit = int(limits[stored, row % limits.shape[1]])
    wrong = int(value[(value < 0) | (value >= limit)][0])
    where = f"{_named(attribute)}[{row}]" if attribute.dim else _named(attribute)
    called = graph if numbers is None else numbers[graph]
    raise ValueError(
        f"Graph {called} has {wrong} in {where}, but {limit} nodes, numbered from 0: in a batch it would be a node of "
        f"another graph. Correct it or the graph's num_nodes, or leave the graph out."
    )


def _is_inside(attribute: Attribute, pointer: Tensor, limits: Tensor) -> bool:
    """Check with the compiled library that no index is out of range; return False without the library."""
    values = attribute.tensor
    entry = library.function("popgeo_first_outside", "PqqqqPPqq", "q")
    if entry is None or values.dtype not in (torch.int32, torch.int64):
        return False
    rows = values.shape[attribute.dim]
    outer, inner = values.shape[: attribute.dim].numel(), values.shape[attribute.dim + 1 :].numel()
    pointer, limits = pointer.contiguous(), limits.contiguous()
    of_values = library.address(values), values.element_size(), outer, rows, inner
    return entry(*of_values, library.address(pointer), library.address(limits), limits.shape[1], len(limits)) < 0


def _outside(attribute: Attribute, pointer: Tensor, limits: Tensor) -> Tensor:
    """Return a mask of the rows with an index that is negative or too large, bool [outer, rows]."""
    values = attribute.tensor
    rows = values.shape[attribute.dim]
    values = values.reshape(int(np.prod(values.shape[: attribute.dim])), rows, -1)
    of_row = torch.repeat_interleave(limits, pointer.diff(), dim=0).T[:, :, None]  # [outer or 1, rows, 1]
    return ((values < 0) | (values >= of_row)).any(dim=2)


def _first_shown(columns: Columns, axis: Axis, marked: Tensor) -> int | None:
    """Return the position in the view of the first graph with a marked row; None without marked rows."""
    if not bool(marked.any()):
        return None
    running = row_pointer(marked.to(torch.int64))
    pointer = columns.row_pointers[axis]
    has = (running[pointer[1:]] > running[pointer[:-1]]).numpy()
    shown = np.flatnonzero(has if columns.indices is None else has[columns.indices])
    return int(shown[0]) if len(shown) else None


def _named(attribute: Attribute) -> str:
    return attribute.name if attribute.store is None else f"{attribute.name} of {attribute.store!r}"
