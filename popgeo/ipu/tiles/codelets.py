"""The computations of vertices, on tensors of the memory of their tile."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import overload
from popgeo.ipu.tiles.steps import Operand, Scalar


def run_vertex(
    operation: str, arguments: Any, keywords: Mapping[str, Any], reads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the results of a codelet, or of the operation of torch with that name.

    Example:
        >>> run_vertex("aten.add.Tensor", (Operand(0), Operand(1)), {}, [torch.ones(2), torch.ones(2)])
        [tensor([2., 2.])]
    """
    given = _filled(arguments, reads)
    named = {key: _filled(argument, reads) for key, argument in keywords.items()}
    result = CODELETS[operation](*given) if operation in CODELETS else overload(operation)(*given, **named)
    return list(result) if isinstance(result, tuple | list) else [result]


def _filled(argument: Any, reads: Sequence[Tensor]) -> Any:
    """Return an argument with the tensors and numbers of a vertex in place of `Operand` and `Scalar`."""
    if isinstance(argument, Operand):
        tensor = reads[argument.position]
        return tensor if argument.order is None else tensor.permute(argument.order)
    if isinstance(argument, Scalar):
        return reads[argument.position].item()
    if isinstance(argument, list | tuple):
        return type(argument)(_filled(item, reads) for item in argument)
    return argument


def _assemble(
    count: int, number: float, dtype: torch.dtype, parts: Sequence[Tensor] = (), places: Sequence[np.ndarray] = ()
) -> Tensor:
    """Write the elements of each part to their places in a tensor that is filled with a number."""
    out = torch.full((count,), number, dtype=dtype)
    for elements, where in zip(parts, places, strict=True):
        out[torch.from_numpy(where)] = elements.to(dtype)
    return out


def _weighted_sum(x: Tensor, y: Tensor, beta: float, alpha: float) -> Tensor:
    """Return beta * x + alpha * y, with both factors in the type of whole numbers and truth values."""
    if not (y.is_floating_point() or y.is_complex()):
        kind = bool if y.dtype is torch.bool else int
        beta, alpha = kind(beta), kind(alpha)
    return (x if beta == 1 else beta * x) + (y if alpha == 1 else alpha * y)


_LOGIC = {"any": "amax", "all": "amin"}  # of zeros and ones


def _reduce(x: Tensor, places: np.ndarray, count: int, how: str, dtype: torch.dtype, scale: float | None) -> Tensor:
    """Combine the elements with the same place."""
    working = torch.uint8 if dtype is torch.bool else torch.float32 if dtype is torch.float16 else dtype
    x = (x != 0 if dtype is torch.bool or how in _LOGIC else x).to(working)
    how = _LOGIC.get(how, how)
    where = torch.from_numpy(places)
    if how == "sum":
        out = torch.zeros(count, dtype=working).index_add_(0, where, x)
    else:
        out = torch.ones(count, dtype=working).scatter_reduce_(0, where, x, how, include_self=how == "prod")
    return (out if scale is None else out * scale).to(dtype)


def _slice_rows(table: Tensor, index: Tensor, first: int, num_rows: int, wraps: bool) -> Tensor:
    """Return the rows of a block that an index names; zero for rows of other blocks."""
    row = _checked(index, num_rows, wraps) - first
    here = (row >= 0) & (row < table.shape[0])
    return torch.where(here.unsqueeze(1), table[row.where(here, 0)], torch.zeros((), dtype=table.dtype))


def _select_block(answers: Tensor, index: Tensor, rows_per_block: int, num_rows: int, wraps: bool) -> Tensor:
    """Return for each row the answer of the block that holds the row."""
    block = _checked(index, num_rows, wraps) // rows_per_block
    return answers.gather(0, block.unsqueeze(0)).squeeze(0)


def _update_rows(
    updates: Tensor,
    index: Tensor,
    factor: Tensor | None,
    first: int,
    height: int,
    num_rows: int,
    how: str,
    wraps: bool,
    skip: int,
) -> Tensor:
    """Return the sum or product of the updates for each row of a block."""
    if factor is not None:
        updates = updates * factor
    row = _checked(index, num_rows, wraps, absent=-1) - first
    here = (row >= 0) & (row < height) & (index != skip)
    row, updates = row[here], updates[here]
    if how == "sum":
        return torch.zeros(height, updates.shape[1], dtype=updates.dtype).index_add_(0, row, updates)
    out = torch.ones(height, updates.shape[1], dtype=updates.dtype)
    return out.scatter_reduce_(0, row.unsqueeze(1).expand_as(updates), updates, how)


def _rows_of_edges(pointers: Tensor, first: int, stop: int) -> Tensor:
    """Return the row of each edge, by the ranges of edges of the rows; -1 outside of all ranges."""
    edges = torch.arange(first, stop)
    row = torch.searchsorted(pointers, edges, right=True) - 1
    return row.where(edges < pointers[-1], -1)


def _checked(index: Tensor, num_rows: int, wraps: bool, absent: int = 0) -> Tensor:
    """Return row numbers counted from 0.

    Raises:
        ValueError: a number is outside of the table.
    """
    index = index.to(torch.int64)
    row = index.where(index >= 0, index + num_rows) if wraps else index
    if len(row) and (int(row.min()) < absent or int(row.max()) >= num_rows):
        raise ValueError(f"An index runs from {int(row.min())} to {int(row.max())} in a table of {num_rows} rows.")
    return row


def _call(target: str, given: Any, kept: Sequence[bool], changed: Sequence[Tensor], *named: Any) -> list[Any]:
    """Run a whole operation of torch; return its new results and the operands that it changed in place."""
    result = overload(target)(*given, **dict(named))
    results = result if isinstance(result, tuple | list) else (result,)
    return [made for made, new in zip(results, kept, strict=False) if new] + list(changed)


CODELETS: dict[str, Callable[..., Any]] = {
    "call": _call,
    "fill": _assemble,
    "constant": torch.clone,
    "assemble": _assemble,
    "weighted sum": _weighted_sum,
    "reduce": _reduce,
    "slice rows": _slice_rows,
    "select block": _select_block,
    "update rows": _update_rows,
    "rows of edges": _rows_of_edges,
}
