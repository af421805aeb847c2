"""A graph that is being written: operations and values so far, which tensor represents which value, what it holds."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_map

from popgeo.capture.marks import layout_of
from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Value, substitute
from popgeo.capture.passes import is_random, run_op

# Positions of the arguments that do not decide how many elements such an operation returns.
_DATA = {"index": (0,), "masked_select": (0,), **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), (0, 2))}


class UnknownValue(Exception):
    """What a tensor holds depends on what is not known."""


class Page:
    """Operations, values, inputs and constants as they come.

    Attributes:
        ops: The operations, in order.
        values: What they read and make.
        inputs: The value of each input.
        constants: What operations have read that nothing made, by value.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.inputs: dict[Input, int] = {}
        self.constants: dict[int, Tensor] = {}
        self._numbers: dict[int, int] = {}
        # A number is found by the tensor's id, so none may be freed and its id used again.
        self._kept: list[Tensor] = []
        self._storages: dict[int, int] = {}

    def add_inputs(self, given: Mapping[Input, Tensor]) -> None:
        """Says what the tensors are that each run is given."""
        for one, tensor in given.items():
            self.inputs[one] = self.new_value(tensor, producer=None)

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's value; a tensor that nothing made is a constant."""
        known = self._numbers.get(id(tensor))
        if known is None:
            mode = detect_fake_mode()
            stands_in = tensor if mode is None else mode.from_tensor(tensor)  # in whose memory its views will lie
            known = self._numbers[id(tensor)] = self.new_value(stands_in, producer=None)
            self.constants[known] = tensor
        return known

    def output(self, tensor: Tensor) -> int:
        """The number of what the next operation returns, which may be a tensor that it was given."""
        known = self._numbers.get(id(tensor))
        return self.new_value(tensor, producer=len(self.ops)) if known is None else known

    def new_value(self, tensor: Tensor, producer: int | None) -> int:
        """The number of a new value, which the tensor represents from now on.

        Raises:
            ValueError: the tensor is a sparse one.
        """
        if tensor.layout is not torch.strided:
            raise ValueError(f"A {tensor.layout} tensor has no fixed layout; make it dense, or pass an edge_index.")
        storage = self._storages.setdefault(tensor.untyped_storage()._cdata, len(self._storages))
        self._numbers[id(tensor)] = len(self.values)
        self.values.append(Value(storage=storage, producer=producer, **layout_of(tensor)))
        self._kept.append(tensor)
        return len(self.values) - 1

    def share_memory(self, view: Tensor, of: Tensor) -> None:
        """Lets the memory of a view that nothing has been told of be that of another tensor."""
        self._storages.setdefault(view.untyped_storage()._cdata, self.values[self.number(of)].storage)

    def forget(self, tensor: Tensor) -> None:
        """Lets a tensor represent something else from now on."""
        del self._numbers[id(tensor)]

    def with_refs(self, argument: Any) -> Any:
        """An argument with the numbers of its tensors instead of them."""
        if isinstance(argument, Tensor):
            return Ref(self.number(argument))
        if isinstance(argument, list | tuple):
            return type(argument)(self.with_refs(item) for item in argument)
        return argument

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether an operation has read this tensor, which nothing made."""
        return self._numbers.get(id(tensor)) in self.constants

    def is_fresh(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in memory that an operation made."""
        known = self._numbers.get(id(tensor))
        given = self.storages((*self.inputs.values(), *self.constants))
        return known is not None and self.values[known].storage not in given

    def has_other_shape(self, tensor: Tensor) -> bool:
        """Whether a tensor has got another shape since it was written down."""
        known = self._numbers.get(id(tensor))
        return known is not None and tensor.shape != self.values[known].shape

    def depends_on(self, tensor: Tensor) -> set[int]:
        """The numbers of the values that a tensor was worked out from, its own included."""
        return {self.number(tensor), *(v for op in self.ops_for(tensor) for v in op.reads())}

    def ops_for(self, tensor: Tensor) -> list[Op]:
        """The operations that a tensor was worked out by, in order."""
        needed = {self.number(tensor)}
        memory, found = self.storages(needed), []
        for op in reversed(self.ops):
            if {*op.makes()} & needed or memory & self.storages(op.writes):
                found.append(op)
                needed.update(op.reads())
                memory |= self.storages(op.reads())
        return found[::-1]

    def formula(self, tensor: Tensor) -> str:
        """How a tensor was worked out by the last few operations; where two are the same, so are the values."""
        written = self.storages(v for op in self.ops for v in op.writes)

        def of(number: int, depth: int) -> Any:
            made_by = self.values[number].producer
            if depth == 0 or made_by is None or self.values[number].storage in written or is_random(self.ops[made_by]):
                return number
            op = self.ops[made_by]
            inside = (substitute(given, lambda v: of(v, depth - 1)) for given in (op.args, op.kwargs))
            return op.target, op.outputs.index(number), *inside

        return repr(of(self.number(tensor), 4))

    def compute(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: Mapping[int, Tensor] | None = None,
        makes_up: bool = False,
    ) -> Any:
        """The result of an operation on what its operands hold; a stand-in for each tensor.

        Args:
            func: The operation.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            given: What some stand-ins hold that nothing made, by their id.
            makes_up: Take what is not known to be ones.

        Raises:
            UnknownValue: an operand that decides the result depends on what is neither constant nor given.
        """
        data: Collection[int] = _DATA.get(func._schema.name.removeprefix("aten::"), ())

        def known(part: Any, position: int | None = None) -> Any:
            try:
                return self._elements(part, given or {}) if isinstance(part, Tensor) else part
            except UnknownValue:
                if not makes_up and position not in data:
                    raise
                return torch.ones(part.shape, dtype=part.dtype)

        with unset_fake_temporarily():
            operands = [tree_map(lambda part, at=at: known(part, at), arg) for at, arg in enumerate(args)]
            made = func(*operands, **tree_map(known, dict(kwargs)))
        if func._schema.is_mutable:
            changed = operands[0]
            if isinstance(changed, Tensor) and changed.shape != args[0].shape:
                raise ValueError(
                    f"{func._schema.name} gives a tensor of shape {list(args[0].shape)} the shape "
                    f"{list(changed.shape)} in place. Make a new tensor: leave out the underscore of its name, or out=."
                )
            return args[0]
        # Of constants alone nothing is a stand-in yet.
        mode = detect_fake_mode(args) or next(one.fake_mode for one in self._kept if isinstance(one, FakeTensor))
        return tree_map(lambda part: mode.from_tensor(part) if isinstance(part, Tensor) else part, made)

    def _elements(self, tensor: Tensor, given: Mapping[int, Tensor]) -> Tensor:
        """What a tensor holds, computed again in memory of its own; a tensor from outside itself if nothing made it."""
        ops, number = self.ops_for(tensor), self.number(tensor)
        if any(is_random(op) or op.bodies for op in ops):
            raise UnknownValue
        values: dict[int, Tensor] = {}
        for v in {v for v in (number, *(v for op in ops for v in op.reads())) if self.values[v].producer is None}:
            outside = self.constants.get(v)
            held = given.get(id(outside)) if isinstance(outside, FakeTensor) else outside
            if held is None:
                raise UnknownValue
            values[v] = held.detach().clone() if ops else held
        for op in ops:
            values |= run_op(op, values)
        return values[number]

    def changed(self, given: Mapping[Input, Tensor]) -> set[Input]:
        """The inputs whose elements some operation changes in place.

        Raises:
            ValueError: an input is given another shape in place, or other memory, as the caller's tensor would not be.
        """
        for one, tensor in given.items():
            value = self.values[self.inputs[one]]
            memory = self._storages.get(tensor.untyped_storage()._cdata)
            if self._numbers[id(tensor)] != self.inputs[one] or memory != value.storage:
                raise ValueError(
                    f"The model gives {one.name} another shape or other memory, as t_() and an assignment to .data do; "
                    "a compiled step leaves arguments in their memory. Change it with copy_() or make a new tensor."
                )
        written = self.storages(v for op in self.ops for v in op.writes)
        return {one for one in given if self.values[self.inputs[one]].storage in written}

    def storages(self, numbers: Iterable[int]) -> set[int]:
        """The storages of values."""
        return {self.values[v].storage for v in numbers}

    def graph(self, outputs: Sequence[Tensor | None]) -> OpGraph:
        """What was written down, returning these tensors."""
        made = tuple(None if tensor is None else self.number(tensor) for tensor in outputs)
        own = {v: _real(tensor) for v, tensor in self.constants.items()}
        ops, values = tuple(self.ops), tuple(self.values)
        return OpGraph(ops=ops, values=values, inputs=dict(self.inputs), outputs=made, constants=own)


def _real(tensor: Tensor) -> Tensor:
    if isinstance(tensor, FakeTensor):
        raise ValueError("A tensor of another capture is used; pass it as an argument or make it a buffer.")
    return tensor.detach()
