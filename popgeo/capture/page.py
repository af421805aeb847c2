"""A graph during its capture: operations and values so far, the value of each tensor, and known contents."""

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

# Positions of the arguments that do not decide the number of elements of the result.
_DATA = {"index": (0,), "masked_select": (0,), **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), (0, 2))}


class UnknownValue(Exception):
    """An error about the contents of a tensor that depend on unknown values."""


class Page:
    """The operations, values, inputs and constants of a capture so far.

    Attributes:
        ops: Operations, in order.
        values: Values that they read and make.
        inputs: Value of each input.
        constants: Tensors that operations read and no operation made, by value.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.inputs: dict[Input, int] = {}
        self.constants: dict[int, Tensor] = {}
        self._numbers: dict[int, int] = {}
        # Numbers are found by the ids of tensors, so no tensor may be freed and its id used again.
        self._kept: list[Tensor] = []
        self._storages: dict[int, int] = {}

    def add_inputs(self, given: Mapping[Input, Tensor]) -> None:
        """Add one value per input of the graph."""
        for one, tensor in given.items():
            self.inputs[one] = self.new_value(tensor, producer=None)

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor's value; a tensor that no operation made becomes a constant."""
        known = self._numbers.get(id(tensor))
        if known is None:
            mode = detect_fake_mode()
            stands_in = tensor if mode is None else mode.from_tensor(tensor)  # later views lie in its memory
            known = self._numbers[id(tensor)] = self.new_value(stands_in, producer=None)
            self.constants[known] = tensor
        return known

    def output(self, tensor: Tensor) -> int:
        """Return the number of a result of the next operation, which may be one of its operands."""
        known = self._numbers.get(id(tensor))
        return self.new_value(tensor, producer=len(self.ops)) if known is None else known

    def new_value(self, tensor: Tensor, producer: int | None) -> int:
        """Return the number of a new value, which the tensor represents from now on.

        Raises:
            ValueError: the tensor is sparse.
        """
        if tensor.layout is not torch.strided:
            raise ValueError(f"A {tensor.layout} tensor has no fixed layout; make it dense, or pass an edge_index.")
        storage = self._storages.setdefault(tensor.untyped_storage()._cdata, len(self._storages))
        self._numbers[id(tensor)] = len(self.values)
        self.values.append(Value(storage=storage, producer=producer, **layout_of(tensor)))
        self._kept.append(tensor)
        return len(self.values) - 1

    def share_memory(self, view: Tensor, of: Tensor) -> None:
        """Place a view that has no value yet in the memory of another tensor."""
        self._storages.setdefault(view.untyped_storage()._cdata, self.values[self.number(of)].storage)

    def forget(self, tensor: Tensor) -> None:
        """Remove the value of a tensor, which gets a new value later."""
        del self._numbers[id(tensor)]

    def with_refs(self, argument: Any) -> Any:
        """Return an argument with a `Ref` in place of each tensor."""
        if isinstance(argument, Tensor):
            return Ref(self.number(argument))
        if isinstance(argument, list | tuple):
            return type(argument)(self.with_refs(item) for item in argument)
        return argument

    def is_constant(self, tensor: Tensor) -> bool:
        """Check whether operations have read a tensor that no operation made and that is no input."""
        return self._numbers.get(id(tensor)) in self.constants

    def is_fresh(self, tensor: Tensor) -> bool:
        """Check whether a recorded operation made the memory of a tensor."""
        known = self._numbers.get(id(tensor))
        given = self.storages((*self.inputs.values(), *self.constants))
        return known is not None and self.values[known].storage not in given

    def has_other_shape(self, tensor: Tensor) -> bool:
        """Check whether the shape of a tensor has changed since it was recorded."""
        known = self._numbers.get(id(tensor))
        return known is not None and tensor.shape != self.values[known].shape

    def depends_on(self, tensor: Tensor) -> set[int]:
        """Return the numbers of the values from which a tensor was computed, and of the tensor itself."""
        return {self.number(tensor), *(v for op in self.ops_for(tensor) for v in op.reads())}

    def ops_for(self, tensor: Tensor) -> list[Op]:
        """Return the operations that computed a tensor, in order."""
        needed = {self.number(tensor)}
        memory, found = self.storages(needed), []
        for op in reversed(self.ops):
            if {*op.makes()} & needed or memory & self.storages(op.writes):
                found.append(op)
                needed.update(op.reads())
                memory |= self.storages(op.reads())
        return found[::-1]

    def formula(self, tensor: Tensor) -> str:
        """Return the last few operations that computed a tensor as text; tensors with equal texts are equal."""
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
        """Return the result of an operation on the contents of its operands, with a stand-in for each tensor.

        Args:
            func: Operation.
            args: Positional arguments.
            kwargs: Keyword arguments.
            given: Contents of stand-ins that no operation made, by their id. Default: none.
            makes_up: Use ones for unknown contents. Default: False.

        Raises:
            UnknownValue: an operand that decides the result depends on a value that is neither constant nor given.
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
        # If all operands are constants, none of them is a stand-in.
        mode = detect_fake_mode(args) or next(one.fake_mode for one in self._kept if isinstance(one, FakeTensor))
        return tree_map(lambda part: mode.from_tensor(part) if isinstance(part, Tensor) else part, made)

    def _elements(self, tensor: Tensor, given: Mapping[int, Tensor]) -> Tensor:
        """Return the contents of a tensor, computed again in new memory, or an outside tensor that nothing changed."""
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
        """Return the inputs that some operation changes in place.

        Raises:
            ValueError: an input has got another shape or other memory in place; the caller's tensor would not get them.
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
        """Return the storages of values."""
        return {self.values[v].storage for v in numbers}

    def graph(self, outputs: Sequence[Tensor | None]) -> OpGraph:
        """Return the recorded graph with these tensors as its results."""
        made = tuple(None if tensor is None else self.number(tensor) for tensor in outputs)
        own = {v: _real(tensor) for v, tensor in self.constants.items()}
        ops, values = tuple(self.ops), tuple(self.values)
        return OpGraph(ops=ops, values=values, inputs=dict(self.inputs), outputs=made, constants=own)


def _real(tensor: Tensor) -> Tensor:
    if isinstance(tensor, FakeTensor):
        raise ValueError("The model uses a tensor of another capture; pass it as an argument or make it a buffer.")
    return tensor.detach()
