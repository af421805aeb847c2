"""Rows chosen by a mask, in as many slots as there are rows, which are followed through all operations.

The slot of a row that the mask leaves out is *free*: it repeats the first chosen row, so no new value is computed in
it. PyG's `scatter` skips free slots, so no gradient comes back from them. Every other operation that combines rows,
such as a mean, a sort or a batch norm, depends on the data and is refused. So is a result with free slots.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map

from popgeo.capture.schemas import makes_tensors, named_arguments
from popgeo.replaced import replaced


@dataclass(frozen=True, eq=False)
class Slots:
    """The slots along one axis of a tensor.

    Attributes:
        parts: Consecutive parts: a mask of the slots that hold a row, or the number of slots if all hold one.
        refuse: Reports the line that chose the rows as dependent on data.
    """

    parts: tuple[Tensor | int, ...]
    refuse: Callable[[], None]

    def alike(self, other: "Slots") -> bool:
        """Check that the same slots are free."""
        ours, theirs = ([id(p) if isinstance(p, Tensor) else p for p in one.parts] for one in (self, other))
        return ours == theirs

    def kept(self) -> Tensor:
        """Return the mask of the slots that hold a row."""
        masks = [part if isinstance(part, Tensor) else torch.ones(part, dtype=torch.bool) for part in self.parts]
        return masks[0] if len(masks) == 1 else torch.cat(masks)


class SlotCount(int):
    """The number of slots along an axis, which may only be used as a size: the number of rows depends on the data."""

    slots: Slots


def _operator(name: str) -> Callable[..., Any]:
    def operator(self: SlotCount, *others: Any) -> Any:
        if others != (0,):  # a comparison with 0 asks whether there are rows
            self.slots.refuse()
        return getattr(int(self), name)(*others)

    return operator


_OPERATORS = "add sub mul truediv floordiv mod pow radd rsub rmul rtruediv rfloordiv rmod gt ge lt le float neg"
for _name in _OPERATORS.split():
    setattr(SlotCount, f"__{_name}__", _operator(f"__{_name}__"))

# Operations whose result has a row per given row, unless they work along the axis of the rows.
_ROW_BY_ROW = """
    addmm all amax amin any argmax argmin baddbmm bernoulli bmm cat clone embedding empty_like flip full_like gather
    glu index index_select linalg_cross linalg_vector_norm log_sigmoid_forward _log_softmax logsumexp max mean min
    mm mv native_dropout native_layer_norm ones_like _prelu_kernel prod rand_like randn_like _softmax stack std sum
    _to_copy var zeros_like
"""
# Element-wise operations without torch's tag for them; newer versions of torch tag the second row.
_BY_ELEMENT = """
    bernoulli_ copy_ fill_ masked_fill masked_fill_ normal_ uniform_ zero_
    celu_ elu_ hardsigmoid_ hardtanh_ ldexp_ leaky_relu leaky_relu_ selu_
"""
_TWICE_IS_ONCE = [getattr(torch.ops.aten, name).default for name in ("all", "any", "max", "min")]
_TAKES_SIZES = "empty expand full new_empty new_full new_ones new_zeros ones rand randn reshape unflatten view zeros"


class FreeSlots:
    """The axis of each tensor along which slots may be free.

    Attributes:
        pairs: Result of a neighbor search with -1 in free slots, by the id of its chosen pairs.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[Slots, int]] = {}
        self.pairs: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []  # tensors are found by their ids, so none may be freed
        self._chosen: dict[Any, Slots] = {}
        self._is_ignored = False

    def of(self, tensor: Any) -> tuple[Slots, int] | None:
        """Return the slots of a tensor and their axis; None if each row holds a value."""
        return self._found.get(id(tensor))

    def mark(self, tensor: Tensor, slots: Slots, axis: int) -> Tensor:
        """Note that slots along an axis of a tensor may be free, and return the tensor."""
        self._found[id(tensor)] = slots, axis
        self._kept.append(tensor)
        return tensor

    def chosen_by(self, mask: Tensor, formula: Any, refuse: Callable[[], None]) -> Slots:
        """Return the slots that a mask chooses; free slots stay free. Masks of one formula share their slots."""
        if formula not in self._chosen:
            before = self.of(mask)
            kept = mask.clone() if before is None else mask & before[0].kept()  # the model may change the mask later
            self._chosen[formula] = Slots((kept,), refuse)
        return self._chosen[formula]

    def ignored(self) -> contextlib.AbstractContextManager[None]:
        """Follow no slots while the block runs; the block removes the values of free slots."""
        return replaced(self, "_is_ignored", True)

    def check_results(self, results: Sequence[Tensor]) -> list[Tensor]:
        """Return the results of a model without free slots; pairs of a neighbor search have -1 in them instead.

        Raises:
            DynamicShapeError: a result has free slots.
        """
        given = [self.pairs.get(id(one), one) for one in results]
        for found in map(self.of, given):
            if found is not None:
                found[0].refuse()
        return given

    def mark_sizes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Return the result of a torch function, with marks of the slots in the sizes that it takes or returns."""
        if not self._found or self._is_ignored:
            return result
        name, own = getattr(func, "__name__", ""), self.of(args[0]) if args else None
        if own is not None and isinstance(result, torch.Size):
            return torch.Size([_count(n, own[0]) if axis == own[1] else n for axis, n in enumerate(result)])
        if own is not None and name in ("size", "numel"):
            asked = [*args[1:], *kwargs.values(), own[1]][0]  # the requested axis; without one, the axis of the slots
            return _count(result, own[0]) if asked % args[0].dim() == own[1] else result
        if own is not None and name == "__len__" and own[1] == 0:
            own[0].refuse()  # Python converts the result to a plain int
        given = [part for part in tree_leaves((args, kwargs)) if not isinstance(part, Tensor)]
        for axis, count in enumerate(given):
            if isinstance(count, SlotCount):
                if name not in _TAKES_SIZES.split() or result.shape[axis : axis + 1] != (int(count),):
                    count.slots.refuse()
                elif self.of(result) is None:
                    self.mark(result, count.slots, axis)
        return result

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Note the slots in the result of an operation, and return it.

        Raises:
            DynamicShapeError: the operation combines rows.
        """
        # Gradients of free slots are zero, and `new_...` reads only the type of its operand.
        if (
            not self._found
            or self._is_ignored
            or torch._C._current_autograd_node() is not None
            or (name := func._schema.name.removeprefix("aten::")).startswith("new_")
        ):
            return result
        given = [part for part in tree_leaves((args, kwargs)) if self.of(part) is not None]
        twice_is_once = func in _TWICE_IS_ONCE and not args[0].requires_grad  # equal rows would share the gradient
        if given and makes_tensors(func) and not twice_is_once:
            slots = [self._found[id(part)][0] for part in given]
            made = [part for part in tree_leaves(result) if isinstance(part, Tensor)]
            axes = self._axes(func, name, args, kwargs, given, made) if all(map(slots[0].alike, slots)) else []
            for one in slots if len(axes) != len(made) else ():
                one.refuse()
            for part, axis in zip(made, axes, strict=False):
                self.mark(part, slots[0], axis)
        return result

    def _axes(self, func: Any, name: str, args: Any, kwargs: Any, given: list[Tensor], made: list[Tensor]) -> list[int]:
        """Return the axis of the slots in each result; fewer axes if the operation combines rows."""
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
        """Return the axis of each result that grows when the operands have one slot more."""

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
