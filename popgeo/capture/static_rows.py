"""Rows chosen by masks, and what is done with them, in a fixed number of slots; `free_slots.py` follows those."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch_geometric.utils import degree as pyg_degree
from torch_geometric.utils import scatter as pyg_scatter

from popgeo.capture.free_slots import Slots, active_slots
from popgeo.capture.recorder import active_recorder


def get_item(self: Tensor, index: Any) -> Any:
    """`x[mask]` along one axis: as many slots as there are rows; free ones repeat the first row that stays."""
    parts = index if isinstance(index, tuple) else (index,)
    axes = [axis for axis, part in enumerate(parts) if isinstance(part, FakeTensor) and part.dtype == torch.bool]
    slots, recorder = active_slots(), active_recorder()
    others = [part for axis, part in enumerate(parts) if axis not in axes]
    if slots is None or recorder is None or len(axes) != 1 or any(not _is_whole(part) for part in others):
        return NotImplemented
    axis, mask = axes[0], parts[axes[0]]
    own, chosen = slots.of(self), slots.of(mask)
    fits = (own is None and chosen is None) or (own and chosen and own[1] == axis and own[0].alike(chosen[0]))
    if not fits or mask.dim() != 1 or mask.size(0) != self.size(axis):
        return NotImplemented
    if mask.size(0) == 0:
        return self.clone()
    with slots.ending():
        rows = slots.chosen_by(mask, recorder.problem_here("index"))
        kept = rows.kept()
        numbers = torch.where(kept, torch.arange(kept.size(0)), kept.to(torch.int32).argmax())
        return slots.mark(self.index_select(axis, numbers), rows, axis)


def _is_whole(part: Any) -> bool:
    return isinstance(part, slice) and part == slice(None)


def cat(tensors: Sequence[Tensor], dim: int = 0, **other: Any) -> Any:
    """Slots one after the other, of which the same are free as before."""
    slots = active_slots()
    found = [None if slots is None else slots.of(tensor) for tensor in tensors]
    along = [one for one, tensor in zip(found, tensors, strict=True) if one and one[1] == dim % tensor.dim()]
    if slots is None or not along or other or len(along) != sum(one is not None for one in found):
        return NotImplemented
    with slots.ending():
        made = torch.cat(tensors, dim)
    pairs = zip(found, tensors, strict=True)
    parts = [part for one, tensor in pairs for part in (one[0].parts if one else (tensor.size(dim),))]
    return slots.mark(made, Slots(tuple(parts), along[0][0].refuse), dim % made.dim())


def scatter(src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum") -> Tensor:
    """PyG's `scatter`; free slots go into a row behind the others, which is left out."""
    slots = active_slots()
    found, own = (None, None) if slots is None else (slots.of(index), slots.of(src))
    fits = own is None or (found and own[0].alike(found[0]) and own[1] == dim % src.dim())
    if slots is None or found is None or dim_size is None or not fits:
        return pyg_scatter(src, index, dim, dim_size, reduce)
    with slots.ending():
        index = torch.where(found[0].kept(), index, dim_size)
        return pyg_scatter(src, index, dim, dim_size + 1, reduce).narrow(dim, 0, dim_size)


def degree(index: Tensor, num_nodes: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """PyG's `degree`; free slots are not counted."""
    slots = active_slots()
    found = None if slots is None else slots.of(index)
    if slots is None or found is None or num_nodes is None:
        return pyg_degree(index, num_nodes, dtype)
    with slots.ending():
        return pyg_degree(torch.where(found[0].kept(), index, num_nodes), num_nodes + 1, dtype)[:num_nodes]


def found_only(search: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A search for neighbours whose pairs are those that it finds, as PyG's are: the slots that hold none are free."""

    @functools.wraps(search)
    def searches(*args: Any, **kwargs: Any) -> Tensor:
        pairs = search(*args, **kwargs)
        return pairs[:, pairs[0] >= 0]

    return searches


def set_item(self: Tensor, index: Any, value: Any) -> Any:
    """A write of the same value or row wherever a mask holds, of the rows that it chose, or to rows that may be free."""
    slots = active_slots()
    free = None if slots is None else slots.of(index)
    if slots is not None and free is not None and index.dtype != torch.bool:
        return _set_rows(self, index, value, free[0])
    mask, *rest = index if isinstance(index, tuple) and index else (index,)
    simple = all(isinstance(part, int | slice) for part in rest)
    if not (isinstance(mask, Tensor) and mask.dtype == torch.bool and isinstance(value, Tensor) and simple):
        return NotImplemented
    into = self[(slice(None),) * mask.dim() + tuple(rest)]
    trailing = into.dim() - mask.dim()
    chosen = None if slots is None else slots.of(value)
    if slots is not None and chosen is not None:
        rows = slots.chosen_by(mask, chosen[0].refuse)
        if mask.dim() != 1 or chosen[1] != 0 or value.shape != into.shape or not chosen[0].alike(rows):
            return NotImplemented
        with slots.ending():
            into.copy_(torch.where(mask.view(-1, *(1,) * trailing), value.to(into.dtype), into))
        return None
    own_row = value.dim() > trailing and (value.dim() > trailing + 1 or value.size(0) != 1)
    if own_row or into.shape[: mask.dim()] != mask.shape or (value.dim() == 0 and not value.requires_grad):
        return NotImplemented
    row = value.squeeze(0) if value.dim() > trailing else value
    into.copy_(torch.where(mask.reshape(*mask.shape, *(1,) * trailing), row.to(into.dtype), into))
    return None


def _set_rows(self: Tensor, index: Tensor, value: Any, free: Slots) -> Any:
    """Where an index occurs more than once, the last value stands there, and each has its gradient, as in PyTorch."""
    slots, num_rows = active_slots(), self.size(0)
    own = None if slots is None else slots.of(value)
    if slots is None or slots.of(self) is not None or (own and not (own[0].alike(free) and own[1] == 0)):
        return NotImplemented
    with slots.ending():
        longer = torch.cat([self, self.new_zeros(1, *self.shape[1:])])
        longer[torch.where(free.kept(), index, num_rows)] = value
        self.copy_(longer[:num_rows])
