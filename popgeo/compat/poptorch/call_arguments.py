"""The arguments of a model's call: bound to its signature, and compared in PopTorch's words with those compiled for."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.pytree import Container, Fixed, Leaf, Structure, flatten, unflatten
from popgeo.capture.structures import leaves, same
from popgeo.compat.poptorch import enums
from popgeo.compat.poptorch.errors import CheckFailed, Error, check
from popgeo.compat.poptorch.options import Options

_REMEDY = (
    "\nThis error occurred because the inputs passed at runtime don't match the inputs used to compile the model.\n"
    "To recompile the model for the new inputs create a new inferenceModel / trainingModel wrapper or call destroy() "
    "on the current one and try again."
)


@dataclass(frozen=True, eq=False)
class CallForm:
    """The types, shapes and plain values that a model is called with, or was compiled for.

    Attributes:
        names: Of the positional arguments.
        structure: How the positional arguments and those by name nest.
    """

    names: tuple[str, ...]
    structure: Structure

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each tensor."""
        return [leaf.shape for _, leaf in leaves(self.structure)]

    def require(self, given: "CallForm") -> None:
        """Refuses a call with arguments of another form.

        Raises:
            Error: one differs; the message names it.
        """
        (own, own_named), (others, others_named) = self._parts, given._parts
        if len(own.parts) != len(others.parts):
            raise Error(
                f"Number of positional arguments mismatch: expected {len(own.parts)} arguments but got "
                f"{len(others.parts)}.{_REMEDY}"
            )
        for name, compiled, part in zip(self.names, own.parts, others.parts, strict=True):
            _require_same(name, compiled, part)
        _require_same_parts("named arguments", "{}", own_named, others_named)

    @property
    def _parts(self) -> Any:
        """Of the positional arguments, and of those by name."""
        assert isinstance(self.structure, Container)
        return self.structure.parts

    def example(self) -> "CallArguments":
        """Arguments of this form, with zeros in all tensors."""
        return CallArguments(self, [torch.zeros(leaf.shape, dtype=leaf.dtype) for _, leaf in leaves(self.structure)])


@dataclass(frozen=True, eq=False)
class CallArguments:
    """What a model is called with.

    Attributes:
        form: What a later call is compared with; it holds no tensors.
        tensors: In order.

    Example:
        >>> given = CallArguments.of(inspect.signature(lambda x, scale=2: x * scale), [torch.ones(3)], {})
        >>> given.form.names, given.args[1], given.form.shapes
        (('x', 'scale'), 2, [(3,)])
    """

    form: CallForm
    tensors: Sequence[Tensor]

    @classmethod
    def of(cls, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "CallArguments":
        """The arguments of a call with those that it leaves to their defaults.

        Raises:
            Error: an argument without a default is missing.
            AssertionError: there are too many, or one that the model does not take; it is a ValueError too.
        """
        parameters = signature.parameters
        kinds = [parameter.kind for parameter in parameters.values()]
        count, names = len(args) + len(kwargs), list(parameters)
        if inspect.Parameter.VAR_POSITIONAL not in kinds and inspect.Parameter.VAR_KEYWORD not in kinds:
            expected = f"expected {names} ({len(names)}) but got {count}"
            check(count <= len(names), f"Too many arguments provided: {expected}")
            for name in kwargs:
                check(name in names, f"{name} is not a valid parameter. Allowed values are {names}")
        try:
            bound = signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            raise CheckFailed(str(error)) from None
        given = set(bound.arguments)
        bound.apply_defaults()
        for name, parameter in parameters.items():
            if name not in bound.arguments:
                raise Error(f"Mandatory parameter {name} missing")
            if name not in given and isinstance(parameter.default, Tensor):
                # Another object than the default itself, so that the step takes it as an input, as PopTorch's does.
                bound.arguments[name] = parameter.default.detach()
        tensors, structure = flatten((bound.args, bound.kwargs))
        return cls(CallForm(tuple(_names(bound)), structure), tensors)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional ones."""
        return unflatten(self.form.structure, self.tensors)[0]

    @property
    def named(self) -> dict[str, Any]:
        """Those that are given by name."""
        return unflatten(self.form.structure, self.tensors)[1]

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "CallArguments":
        """The same arguments with other tensors, also of other shapes."""
        return CallArguments(self.form, [change(tensor) for tensor in self.tensors])

    def refuse_empty(self, error: Exception) -> None:
        """Says, where a model cannot be compiled, that it was given an empty tensor, as PopTorch refuses them all.

        Raises:
            Error: one of the tensors is empty.
        """
        for shape in self.form.shapes:
            if 0 in shape:
                raise Error(f"Zero-sized tensors are unsupported (Got shape {list(shape)}). {error}") from error

    def check_batch(self, options: Options) -> None:
        """Checks that the first dimension of each tensor is a multiple of the micro-batches of a call.

        Raises:
            AssertionError: it is not; it is a ValueError too.
        """
        groups = options.replication_factor // options.input_group_size
        factor = options.device_iterations * groups * options.Training.gradient_accumulation
        for shape in self.form.shapes:
            size = shape[0] if shape else 1
            check(
                size % factor == 0,
                f"Invalid batch dimension: In the input {torch.Size(shape)}, the batch dimension ({size}) must be "
                f"a multiple of Options.deviceIterations({options.device_iterations}) * "
                f"(Options.replicationFactor({options.replication_factor}) / "
                f"Options.inputReplicaGrouping.input_group_size({options.input_group_size})) * "
                f"Options.Training.gradientAccumulation({options.Training.gradient_accumulation}) = {factor} because "
                "it is used to calculate the batch size which will be executed on the device in any given iteration.",
            )


def for_each_replica(tensor: Tensor, options: Options) -> Tensor:
    """A call's tensor with a micro-batch for each replica, where groups of replicas share what they are given.

    Example:
        >>> options = Options().replicationFactor(4).inputReplicaGrouping(2, enums.CommGroupType.Orthogonal)
        >>> for_each_replica(torch.tensor([7, 9]), options)
        tensor([7, 9, 7, 9])
    """
    size = options.input_group_size
    groups = options.replication_factor // size
    steps = options.device_iterations * options.Training.gradient_accumulation
    parts = tensor.reshape(steps, groups, -1, *tensor.shape[1:])
    if options.input_group_type == enums.CommGroupType.Consecutive:
        parts = parts.repeat_interleave(size, dim=1)
    else:
        parts = torch.cat([parts] * size, dim=1)
    return parts.reshape(-1, *tensor.shape[1:])


def _names(bound: inspect.BoundArguments) -> list[str]:
    """The names of the positional arguments; of those that a `*rest` takes, its name and a number."""
    names = []
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"*{name}[{number}]" for number in range(len(bound.arguments[name]))]
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(name)
    return names


def _type_of(part: Structure) -> type:
    if isinstance(part, Container):
        return part.kind
    return Tensor if isinstance(part, Leaf) else type(part.value)


def _require_same(name: str, compiled: Structure, given: Any) -> None:
    """Refuses what differs, by the kind of difference that PopTorch names."""
    if _type_of(compiled) is not _type_of(given):
        raise _mismatch("Type", name, _type_of(compiled), _type_of(given))
    if isinstance(compiled, Leaf):
        if compiled.dtype != given.dtype:
            raise _mismatch("Data type", name, compiled.dtype, given.dtype)
        if compiled.shape != given.shape:
            raise _mismatch("Shape", name, torch.Size(compiled.shape), torch.Size(given.shape))
    elif isinstance(compiled, Fixed):
        if not same(compiled, given):
            raise _mismatch("Value", name, compiled.value, given.value)
    else:
        if issubclass(compiled.kind, tuple | list) and len(compiled.parts) != len(given.parts):
            raise _mismatch("Length", name, f"{len(compiled.parts)} elements", len(given.parts))
        _require_same_parts(name, name + "[{}]", compiled, given)


def _require_same_parts(name: str, name_of_part: str, compiled: Any, given: Any) -> None:
    """Refuses other keys, then what differs under one of them."""
    mine, theirs = (dict(zip(nest.keys, nest.parts, strict=True)) for nest in (compiled, given))
    kinds = (("Unexpected", theirs.keys() - mine.keys()), ("Missing", mine.keys() - theirs.keys()))
    if odd := [f"{kind} arguments: {', '.join(sorted(map(str, keys)))}" for kind, keys in kinds if keys]:
        raise Error(f"Keys mismatch for {name}: {'. '.join(odd)}.{_REMEDY}")
    for key, part in mine.items():
        _require_same(name_of_part.format(key), part, theirs[key])


def _mismatch(what: str, name: str, expected: object, got: object) -> Error:
    return Error(f"{what} mismatch for {name}: expected {expected} but got {got}.{_REMEDY}")
