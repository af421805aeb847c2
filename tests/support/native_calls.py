"""Operations that run through native calls, for tests that compare them with torch bit by bit."""

from typing import Any

import torch
from torch import Tensor

from popgeo.capture.marks import layout_of
from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, Value, overload
from popgeo.engine.program import lower_copies, lower_elements, lower_rows, lower_sums  # noqa: F401  they register
from popgeo.engine.program.native_call import LOWERINGS, NativeCall
from popgeo.native import library


class Single:
    """A graph of one operation, with a tensor for each value.

    Args:
        target: The operation.
        args: Its arguments; an operation in place changes the first one.
        result: Where the result goes; by default new memory with torch's layout.
        named: Keyword arguments.
    """

    def __init__(self, target: str, *args: Any, result: Tensor | None = None, **named: Any) -> None:
        self.target, self.args, self.named = target, args, named
        self.tensors: dict[int, Tensor] = {}
        places, named_places = self._values(args), self._values(named)
        self.in_place = bool(overload(target)._schema.is_mutable)
        num_inputs = len(self.tensors)
        if self.in_place:
            self.result = args[0]
        else:
            self.result = self._new_result() if result is None else result
            self.tensors[num_inputs] = self.result
        made = 0 if self.in_place else num_inputs
        writes = (0,) if self.in_place else ()
        self.op = Op(target=target, args=places, kwargs=named_places, outputs=(made,), writes=writes)
        values = tuple(
            Value(**layout_of(x), storage=v, producer=0 if v == num_inputs else None) for v, x in self.tensors.items()
        )
        inputs = {Input(Role.ARGUMENT, str(v)): v for v in range(num_inputs)}
        self.graph = OpGraph(ops=(self.op,), values=values, inputs=inputs, outputs=(made,))

    def _values(self, given: Any) -> Any:
        if isinstance(given, Tensor):
            self.tensors[len(self.tensors)] = given
            return Ref(len(self.tensors) - 1)
        if isinstance(given, dict):
            return {key: self._values(one) for key, one in given.items()}
        return type(given)(map(self._values, given)) if isinstance(given, (list, tuple)) else given

    def _new_result(self) -> Tensor:
        theirs = self.torchs_result()
        place = torch.empty_strided(theirs.shape, theirs.stride(), dtype=theirs.dtype)
        place.untyped_storage().fill_(90)
        return place

    def torchs_result(self) -> Tensor:
        """Return the result of torch; an operation in place changes a copy."""
        args = (copy_of(self.args[0]), *self.args[1:]) if self.in_place else self.args
        return overload(self.target)(*args, **self.named)

    def call(self) -> NativeCall | None:
        """Return the native call; None if torch runs the operation."""
        lower = LOWERINGS.get(self.target)
        return None if lower is None else lower(self.graph, self.op, self.tensors)


def copy_of(x: Tensor) -> Tensor:
    """Return a tensor with the same layout in other memory."""
    memory = x.untyped_storage().clone()
    return torch.empty(0, dtype=x.dtype).set_(memory, x.storage_offset(), x.shape, x.stride())


def run(call: NativeCall | None) -> int:
    """Run a native call and return its status."""
    assert call is not None
    function = library.packed(call.function)
    assert function is not None
    return function(call.words.tobytes())


def has_torchs_bits(target: str, *args: Any, **named: Any) -> bool:
    """Check that the native call of an operation gives the bits that torch gives."""
    single = Single(target, *args, **named)
    theirs = single.torchs_result()
    call = single.call()
    assert call is not None, f"{target} has no native call"
    assert run(call) == 0
    return same_bits(single.result, theirs)


def is_left_to_torch(target: str, *args: Any, **named: Any) -> bool:
    """Check that an operation has no native call."""
    return Single(target, *args, **named).call() is None


def same_bits(mine: Tensor, theirs: Tensor) -> bool:
    """Check that two tensors have the same type, shape and bits; all NaNs count as one."""
    if mine.dtype is not theirs.dtype or mine.shape != theirs.shape:
        return False
    if not mine.dtype.is_floating_point:
        return torch.equal(mine, theirs)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[mine.itemsize]
    same = mine.contiguous().view(bits) == theirs.contiguous().view(bits)
    return bool((same | (mine.isnan() & theirs.isnan())).all())


def layouts_of(x: Tensor) -> list[Tensor]:
    """Return a tensor's elements in several layouts: contiguous, in reverse order, with gaps, repeated."""
    reverse = tuple(range(x.dim()))[::-1]
    gaps = torch.stack([x, x], -1).repeat_interleave(2, 0)[::2, ..., 0]
    return [x, x.permute(reverse).contiguous().permute(reverse), gaps, x[:1].clone().expand(x.shape)]
