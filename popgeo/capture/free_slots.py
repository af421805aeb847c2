"""Rows that a mask chooses, in as many slots as there were rows: what is computed there is followed to where it ends.

The slot of a row that the mask leaves out is *free*: it repeats the first row that stays, so nothing new is computed in
it. PyG's `scatter` and `degree` pass free slots by, and so no gradient comes back from them. Whatever else would let
the rows meet, such as a mean, a sort or a norm of the batch, and whatever hands them out, depends on the data.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map

from popgeo.capture.schemas import makes_tensors


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
        return [*map(_identity, self.parts)] == [*map(_identity, other.parts)]

    def kept(self) -> Tensor:
        """Which slots hold a row. [num_slots]"""
        masks = [part if isinstance(part, Tensor) else torch.ones(part, dtype=torch.bool) for part in self.parts]
        return masks[0] if len(masks) == 1 else torch.cat(masks)


def _identity(part: Tensor | int) -> tuple[int, ...]:
    return (id(part), part._version) if isinstance(part, Tensor) else (part,)


class SlotCount(int):
    """How many slots an axis has. The number of rows depends on the data, so nothing but a shape may be made of it."""

    slots: Slots

    @classmethod
    def of(cls, number: int, slots: Slots) -> "SlotCount":
        count = cls(number)
        count.slots = slots
        return count


def _refused(name: str) -> Callable[..., Any]:
    def operator(self: SlotCount, *others: Any) -> Any:
        if name not in ("__gt__", "__ge__", "__lt__", "__le__") or others != (0,):
            self.slots.refuse()
        return getattr(int(self), name)(*others)

    return operator


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "radd",
    "rsub",
    "rmul",
    "rtruediv",
    "rfloordiv",
    "gt",
    "ge",
    "lt",
    "le",
    "float",
    "neg",
]:
    setattr(SlotCount, f"__{_name}__", _refused(f"__{_name}__"))

# What has a row of its own for each row that it is given, if those lie along an axis that it does not work along.
_ROW_BY_ROW = frozenset(
    [
        "_log_softmax",
        "_softmax",
        "_to_copy",
        "addmm",
        "all",
        "amax",
        "amin",
        "any",
        "argmax",
        "argmin",
        "baddbmm",
        "bernoulli",
        "bmm",
        "cat",
        "clone",
        "embedding",
        "empty_like",
        "flip",
        "full_like",
        "gather",
        "glu",
        "index",
        "index_select",
        "linalg_vector_norm",
        "log_sigmoid_forward",
        "logsumexp",
        "max",
        "mean",
        "min",
        "mm",
        "mv",
        "native_dropout",
        "native_layer_norm",
        "ones_like",
        "_prelu_kernel",
        "prod",
        "rand_like",
        "randn_like",
        "std",
        "stack",
        "sum",
        "var",
        "zeros_like",
    ]
)
_IN_PLACE = frozenset(("bernoulli_", "uniform_", "fill_", "zero_", "copy_", "normal_"))  # element by element
_GATHERS = frozenset(("embedding", "gather", "index", "index_select"))
_TAKES_SIZES = frozenset(
    [
        "empty",
        "expand",
        "full",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "rand",
        "randn",
        "reshape",
        "unflatten",
        "view",
        "zeros",
    ]
)


class FreeSlots(TorchDispatchMode):
    """Knows along which axis of which tensor there are slots that may be free."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, tuple[Slots, int]] = {}
        self._kept: list[Any] = []  # a tensor is found by its id, so none may be freed
        self._chosen: dict[tuple[int, ...], Slots] = {}
        self._trusted = False

    def of(self, tensor: Any) -> tuple[Slots, int] | None:
        """The slots of a tensor and their axis; None where each row holds one."""
        return self._found.get(id(tensor))

    def mark(self, tensor: Tensor, slots: Slots, axis: int) -> Tensor:
        """Says that some slots along an axis are free."""
        self._found[id(tensor)] = slots, axis
        self._kept.append(tensor)
        return tensor

    def chosen_by(self, mask: Tensor, refuse: Callable[[], None]) -> Slots:
        """The slots that a mask leaves, of which those that were free remain so."""
        known = self._chosen.get(_identity(mask))
        if known is None:
            before = self.of(mask)
            kept = mask if before is None else mask & before[0].kept()
            known = self._chosen[_identity(mask)] = Slots((kept,), refuse)
            self._kept.append(mask)
        return known

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Follows nothing while the block runs: it drops what is in free slots."""
        before, self._trusted = self._trusted, True
        try:
            yield
        finally:
            self._trusted = before

    def refuse_in(self, made: Any) -> None:
        """Refuses results that have free slots."""
        for part in tree_leaves(made):
            if (found := self.of(part)) is not None:
                found[0].refuse()

    def sizes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """The result of a torch function with the marks of slots in the sizes that it takes or returns."""
        if not self._found or self._trusted:
            return result
        name = getattr(func, "__name__", "")
        found = self.of(args[0]) if args else None
        if found is not None and isinstance(result, torch.Size):
            return torch.Size([SlotCount.of(n, found[0]) if a == found[1] else n for a, n in enumerate(result)])
        if found is not None and name in ("size", "numel"):
            asked = [*args[1:], *kwargs.values(), found[1]][0]  # an axis, or all of them
            return SlotCount.of(result, found[0]) if asked % args[0].dim() == found[1] else result
        if found is not None and name == "__len__" and found[1] == 0:
            found[0].refuse()  # Python makes it a number of its own
        given = [part for part in tree_leaves((args, kwargs)) if not isinstance(part, Tensor)]
        for axis, count in enumerate(given):
            if isinstance(count, SlotCount):
                fits = name in _TAKES_SIZES and axis < result.dim() and result.size(axis) == int(count)
                if not fits:
                    count.slots.refuse()
                elif self.of(result) is None:
                    self.mark(result, count.slots, axis)
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        result = func(*args, **keywords)
        # What comes back to free slots in a backward pass is zero.
        if not self._found or self._trusted or torch._C._current_autograd_node() is not None:
            return result
        given = {id(part): found for part in tree_leaves((args, keywords)) if (found := self.of(part)) is not None}
        name = func._schema.name.removeprefix("aten::")
        if not given or not makes_tensors(func) or name.startswith("new_"):  # of the given type alone
            return result
        made = [part for part in tree_leaves(result) if isinstance(part, Tensor)]
        slots = next(iter(given.values()))[0]
        axes = (
            self._axes(func, name, args, keywords, made)
            if all(slots.alike(other) for other, _ in given.values())
            else None
        )
        if axes is None:
            for other, _ in given.values():
                other.refuse()
        else:
            for part, axis in zip(made, axes, strict=True):
                self.mark(part, slots, axis)
        return result

    def _axes(self, func: Any, name: str, args: Any, kwargs: Any, made: Sequence[Tensor]) -> list[int] | None:
        """Along which axis each result has the slots; None where an operation would let the rows meet."""
        (first, first_axis), *_ = given = [
            (part, found[1]) for part in tree_leaves((args, kwargs)) if (found := self.of(part)) is not None
        ]
        if func._schema.is_mutable:
            pointwise = torch.Tag.pointwise in func.tags or name in _IN_PLACE
            own = self.of(args[0])
            same = own is not None and all(t.dim() - a == args[0].dim() - own[1] for t, a in given)
            return [own[1]] if own is not None and pointwise and same else None
        if any(part.layout is not torch.strided for part in made):
            return None
        if all(_same_memory(part, first) for part in made):
            axes = [_shown_axis(part, first, first_axis) for part in made]
            return None if None in axes else axes  # type: ignore[return-value]
        if torch.Tag.pointwise in func.tags:
            (from_right,) = found if len(found := {t.dim() - axis for t, axis in given}) == 1 else (0,)
            return [part.dim() - from_right for part in made] if from_right else None
        along = args[1] if len(args) > 1 and isinstance(args[1], int) else None
        if name not in _ROW_BY_ROW or (name in ("_softmax", "_log_softmax", "flip") and _meets(args, first_axis)):
            return None
        if name in _GATHERS and (own := self.of(args[0])) is not None and _gathers_along(args, own[1], along):
            return None
        return self._axes_by_size(func, args, kwargs, made, first.size(first_axis))

    def _axes_by_size(self, func: Any, args: Any, kwargs: Any, made: Sequence[Tensor], num: int) -> list[int] | None:
        """Where the results become longer when there is a slot more."""

        def longer(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return part
            slots = self.of(part)
            shape = [n + (slots is not None and slots[1] == axis) for axis, n in enumerate(part.shape)]
            return torch.empty(shape, dtype=part.dtype, device="meta")

        with unset_fake_temporarily():
            try:
                others = tree_leaves(func(*tree_map(longer, args), **tree_map(longer, kwargs)))
            except (RuntimeError, IndexError):
                return None
        axes = []
        for part, other in zip(made, others, strict=True):
            grown = [axis for axis, (n, m) in enumerate(zip(part.shape, other.shape, strict=True)) if n != m]
            if len(grown) != 1 or (part.size(grown[0]), other.size(grown[0])) != (num, num + 1):
                return None
            axes += grown
        return axes


def _meets(args: Any, axis: int) -> bool:
    dims = args[1] if isinstance(args[1], list | tuple) else [args[1]]
    return axis in [dim % args[0].dim() for dim in dims]


def _gathers_along(args: Any, axis: int, along: int | None) -> bool:
    """Whether rows are looked up along the axis of the slots, where their place means nothing."""
    if along is not None:
        return along % args[0].dim() == axis
    indices = args[1] if isinstance(args[1], list | tuple) else [args[1]]
    return (axis < len(indices) and indices[axis] is not None) or sum(i is not None for i in indices) > 1


def _same_memory(part: Tensor, other: Tensor) -> bool:
    return part.untyped_storage()._cdata == other.untyped_storage()._cdata


def _shown_axis(view: Tensor, tensor: Tensor, axis: int) -> int | None:
    """Where a view has the axis of a tensor; None where it shows but a part of it, or has joined it with another."""
    look = tensor.size(axis), tensor.stride(axis)
    found = [a for a in range(view.dim()) if (view.size(a), view.stride(a)) == look]
    return found[0] if len(found) == 1 else None


def active_slots() -> FreeSlots | None:
    """What follows free slots now; None outside of a capture."""
    modes = reversed(_get_current_dispatch_mode_stack())
    return next((mode for mode in modes if isinstance(mode, FreeSlots)), None)
