"""Tensors of any layout as words of a structure, and the registration of lowerings that write such structures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Number, Op, OpGraph, overload, substitute
from popgeo.capture.schemas import named_arguments
from popgeo.engine.fuse.chain import collapse
from popgeo.engine.program.native_call import LOWERINGS, NativeCall

TYPES = {torch.float32: 0, torch.float64: 1, torch.int64: 2, torch.int32: 3, torch.bool: 4}
"""The types of numbers that plain kernels compute with, in the order of `Type` in native/csrc/plain.h."""
MOVED = {1: 5, 2: 6, 4: 3, 8: 2}
"""For each number of bytes, the type as which elements of any type are moved."""
NUM_DIMS = 6

# A function that lowers an operation. It takes the tensors that the operation writes, and its arguments by name.
LowerPlain = Callable[[list[Tensor], Mapping[str, Any]], NativeCall]


class Unfit(Exception):
    """An operation that no plain kernel computes with torch's bits."""


def require(fits: bool) -> None:
    """Raise `Unfit` if an operation does not fit its kernel."""
    if not fits:
        raise Unfit


def lowers(*targets: str) -> Callable[[LowerPlain], LowerPlain]:
    """Return a decorator that registers a function for these operations."""

    def register(function: LowerPlain) -> LowerPlain:
        def lower(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> NativeCall | None:
            given = vars(named_arguments(overload(op.target), op.args, op.kwargs))
            try:
                require(None not in op.outputs)
                results = [tensors[v] for v in op.writes or op.makes()]
                return function(results, substitute(given, lambda v: tensors[v]))
            except (KeyError, Unfit):  # a value without a fixed place has no tensor
                return None

        LOWERINGS.update(dict.fromkeys(targets, lower))
        return function

    return register


@dataclass(frozen=True, kw_only=True)
class Area:
    """Elements in memory: their address, type, shape, and steps in elements.

    Attributes:
        address: Address of the first element.
        kind: Number of their type in `TYPES`, or the type as which they are moved.
        itemsize: Bytes of an element.
        shape: Sizes.
        steps: Elements between neighbors, per dimension.
    """

    address: int
    kind: int
    itemsize: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor, moved: bool = False) -> "Area":
        """Return a tensor's area; `moved` if the type of its elements does not matter."""
        plain = tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_conj() and not tensor.is_neg()
        kind = (MOVED.get(tensor.itemsize) if moved else TYPES.get(tensor.dtype)) if plain else None
        if kind is None:
            raise Unfit
        layout = {"shape": tuple(tensor.shape), "steps": tensor.stride()}
        return cls(address=tensor.data_ptr(), kind=kind, itemsize=tensor.itemsize, **layout)

    def expanded(self, shape: Sequence[int]) -> "Area":
        """Return the area with a step of 0 in each dimension in which it repeats its elements."""
        missing = len(shape) - len(self.shape)
        require(missing >= 0)
        own = (1,) * missing + self.shape
        require(all(n in (1, size) for n, size in zip(own, shape, strict=True)))
        steps = (0,) * missing + self.steps
        steps = tuple(0 if n == 1 else step for n, step in zip(own, steps, strict=True))
        return replace(self, shape=tuple(shape), steps=steps)

    def flipped(self, dims: Iterable[int]) -> "Area":
        """Return the area with the elements of some dimensions in reverse order."""
        turned = {dim % len(self.shape) for dim in dims}
        last = sum((self.shape[d] - 1) * self.steps[d] for d in turned)
        steps = tuple(-step if d in turned else step for d, step in enumerate(self.steps))
        return replace(self, address=self.address + last * self.itemsize, steps=steps)

    def span(self) -> tuple[int, int]:
        """Return the first address of its elements and the first address after them."""
        if 0 in self.shape:
            return 0, 0
        reach = [(n - 1) * step * self.itemsize for n, step in zip(self.shape, self.steps, strict=True)]
        ends = [self.address + sum(f(0, one) for one in reach) for f in (min, max)]
        return ends[0], ends[1] + self.itemsize

    def overlaps(self, other: "Area") -> bool:
        """Check whether two areas may share memory in another way than element by element."""
        (start, end), (begin, stop) = self.span(), other.span()
        same = self.address == other.address and self.itemsize == other.itemsize and self.shape == other.shape
        steps = zip(self.shape, self.steps, other.steps, strict=False)
        return start < stop and begin < end and not (same and all(n == 1 or a == b for n, a, b in steps))

    def repeats(self) -> bool:
        """Check whether two of its elements may share memory."""
        end = 1
        for step, n in sorted((abs(step), n) for step, n in zip(self.steps, self.shape, strict=True) if n > 1):
            if step < end:
                return True
            end += step * (n - 1)
        return False


def constant(number: Any) -> Tensor:
    """Return a number as a tensor in memory; the number of a slot has its own memory, which `slots_of` finds."""
    value = number.value if isinstance(number, Number) else number
    require(type(value) in (int, float, bool))
    dtype = {int: torch.int64, float: torch.float64, bool: torch.bool}[type(value)]
    require(type(value) is not int or -(2**63) <= value < 2**63)
    return torch.tensor(value, dtype=dtype)


def joined(areas: Sequence[Area]) -> tuple[list[int], list[list[int]]]:
    """Return sizes, and the steps of each area, in the order of the first area; neighboring dimensions are joined."""
    dims = [d for d, n in enumerate(areas[0].shape) if n != 1]
    dims.sort(key=lambda d: -abs(areas[0].steps[d]))
    shape, steps = tuple(areas[0].shape[d] for d in dims), [tuple(area.steps[d] for d in dims) for area in areas]
    sizes, steps = collapse(shape, steps)
    require(len(sizes) <= NUM_DIMS)
    missing = NUM_DIMS - len(sizes)
    return [*[1] * missing, *sizes], [[*[0] * missing, *own] for own in steps]


@dataclass(frozen=True, kw_only=True)
class Element:
    """An operation by element of `popgeo_elements`.

    Attributes:
        code: Its number in `CODES`.
        kind: The type in which it computes.
        out: Where the results go.
        operands: Its operands, which repeat their elements as torch broadcasts.
    """

    code: int
    kind: int
    out: Area
    operands: Sequence[Area]

    def words(self) -> list[int]:
        """Return its structure."""
        areas = [self.out, *(operand.expanded(self.out.shape) for operand in self.operands)]
        require(not self.out.repeats() and not any(self.out.overlaps(area) for area in areas[1:]))
        sizes, steps = joined(areas)
        parts = [[area.address, area.kind, *own] for area, own in zip(areas, steps, strict=True)]
        parts += [[0] * (2 + NUM_DIMS)] * (4 - len(parts))
        return [self.code, self.kind, len(areas) - 1, *sizes, *(word for part in parts for word in part)]


def elements_call(elements: Sequence[Element], numbers: Iterable[Any] = (), held: Any = ()) -> NativeCall:
    """Return the call that computes operations by element, one after the other."""
    words = [len(elements), *(word for one in elements for word in one.words())]
    return NativeCall(function="popgeo_elements", words=np.array(words, np.int64), numbers=list(numbers), held=held)
