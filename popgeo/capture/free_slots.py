"""Rows that a mask chooses, in as many slots as there were rows: their results are followed to the end.

The slot of a row that the mask leaves out is *free*: it repeats the first row that stays, so nothing new is computed in
it. PyG's `scatter` passes free slots by, and so no gradient comes back from them. Whatever else would let the rows
meet, such as a mean, a sort or a norm of the batch, and whatever hands them out, depends on the data.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map

from popgeo.capture.schemas import makes_tensors, named_arguments
from popgeo.replaced import replaced


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots along one axis.

    Attributes:
        parts: One after the other, a mask of those that hold a row, or how many there are that all do.
        refuse: Says where the rows were chosen, and that this depends on the data.
    """

    parts: tuple[Tensor | int, ...]
    refuse: Callable[[], None]

    def alike(self, other: "Slots") -> bool:
        """Whether the same slots are free."""
        ours, theirs = ([id(p) if isinstance(p, Tensor) else p for p in one.parts] for one in (self, other))
        return ours == theirs

    def kept(self) -> Tensor:
        """Which slots hold a row. [num_slots]"""
        masks = [part if isinstance(part, Tensor) else torch.ones(part, dtype=torch.bool) for part in self.parts]
        return masks[0] if len(masks) == 1 else torch.cat(masks)


class SlotCount(int):
    """How many slots an axis has. The number of rows depends on the data, so nothing but a shape may be made of it."""

    slots: Slots


def _operator(name: str) -> Callable[..., Any]:
    def operator(self: SlotCount, *others: Any) -> Any:
        if others != (0,):  # whether there are any
            self.slots.refuse()
        return getattr(int(self), name)(*others)

    return operator


_OPERATORS = "add sub mul truediv floordiv mod pow radd rsub rmul rtruediv rfloordiv rmod gt ge lt le float neg"
for _name in _OPERATORS.split():
    setattr(SlotCount, f"__{_name}__", _operator(f"__{_name}__"))

# What makes a row of each row that it is given, as long as those do not lie along the axis that it works along.
_ROW_BY_ROW = """
    addmm all amax amin any argmax argmin baddbmm bernoulli bmm cat clone embedding empty_like flip full_like gather
    glu index index_select linalg_cross linalg_vector_norm log_sigmoid_forward _log_softmax logsumexp max mean min
    mm mv native_dropout native_layer_norm ones_like _prelu_kernel prod rand_like randn_like _softmax stack std sum
    _to_copy var zeros_like
"""
# By element, although torch does not tag them so; the second row it does in newer versions.
_BY_ELEMENT = """
    bernoulli_ copy_ fill_ masked_fill masked_fill_ normal_ uniform_ zero_
    celu_ elu_ hardsigmoid_ hardtanh_ ldexp_ leaky_relu leaky_relu_ selu_
"""
_TWICE_IS_ONCE = [getattr(torch.ops.aten, name).default for name in ("all", "any", "max", "min")]
_TAKES_SIZES = "empty expand full new_empty new_full new_ones new_zeros ones rand randn reshape unflatten view zeros"


class FreeSlots(TorchDispatchMode):
    """Knows along which axis of which tensor there are slots that may be free.

    Attributes:
        pairs: By the id of those that a search found, all of its slots, -1 if it found none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, tuple[Slots, int]] = {}
        self.pairs: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []  # a tensor is found by its id, so none may be freed
        self._chosen: dict[Any, Slots] = {}
        self._ending = False

    def of(self, tensor: Any) -> tuple[Slots, int] | None:
        """The slots of a tensor and their axis; None where each row holds one."""
        return self._found.get(id(tensor))

    def mark(self, tensor: Tensor, slots: Slots, axis: int) -> Tensor:
        """Says that some slots along an axis are free."""
        self._found[id(tensor)] = slots, axis
        self._kept.append(tensor)
        return tensor

    def chosen_by(self, mask: Tensor, formula: Any, refuse: Callable[[], None]) -> Slots:
        """The slots that a mask leaves, of which those that were free remain so; one for masks of the same formula."""
        if formula not in self._chosen:
            before = self.of(mask)
            kept = mask.clone() if before is None else mask & before[0].kept()  # the mask may be written to later
            self._chosen[formula] = Slots((kept,), refuse)
        return self._chosen[formula]

    def ending(self) -> contextlib.AbstractContextManager[None]:
        """Follows nothing while the block runs: it drops what is in free slots."""
        return replaced(self, "_ending", True)

    def handed_out(self, results: Sequence[Tensor]) -> list[Tensor]:
        """What is returned, if none of it has free slots: a search's own pairs do without, as -1 is in those."""
        given = [self.pairs.get(id(one), one) for one in results]
        for found in map(self.of, given):
            if found is not None:
                found[0].refuse()
        return given

    def sizes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """The result of a torch function with the marks of slots in the sizes that it takes or returns."""
        if not self._found or self._ending:
            return result
        name, own = getattr(func, "__name__", ""), self.of(args[0]) if args else None
        if own is not None and isinstance(result, torch.Size):
            return torch.Size([_count(n, own[0]) if axis == own[1] else n for axis, n in enumerate(result)])
        if own is not None and name in ("size", "numel"):
            asked = [*args[1:], *kwargs.values(), own[1]][0]  # an axis, or all of them
            return _count(result, own[0]) if asked % args[0].dim() == own[1] else result
        if own is not None and name == "__len__" and own[1] == 0:
            own[0].refuse()  # Python makes it a number of its own
        given = [part for part in tree_leaves((args, kwargs)) if not isinstance(part, Tensor)]
        for axis, count in enumerate(given):
            if isinstance(count, SlotCount):
                if name not in _TAKES_SIZES.split() or result.shape[axis : axis + 1] != (int(count),):
                    count.slots.refuse()
                elif self.of(result) is None:
                    self.mark(result, count.slots, axis)
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func._schema.name.removeprefix("aten::")
        # Gradients of free slots are zero; new tensors have the type of the given one.
        if not self._found or self._ending or torch._C._current_autograd_node() is not None or name.startswith("new_"):
            return result
        given = [part for part in tree_leaves((args, kwargs)) if self.of(part) is not None]
        twice_is_once = func in _TWICE_IS_ONCE and not args[0].requires_grad  # its gradient is shared among equals
        if given and makes_tensors(func) and not twice_is_once:
            slots = [self._found[id(part)][0] for part in given]
            made = [part for part in tree_leaves(result) if isinstance(part, Tensor)]
            axes = self._axes(func, name, args, kwargs or {}, given, made) if all(map(slots[0].alike, slots)) else []
            for one in slots if len(axes) != len(made) else ():
                one.refuse()
            for part, axis in zip(made, axes, strict=False):
                self.mark(part, slots[0], axis)
        return result

    def _axes(self, func: Any, name: str, args: Any, kwargs: Any, given: list[Tensor], made: list[Tensor]) -> list[int]:
        """Along which axis each result has the slots; fewer where an operation would let the rows meet."""
        own, first = self.of(args[0]), given[0]
        pointwise = torch.Tag.pointwise in func.tags or name in _BY_ELEMENT.split()
        axis = self._found[id(first)][1]
        if any(part.layout is not torch.strided for part in made):
            return []
        if pointwise or func._schema.is_mutable:
            from_right = {part.dim() - self._found[id(part)][1] for part in given}
            fits = pointwise and len(from_right) == 1 and (own is not None or not func._schema.is_mutable)
            return [part.dim() - min(from_right) for part in made if fits]
        if all(part.untyped_storage()._cdata == first.untyped_storage()._cdata for part in made):
            look = first.size(axis), first.stride(axis)
            shown = ([a for a, n in enumerate(part.shape) if (n, part.stride(a)) == look] for part in made)
            return [axes[0] for axes in shown if len(axes) == 1]
        named = vars(named_arguments(func, args, kwargs))
        along = [dim for dim in tree_leaves((named.get("dim"), named.get("dims"))) if dim is not None]
        if own is not None and own[1] in [dim % args[0].dim() for dim in along]:
            return []
        looks_up = own is not None and name in ("embedding", "index")
        return [] if looks_up or name not in _ROW_BY_ROW.split() else self._axes_by_size(func, args, kwargs, made)

    def _axes_by_size(self, func: Any, args: Any, kwargs: Any, made: Sequence[Tensor]) -> list[int]:
        """Where the results become one longer when there is a slot more."""

        def longer(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return part
            own = self.of(part)
            shape = [n + (own is not None and own[1] == axis) for axis, n in enumerate(part.shape)]
            return torch.empty(shape, dtype=part.dtype, device="meta")

        with unset_fake_temporarily():
            try:
                others = tree_leaves(func(*tree_map(longer, args), **tree_map(longer, kwargs)))
            except (RuntimeError, IndexError):
                return []
        pairs = zip(made, others, strict=True)
        grown = [[a for a, n in enumerate(part.shape) if other.size(a) == n + 1] for part, other in pairs]
        return [axes[0] for axes in grown if len(axes) == 1]


def _count(number: int, slots: Slots) -> SlotCount:
    count = SlotCount(number)
    count.slots = slots
    return count


_NOWHERE = FreeSlots()


def active_slots() -> FreeSlots:
    """What follows free slots now; outside of a capture it knows of none."""
    modes = reversed(_get_current_dispatch_mode_stack())
    return next((mode for mode in modes if isinstance(mode, FreeSlots)), _NOWHERE)
