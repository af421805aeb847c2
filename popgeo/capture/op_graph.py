"""The captured program: operations in order on values of fixed shape."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


class Role(Enum):
    """The role of a graph's input in the model or its optimizer."""

    ARGUMENT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    STATE = "state"


@dataclass(frozen=True)
class Input:
    """A tensor that a graph gets at each run.

    Attributes:
        role: Its role; all inputs except arguments stay from one run to the next.
        name: Path of the argument, parameter or buffer. In an update, number of the parameter; for the optimizer's
            state followed by a dot and its key.

    Example:
        >>> str(Input(Role.PARAMETER, "linear.weight")), Input.parse("input:x")
        ('parameter:linear.weight', Input(role=<Role.ARGUMENT: 'input'>, name='x'))
    """

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role.value}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Input":
        """Return the input with this text form; raise a ValueError if the text starts with no role."""
        role, _, name = text.partition(":")
        return cls(Role(role), name)


LOSS_SCALE = Input(Role.STATE, "loss_scale")
"""The gradient from which the backward pass of a step starts, if it is not constant."""


@dataclass(frozen=True)
class BlockMark:
    """A part of a model that is to run on one IPU.

    Attributes:
        name: Name of the part in the model.
        ipu: Number of the IPU; None if the model does not choose one.
    """

    name: str
    ipu: int | None


@dataclass(frozen=True)
class Ref:
    """A value in the place of a tensor argument."""

    value: int


@dataclass(frozen=True)
class Number:
    """A number that may change from run to run, such as a learning rate."""

    slot: int
    value: float


@dataclass(frozen=True, kw_only=True)
class Value:
    """A tensor of the program: one producer, one fixed shape.

    Attributes:
        shape: Sizes.
        stride: Elements between neighbors, per dimension.
        offset: Elements before the first one in its storage.
        dtype: Type of an element.
        storage: Number of its memory; views share one.
        producer: Index of the operation that makes it; None for inputs and constants.
        marks: Whether its elements are the conjugates, and the negatives, of the elements in its memory.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    storage: int
    producer: int | None
    marks: tuple[bool, bool] = (False, False)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def layout(self) -> tuple[Any, ...]:
        """The layout of its elements in memory; views of one memory with equal layouts are equal."""
        return self.shape, self.stride, self.offset, self.dtype, self.marks

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.numel * self.dtype.itemsize

    @cached_property
    def end(self) -> int:
        """Bytes of its storage up to the end of its last element; 0 if it has no elements."""
        last = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return 0 if 0 in self.shape else (last + 1) * self.dtype.itemsize

    def made_by(self, producer: int | None) -> "Value":
        """Return the value with another producer."""
        if producer == self.producer:
            return self
        made = object.__new__(type(self))  # every pass renumbers values, and `dataclasses.replace` takes longer
        vars(made).update(vars(self), producer=producer)
        return made


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of the program.

    Attributes:
        target: Its name in torch, such as `aten.mm.default` or `popgeo.cfconv.default`.
        args: Positional arguments; a `Ref` represents a tensor.
        kwargs: Keyword arguments; a `Ref` represents a tensor.
        outputs: The values that it makes, in torch's order; None for a missing result.
        writes: Values that it changes in place.
        phase: `forward`, `backward` or `update`.
        module: Dotted name of the submodule that called it; empty for the model itself.
        source: Line of the model that called it, as `file:line in function: code`.
        bodies: Graph of a loop's body, or of each branch. Their inputs are operands of the operation.
        block: Part of the model that called it; None if the model has no named parts.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[int | None, ...]
    writes: tuple[int, ...] = ()
    phase: str = "forward"
    module: str = ""
    source: str = ""
    bodies: "tuple[OpGraph, ...]" = ()
    block: BlockMark | None = None

    def reads(self) -> tuple[int, ...]:
        """Return the values among its arguments, in order."""
        # Every pass calls this for each operation, and `cached_property` would take a lock each time.
        reads = self.__dict__.get("_reads")
        if reads is None:
            found: list[Ref] = []
            append_parts(Ref, (*self.args, *self.kwargs.values()), found)
            reads = self.__dict__["_reads"] = tuple(ref.value for ref in found)
        return reads

    def makes(self) -> tuple[int, ...]:
        """Return the values among its outputs, in order; they may include a value that it changes in place."""
        if None not in self.outputs:
            return self.outputs  # type: ignore[return-value]
        return tuple(v for v in self.outputs if v is not None)


@dataclass(frozen=True, kw_only=True)
class OpGraph:
    """Operations in order, on values of fixed shape.

    Attributes:
        ops: Operations, in the order in which they run.
        values: Values by number; each `Ref` and each output of an operation is such a number.
        inputs: Value of each input, in the order in which a run gets them.
        outputs: Values that a run returns; None for a missing result.
        constants: Tensors of the values that were known at the capture.

    Example:
        >>> value = dict(shape=(2,), stride=(1,), offset=0, dtype=torch.float32)
        >>> graph = OpGraph(
        ...     ops=(Op(target="aten.relu.default", args=(Ref(0),), outputs=(1,)),),
        ...     values=(Value(**value, storage=0, producer=None), Value(**value, storage=1, producer=0)),
        ...     inputs={Input(Role.ARGUMENT, "x"): 0}, outputs=(1,))
        >>> print(graph)
        %1 float32[2] = aten.relu.default(%0)
    """

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    inputs: Mapping[Input, int]
    outputs: tuple[int | None, ...]
    constants: Mapping[int, Tensor] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(self._line(op) for op in self.ops)

    def __repr__(self) -> str:
        counts = f"{len(self.ops):,} operations, {len(self.inputs):,} inputs, {len(self.outputs):,} outputs"
        return f"{type(self).__name__}({counts})"

    def _line(self, op: Op) -> str:
        made = ", ".join(f"%{v} {shape_text(self.values[v])}" for v in op.makes())
        args = [_text(arg) for arg in op.args] + [f"{key}={_text(arg)}" for key, arg in op.kwargs.items()]
        return "\n".join([f"{made} = {op.target}({', '.join(args)})", *map(_indented, op.bodies)])

    def is_view(self, op: Op) -> bool:
        """Check that all results of an operation are views of its operands."""
        if op.writes or not op.outputs:
            return False
        owned = {self.values[v].storage for v in op.reads()}
        return all(self.values[v].storage in owned for v in op.makes())

    def mutated_storages(self) -> frozenset[int]:
        """Return the storages that some operation changes in place."""
        return frozenset(self.values[v].storage for op in self.ops for v in op.writes)

    def last_uses(self) -> dict[int, int]:
        """Return the last operation that needs each storage; the number of operations if the storage is returned."""
        last = {self.values[v].storage: i for i, op in enumerate(self.ops) for v in (*op.reads(), *op.makes())}
        return last | {self.values[v].storage: len(self.ops) for v in self.outputs if v is not None}

    def inputs_of(self, role: Role) -> dict[Input, int]:
        """Return the inputs of one role and their values."""
        return {given: v for given, v in self.inputs.items() if given.role is role}

    def state_storages(self) -> set[int]:
        """Return the storages of all inputs except arguments."""
        return {self.values[v].storage for given, v in self.inputs.items() if given.role is not Role.ARGUMENT}


def _indented(body: OpGraph) -> str:
    given, made = (", ".join(f"%{v}" for v in values) for values in (body.inputs.values(), body.outputs))
    return "\n".join(f"  {line}" for line in [f"given {given}:", *str(body).splitlines(), f"gives {made}"])


def overload(target: str) -> Callable[..., Any]:
    """Return torch's function for a target.

    Raises:
        ValueError: torch knows no such operation; the library that defines it may not be imported.

    Example:
        >>> overload("aten.relu.default")(torch.tensor([-1.0, 1.0]))
        tensor([0., 1.])
    """
    namespace, name, kind = target.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), kind)
    except AttributeError:
        raise ValueError(f"No operation {target}: import the library that defines it, then run the graph.") from None


def substitute(argument: Any, replace: Callable[[int], Any]) -> Any:
    """Return an argument with the result of `replace` in place of each `Ref`.

    Example:
        >>> substitute(([Ref(1), 2], 3), lambda value: f"%{value}")
        (['%1', 2], 3)
    """
    if isinstance(argument, Ref):
        return replace(argument.value)
    if isinstance(argument, list | tuple):
        return type(argument)(substitute(item, replace) for item in argument)
    if isinstance(argument, dict):
        return {key: substitute(item, replace) for key, item in argument.items()}
    return argument


def append_parts(kind: type, arguments: Iterable[Any], found: list[Any]) -> None:
    """Append all parts of a kind, such as `Ref`, in arguments and in lists of them, in order."""
    for argument in arguments:
        if isinstance(argument, kind):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            append_parts(kind, argument, found)


def _text(argument: Any) -> str:
    if isinstance(argument, list | tuple):
        return "[" + ", ".join(_text(item) for item in argument) + "]"
    return f"%{argument.value}" if isinstance(argument, Ref) else repr(argument)


def shape_text(of: Any) -> str:
    """Return type and shape of a tensor or a value, such as `float32[2, 3]`."""
    return f"{str(of.dtype).removeprefix('torch.')}{list(of.shape)}"
