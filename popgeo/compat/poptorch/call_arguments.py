"""Arguments and results of a model's call by PopTorch's rules, including objects of a program's own classes."""

import inspect
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.arguments import Arguments
from popgeo.capture.op_graph import Input, Role
from popgeo.capture.pytree import Container, FixedValue, Leaf, Structure, flatten, register_kind, unflatten
from popgeo.capture.structures import leaves
from popgeo.compat.poptorch.enums import CommGroupType
from popgeo.compat.poptorch.errors import CheckFailed, Error, logger, said
from popgeo.compat.poptorch.options import Options
from popgeo.engine.gradient_accumulation import check_batch_dimension

_TYPES = {torch.int64: torch.int32, torch.float64: torch.float32}


class ICustomArgParser:
    """Interface that takes tensors out of an object and rebuilds the object from other tensors."""

    def yieldTensors(self, struct: Any) -> Iterable[Tensor]:
        """Yield the tensors of an object, always in the same order."""
        raise ValueError(f"{type(self).__name__} must define yieldTensors for the tensors of a {type(struct)}.")

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """Return an object like the given one with other tensors."""
        raise ValueError(said("reconstruct", kind=type(self).__name__, original_structure=type(original_structure)))


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser) -> None:
    """Allow objects of a class as arguments and results of models. PyG's data classes need no parser.

    Raises:
        ValueError: `arg_data_type` is not a class, or `arg_parser` is not an `ICustomArgParser`.

    Example:
        >>> class Pair:
        ...     def __init__(self, a, b):
        ...         self.a, self.b = a, b
        >>> class PairParser(ICustomArgParser):
        ...     def yieldTensors(self, struct):
        ...         yield struct.a
        ...         yield struct.b
        ...     def reconstruct(self, original_structure, tensor_iterator):
        ...         return Pair(next(tensor_iterator), next(tensor_iterator))
        >>> registerCustomArgParser(Pair, PairParser())
    """
    if not isinstance(arg_data_type, type):
        raise ValueError(f"registerCustomArgParser got {arg_data_type!r}, which is not a class.")
    if not isinstance(arg_parser, ICustomArgParser):
        raise ValueError(
            f"registerCustomArgParser got {type(arg_parser).__name__}; pass an object of ICustomArgParser."
        )
    register_kind(arg_data_type, arg_parser.yieldTensors, arg_parser.reconstruct)


def flattenTensorStructure(structure: Any) -> list[Tensor]:
    """Return the tensors of a nest, in order.

    Example:
        >>> flattenTensorStructure({"a": torch.ones(1), "b": [torch.zeros(1)]})
        [tensor([1.]), tensor([0.])]
    """
    return flatten(structure)[0]


def reconstructTensorStructure(structure: Any, values: Iterable[Tensor]) -> Any:
    """Return a nest of the same structure with other tensors.

    Example:
        >>> reconstructTensorStructure((torch.ones(1), 3), [torch.zeros(1)])
        (tensor([0.]), 3)
    """
    return unflatten(flatten(structure)[1], list(values))


class ArgsParser:
    """Parser of the arguments of a model's calls. Programs subclass it.

    Args:
        model: Module or function.
    """

    def __init__(self, model: Any) -> None:
        self._signature = inspect.signature(getattr(model, "forward", model))

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any], fast_path: bool = False) -> Arguments:
        """Return the arguments of a call. `fast_path` has no effect."""
        return arguments_of(self._signature, args, kwargs)


def arguments_of(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a call, including default values that are tensors, as in PopTorch.

    Raises:
        Error: An argument without a default is missing.
        AssertionError: There are too many arguments, or unknown ones. The error is also a ValueError.

    Example:
        >>> arguments_of(inspect.signature(lambda x, y=torch.ones(1): x * y), [torch.ones(3)], {}).tensors
        [tensor([1., 1., 1.]), tensor([1.])]
    """
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise CheckFailed(f"The model takes {signature}: {error}") from None
    for name, parameter in signature.parameters.items():
        if name in bound.arguments or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            raise Error(f"Mandatory parameter {name} missing")
        if isinstance(parameter.default, Tensor):
            bound.arguments[name] = parameter.default.detach()  # a new tensor, so that the step treats it as an input
    given = Arguments.of(signature, bound.args, bound.kwargs)
    return given.with_tensors([_detached(tensor) for tensor in given.tensors])


def of_calls(signature: inspect.Signature, compiled: Structure, given: Structure) -> Iterator[str]:
    """Yield messages of PopTorch about differences between two calls, first about the number of positional arguments.

    Example:
        >>> signature = inspect.signature(lambda x, *more: x)
        >>> calls = [Arguments.of(signature, (torch.ones(1),) * number, {}).structure for number in (3, 2)]
        >>> list(of_calls(signature, *calls))
        ['Number of positional arguments mismatch: expected 3 arguments but got 2.']
    """
    (own, expected), (other, got) = (_by_name(signature, call) for call in (compiled, given))
    if expected != got:
        yield f"Number of positional arguments mismatch: expected {expected} arguments but got {got}."
    else:
        yield from mismatches("", own, other)


def _by_name(signature: inspect.Signature, call: Any) -> tuple[Container, int]:
    """Return the arguments of a call by the caller's names, and the number of positional arguments."""
    own: dict[str, Structure] = {}
    num_places = 0
    for name, part in zip(map(str, call.keys), call.parts, strict=True):
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            own |= zip(map(str, part.keys), part.parts, strict=True)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            own |= {f"{name}[{place}]": one for place, one in enumerate(part.parts)}
            num_places += len(part.parts)
        else:
            own[name] = part
            num_places += kind is not inspect.Parameter.KEYWORD_ONLY
    return Container(dict, tuple(own), tuple(own.values())), num_places


def mismatches(name: str, compiled: Structure, given: Structure) -> Iterator[str]:
    """Yield messages of PopTorch about the differences between an argument and the compiled argument.

    Example:
        >>> compiled, given = flatten({"x": torch.ones(2)})[1], flatten({"x": torch.ones(1)})[1]
        >>> list(mismatches("", compiled, given))
        ['Shape mismatch for x: expected torch.Size([2]) but got torch.Size([1]).']
    """
    kinds: Any = [getattr(part, "kind", type(getattr(part, "value", Tensor()))) for part in (compiled, given)]
    compared: dict[str, Any] = {"Type": kinds}
    if kinds[0] is not kinds[1]:
        pass
    elif isinstance(compiled, Leaf) and isinstance(given, Leaf):
        compared["Data type"] = compiled.dtype, given.dtype
        compared["Shape"] = torch.Size(compiled.shape), torch.Size(given.shape)
    elif isinstance(compiled, FixedValue) and isinstance(given, FixedValue):
        compared["Value"] = compiled.value, given.value
    elif isinstance(compiled, Container) and isinstance(given, Container):
        own, other = (dict(zip(nest.keys, nest.parts, strict=True)) for nest in (compiled, given))
        if issubclass(compiled.kind, list | tuple):
            compared["Length"] = f"{len(own)} elements", f"{len(other)} elements"
        else:
            odd = {"Unexpected": [key for key in other if key not in own]}
            odd["Missing"] = [key for key in own if key not in other]
            details = [f"{kind} arguments: {', '.join(map(str, keys))}." for kind, keys in odd.items() if keys]
            yield from [f"Keys mismatch for {name or 'the call'}: {' '.join(details)}"] if details else []
        for key in [key for key in own if key in other]:
            yield from mismatches(f"{name}[{key}]" if name else str(key), own[key], other[key])
    for what, (expected, got) in compared.items():
        if str(expected) != str(got):
            yield f"{what} mismatch for {name}: expected {expected} but got {got}."


def narrowed(given: Arguments) -> Arguments:
    """Return the same arguments in an IPU's types: float64 numbers as float32.

    Raises:
        Error: A number does not fit 32 bits.
    """
    names = (name for name, _ in leaves(given.structure))
    narrow = [_in_32_bits(tensor, f"Argument `{next(names)}`") for tensor in given.tensors]
    return given.with_tensors([n if n.is_floating_point() else t for t, n in zip(given.tensors, narrow, strict=True)])


def write_back(given: Arguments, narrow: Arguments, written: Collection[Input]) -> None:
    """Copy the values that a call has written into converted tensors to the program's tensors."""
    for tensor, own, (name, _) in zip(given.tensors, narrow.tensors, leaves(given.structure), strict=True):
        if tensor is not own and Input(Role.ARGUMENT, name) in written:
            tensor.copy_(own)


def example_of(signature: inspect.Signature, structure: Structure) -> Arguments:
    """Return arguments of the same structure with zeros in all tensors."""
    zeros = [torch.zeros(leaf.shape, dtype=leaf.dtype) for _, leaf in leaves(structure)]
    return Arguments(signature=signature, tensors=zeros, structure=structure)


def check_batch(given: Arguments, options: Options) -> None:
    """Check that the first dimension of each tensor is a multiple of the micro-batches of a call.

    Raises:
        AssertionError: A tensor has another first dimension. The error is also a ValueError.
    """
    groups = options.replication_factor // options.input_group_size
    factor = options.device_iterations * options.Training.gradient_accumulation * groups
    try:
        check_batch_dimension(given.structure, factor)
    except ValueError as error:
        shape = next(tensor.shape for tensor in given.tensors if (tensor.shape or (1,))[0] % factor)
        found = {"shape": shape, "size": (shape or (1,))[0], "options": options, "factor": factor}
        raise CheckFailed(said("check_batch", **found, error=error)) from None


def refuse_empty(given: Arguments, error: Exception) -> None:
    """Raise PopTorch's error for empty tensors if one of the arguments is empty.

    Raises:
        Error: A tensor is empty.
    """
    for tensor in given.tensors:
        if not tensor.numel():
            raise Error(f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}). {error}") from error


def for_each_replica(tensor: Tensor, options: Options) -> Tensor:
    """Return a call's tensor with one micro-batch per replica, if groups of replicas share inputs.

    Example:
        >>> options = Options().replicationFactor(4).inputReplicaGrouping(2, CommGroupType.Orthogonal)
        >>> for_each_replica(torch.tensor([7, 9]), options)
        tensor([7, 9, 7, 9])
    """
    size, replicas = options.input_group_size, torch.arange(options.replication_factor)
    groups = options.replication_factor // size
    consecutive = options.input_group_type == CommGroupType.Consecutive
    group = replicas // size if consecutive else replicas % groups  # group of each replica
    steps = options.device_iterations * options.Training.gradient_accumulation
    return tensor.reshape(steps, groups, -1, *tensor.shape[1:])[:, group].reshape(-1, *tensor.shape[1:])


def as_results(returned: Any) -> tuple[Any, list[Tensor]]:
    """Return a model's results with 64-bit numbers converted to 32 bits, as an IPU has them, and the list of tensors.

    Raises:
        Error: A number does not fit.

    Example:
        >>> results, _ = as_results((torch.tensor([1]), torch.zeros(2)))
        >>> results[0].dtype
        torch.int32
    """
    tensors, structure = flatten(returned)
    tensors = [_in_32_bits(tensor, "A result") for tensor in tensors]
    for tensor in tensors:
        tensor.backward = _NoBackward()  # type: ignore[method-assign]  # as in PopTorch
    return unflatten(structure, tensors), tensors


def _in_32_bits(tensor: Tensor, what: str) -> Tensor:
    narrow = tensor.to(_TYPES.get(tensor.dtype, tensor.dtype))
    known = (tensor.isfinite(), narrow.isfinite()) if tensor.is_floating_point() else (tensor, narrow)
    if narrow is not tensor and not torch.equal(*known):
        raise Error(
            f"{what} holds {tensor.abs().max().item()}, which does not fit {narrow.dtype}; an IPU computes in 32 bits. "
            f"Keep {tensor.dtype} numbers small, or compute with them outside of the model."
        )
    return narrow


class _NoBackward:
    """Replacement of a result's `backward`, which raises PopTorch's error."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise Error(said("NoBackward"))

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, ()  # so that torch.load(weights_only=True) reads a saved result


def _detached(tensor: Tensor) -> Tensor:
    if not tensor.requires_grad:
        return tensor
    logger.warning(said("detached"))
    return tensor.detach()
