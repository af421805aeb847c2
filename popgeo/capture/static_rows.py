"""Static forms of functions that choose rows by masks or use them; `free_slots.py` follows the rows."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from popgeo.capture.free_slots import Slots
from popgeo.capture.page import UnknownValue
from popgeo.capture.recorder import active_recorder, active_slots


@functools.cache
def pyg_scatter() -> FunctionType:
    """Return a copy of PyG's `scatter` that keeps PyG's code while `static_forms` replaces the code of the original."""
    from torch_geometric.utils import scatter as of_pyg

    return FunctionType(of_pyg.__code__, of_pyg.__globals__, of_pyg.__name__, of_pyg.__defaults__)


def get_item(self: Tensor, index: Any) -> Any:
    """Return `x[mask]` along one axis in as many slots as there are rows; free slots repeat the first chosen row.

    PyG's `remove_self_loops` and `add_remaining_self_loops` choose edges in this way. Chosen edges keep their places
    with free slots between them, and added loops come last. A free slot also repeats weights and attributes.
    """
    parts = index if isinstance(index, tuple) else (index,)
    masks = [part for part in parts if isinstance(part, FakeTensor) and part.dtype == torch.bool and part.dim() == 1]
    whole = [part for part in parts if isinstance(part, slice) and part == slice(None)]
    slots, recorder = active_slots(), active_recorder()
    if recorder is None or torch._C._current_autograd_node() is not None:
        return NotImplemented
    if len(masks) != 1 or len(whole) != len(parts) - 1:
        return NotImplemented
    axis = next(axis for axis, part in enumerate(parts) if part is masks[0])
    own, chosen = slots.of(self), slots.of(masks[0])
    alike = own is chosen if own is None or chosen is None else own[1] == axis and own[0].alike(chosen[0])
    if not alike or masks[0].size(0) != self.size(axis):
        return NotImplemented
    if self.size(axis) == 0:
        return self.clone()
    with contextlib.suppress(UnknownValue):
        recorder.page.compute(torch.ops.aten.any.default, (masks[0],), {})
        return NotImplemented  # the mask follows from constants, so the number of rows that it chooses is fixed
    with slots.ignored():
        formula = recorder.page.formula(masks[0])
        rows = slots.chosen_by(masks[0], formula, recorder.problem_here("index"))
        kept = rows.kept()
        numbers = torch.where(kept, torch.arange(kept.size(0)), kept.to(torch.int32).argmax())
        return slots.mark(self.index_select(axis, numbers), rows, axis)


def with_boolean_masks(self: Tensor, index: Any, *value: Any) -> tuple[Any, ...]:
    """Return the arguments of an index with boolean masks in place of masks of type uint8."""
    if isinstance(index, tuple):
        index = tuple(with_boolean_masks(self, part)[1] for part in index)
    elif isinstance(index, Tensor) and index.dtype == torch.uint8:
        index = index.bool()
    return self, index, *value


def refuse_numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Refuse to pass a stand-in to NumPy, because it has no values."""
    if isinstance(self, FakeTensor) and (recorder := active_recorder()) is not None:
        recorder.problem_here("numpy")()
    return NotImplemented


def cat(tensors: Sequence[Tensor], dim: int = 0, **other: Any) -> Any:
    """Concatenate slots; the same slots stay free."""
    slots = active_slots()
    found = [slots.of(tensor) for tensor in tensors]
    marked = [(one, tensor.dim()) for one, tensor in zip(found, tensors, strict=True) if one is not None]
    if not marked or other or any(axis != dim % dims for (_, axis), dims in marked):
        return NotImplemented
    with slots.ignored():
        made = torch.cat(list(tensors), dim)
    sizes = (tensor.size(dim) for tensor in tensors)
    parts = [part for one, size in zip(found, sizes, strict=True) for part in (one[0].parts if one else (size,))]
    return slots.mark(made, Slots(tuple(parts), marked[0][0][0].refuse), dim % made.dim())


def scatter(src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum") -> Tensor:
    """Run PyG's `scatter`. Free slots are added to one more row, which is then cut off."""
    slots = active_slots()
    free, own = slots.of(index), slots.of(src)
    if free is None or dim_size is None or not _fits(own, free[0], dim % src.dim()):
        return pyg_scatter()(src, index, dim, dim_size, reduce)
    with slots.ignored():
        index = torch.where(free[0].kept(), index, dim_size)
        return pyg_scatter()(src, index, dim, dim_size + 1, reduce).narrow(dim, 0, dim_size)


def _fits(own: tuple[Slots, int] | None, free: Slots, axis: int) -> bool:
    return own is None or (own[0].alike(free) and own[1] == axis)


def degree(index: Tensor, num_nodes: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Count indices as PyG's `degree` does, without free slots."""
    from torch_geometric.utils.num_nodes import maybe_num_nodes

    return scatter(torch.ones(index.size(0), dtype=dtype), index, 0, maybe_num_nodes(index, num_nodes))


def with_free_slots(search: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a neighbor search with free slots in place of -1, because PyG's searches return no -1."""

    @functools.wraps(search)
    def run_search(*args: Any, **kwargs: Any) -> Tensor:
        pairs = search(*args, **kwargs)
        found = pairs[:, pairs[0] >= 0]
        active_slots().pairs[id(found)] = pairs
        return found

    return run_search


def set_item(self: Tensor, index: Any, value: Any) -> Any:
    """Write to the rows of a mask if the value is one row or the rows that the mask chose, or to rows of free slots."""
    slots = active_slots()
    free, own = slots.of(index), slots.of(value)
    if free is not None and index.dtype != torch.bool:
        is_served = _fits(own, free[0], 0) and slots.of(self) is None
        return _set_rows(self, index, value, free[0]) if is_served else NotImplemented
    mask, *rest = index if isinstance(index, tuple) and index else (index,)
    simple = all(isinstance(part, int | slice) for part in rest)
    if not (isinstance(mask, Tensor) and mask.dtype == torch.bool and isinstance(value, Tensor) and simple):
        return NotImplemented
    into = self[(slice(None),) * mask.dim() + tuple(rest)]
    trailing = into.dim() - mask.dim()
    own_row = value.dim() > trailing and (value.dim() > trailing + 1 or value.size(0) != 1)
    chosen = own is not None and value.shape == into.shape and _chosen_by(mask, own)
    other = own_row or into.shape[: mask.dim()] != mask.shape or (value.dim() == 0 and not value.requires_grad)
    if other and not chosen:
        return NotImplemented
    row = value.squeeze(0) if value.dim() > trailing and not chosen else value
    with slots.ignored() if chosen else contextlib.nullcontext():
        into.copy_(torch.where(mask.reshape(*mask.shape, *(1,) * trailing), row.to(into.dtype), into))
    return None


def _chosen_by(mask: Tensor, own: tuple[Slots, int]) -> bool:
    """Check that a mask has chosen the rows, so that each row is at its place in the mask."""
    formula = active_recorder().page.formula(mask)  # type: ignore[union-attr]
    return _fits(own, active_slots().chosen_by(mask, formula, own[0].refuse), 0)


def _set_rows(self: Tensor, index: Tensor, value: Any, free: Slots) -> None:
    """Write rows; if an index occurs twice, the last row stays, and each row has its gradient, as in PyTorch."""
    num_rows = self.size(0)
    with active_slots().ignored():
        longer = torch.cat([self, self.new_zeros(1, *self.shape[1:])])
        longer[torch.where(free.kept(), index, num_rows)] = value
        self.copy_(longer[:num_rows])
