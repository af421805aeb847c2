"""The arguments of a model's call: bound to its signature, and compared in PopTorch's words with those compiled for."""

import inspect
from collections.abc import Callable, Mapping, Sequence
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


class CallArguments:
    """What a model is called with: positional arguments with their names, then those given by name.

    Args:
        positional: Names and arguments, in order.
        named: By name.

    Example:
        >>> given = CallArguments.of(inspect.signature(lambda x, scale=2: x * scale), [torch.ones(3)], {})
        >>> [name for name, _ in given.positional], given.args[1]
        (['x', 'scale'], 2)
    """

    def __init__(self, positional: Sequence[tuple[str, Any]], named: Mapping[str, Any]) -> None:
        self.positional, self.named = list(positional), dict(named)

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
        return cls(list(zip(_names(bound), bound.args, strict=True)), bound.kwargs)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional ones."""
        return tuple(argument for _, argument in self.positional)

    @property
    def num_tensors(self) -> int:
        """Tensors among all of them."""
        return len(flatten((self.args, self.named))[0])

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "CallArguments":
        """The same arguments with other tensors."""
        tensors, structure = flatten((self.args, self.named))
        args, named = unflatten(structure, [change(tensor) for tensor in tensors])
        return CallArguments([(name, part) for (name, _), part in zip(self.positional, args, strict=True)], named)

    def form(self) -> "CallForm":
        """What a later call is compared with; it holds no tensors."""
        return CallForm(
            [(name, flatten(argument)[1]) for name, argument in self.positional],
            {name: flatten(argument)[1] for name, argument in self.named.items()},
        )

    def refuse_empty(self, error: Exception) -> None:
        """Says, where a model cannot be compiled, that it was given an empty tensor, as PopTorch refuses them all.

        Raises:
            Error: one of the tensors is empty.
        """
        for _, leaf in leaves(flatten((self.args, self.named))[1]):
            if 0 in leaf.shape:
                raise Error(f"Zero-sized tensors are unsupported (Got shape {list(leaf.shape)}). {error}") from error

    def check_batch(self, options: Options) -> None:
        """Checks that the first dimension of each tensor is a multiple of the micro-batches of a call.

        Raises:
            AssertionError: it is not; it is a ValueError too.
        """
        groups = options.replication_factor // options.input_group_size
        factor = options.device_iterations * groups * options.Training.gradient_accumulation
        for _, leaf in leaves(flatten((self.args, self.named))[1]):
            size = leaf.shape[0] if leaf.shape else 1
            check(
                size % factor == 0,
                f"Invalid batch dimension: In the input {torch.Size(leaf.shape)}, the batch dimension ({size}) must be "
                f"a multiple of Options.deviceIterations({options.device_iterations}) * "
                f"(Options.replicationFactor({options.replication_factor}) / "
                f"Options.inputReplicaGrouping.input_group_size({options.input_group_size})) * "
                f"Options.Training.gradientAccumulation({options.Training.gradient_accumulation}) = {factor} because "
                "it is used to calculate the batch size which will be executed on the device in any given iteration.",
            )


class CallForm:
    """The types, shapes and plain values that a model was compiled for."""

    def __init__(self, positional: list[tuple[str, Structure]], named: dict[str, Structure]) -> None:
        self.positional, self.named = positional, named

    def require(self, given: CallArguments) -> None:
        """Refuses a call with arguments of another form.

        Raises:
            Error: one differs; the message names it.
        """
        form = given.form()
        if len(form.positional) != len(self.positional):
            raise Error(
                f"Number of positional arguments mismatch: expected {len(self.positional)} arguments but got "
                f"{len(form.positional)}.{_REMEDY}"
            )
        for (name, compiled), (_, part) in zip(self.positional, form.positional, strict=True):
            _require_same(name, compiled, part)
        _require_keys("named arguments", self.named, form.named)
        for name, compiled in self.named.items():
            _require_same(name, compiled, form.named[name])

    def example(self) -> CallArguments:
        """Arguments of this form, with zeros in all tensors."""

        def zeros(part: Structure) -> Any:
            return unflatten(part, [torch.zeros(leaf.shape, dtype=leaf.dtype) for _, leaf in leaves(part)])

        positional = [(name, zeros(part)) for name, part in self.positional]
        return CallArguments(positional, {name: zeros(part) for name, part in self.named.items()})


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


def _require_keys(name: str, compiled: Mapping[Any, Any], given: Mapping[Any, Any]) -> None:
    details = []
    for kind, keys in (("Unexpected", given.keys() - compiled.keys()), ("Missing", compiled.keys() - given.keys())):
        if keys:
            details.append(f"{kind} arguments: {', '.join(sorted(map(str, keys)))}")
    if details:
        raise Error(f"Keys mismatch for {name}: {'. '.join(details)}.{_REMEDY}")


def _require_same(name: str, compiled: Structure, given: Structure) -> None:
    """Refuses what differs, by the kind of difference that PopTorch names."""
    if _type_of(compiled) is not _type_of(given):
        raise Error(f"Type mismatch for {name}: expected {_type_of(compiled)} but got {_type_of(given)}.{_REMEDY}")
    if isinstance(compiled, Leaf) and isinstance(given, Leaf):
        if compiled.dtype != given.dtype:
            what, expected, got = "Data type", compiled.dtype, given.dtype
        else:
            what, expected, got = "Shape", torch.Size(compiled.shape), torch.Size(given.shape)
        if expected != got:
            raise Error(f"{what} mismatch for {name}: expected {expected} but got {got}.{_REMEDY}")
    elif isinstance(compiled, Container) and isinstance(given, Container):
        if issubclass(compiled.kind, tuple | list) and len(compiled.parts) != len(given.parts):
            expected, got = len(compiled.parts), len(given.parts)
            raise Error(f"Length mismatch for {name}: expected {expected} elements but got {got}.{_REMEDY}")
        mine, theirs = (dict(zip(part.keys, part.parts, strict=True)) for part in (compiled, given))
        _require_keys(name, mine, theirs)
        for key, part in mine.items():
            _require_same(f"{name}[{key}]", part, theirs[key])
    elif isinstance(compiled, Fixed) and isinstance(given, Fixed) and not same(compiled, given):
        raise Error(f"Value mismatch for {name}: expected {compiled.value} but got {given.value}.{_REMEDY}")
