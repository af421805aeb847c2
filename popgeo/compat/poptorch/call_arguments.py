"""Reads the arguments and results of a model's call by PopTorch's rules, also objects of a program's own classes."""

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
    """Says which tensors an object holds, and how one like it is made of others; a program fills in both."""

    def yieldTensors(self, struct: Any) -> Iterable[Tensor]:
        """The tensors of an object, always in the same order."""
        raise ValueError(f"{type(self).__name__} must say with yieldTensors which tensors a {type(struct)} holds.")

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """An object like the one given, of the tensors to come."""
        raise ValueError(said("reconstruct", kind=type(self).__name__, original_structure=type(original_structure)))


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser) -> None:
    """Lets objects of a class be arguments and results of models. PyG's data need no parser, and are read without one.

    Raises:
        ValueError: the first is not a class, or the second is not an `ICustomArgParser`.

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
    """The tensors of a nest, in order.

    Example:
        >>> flattenTensorStructure({"a": torch.ones(1), "b": [torch.zeros(1)]})
        [tensor([1.]), tensor([0.])]
    """
    return flatten(structure)[0]


def reconstructTensorStructure(structure: Any, values: Iterable[Tensor]) -> Any:
    """A nest like another one, of other tensors.

    Example:
        >>> reconstructTensorStructure((torch.ones(1), 3), [torch.zeros(1)])
        (tensor([0.]), 3)
    """
    return unflatten(flatten(structure)[1], list(values))


class ArgsParser:
    """Reads the arguments of a model's calls; programs derive classes from it.

    Args:
        model: A module or a function.
    """

    def __init__(self, model: Any) -> None:
        self._signature = inspect.signature(getattr(model, "forward", model))

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any], fast_path: bool = False) -> Arguments:
        """The arguments of a call; `fast_path` is ignored."""
        return arguments_of(self._signature, args, kwargs)


def arguments_of(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of a call; tensors that are defaults are among them, as PopTorch has it.

    Raises:
        Error: an argument without a default is missing.
        AssertionError: there are too many, or one that the model does not take; it is a ValueError too.

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
            bound.arguments[name] = parameter.default.detach()  # another object, so that the step takes it as an input
    given = Arguments.of(signature, bound.args, bound.kwargs)
    return given.with_tensors([_detached(tensor) for tensor in given.tensors])


def of_calls(signature: inspect.Signature, compiled: Structure, given: Structure) -> Iterator[str]:
    """Yield the differences of two calls in PopTorch's words, the number of arguments by position first.

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
    """Return the arguments of a call by the names that its caller knows, and the number of them that have a place."""
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
    """What of an argument is not as the model was compiled for, in PopTorch's words.

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
            told = [f"{kind} arguments: {', '.join(map(str, keys))}." for kind, keys in odd.items() if keys]
            yield from [f"Keys mismatch for {name or 'the call'}: {' '.join(told)}"] if told else []
        for key in [key for key in own if key in other]:
            yield from mismatches(f"{name}[{key}]" if name else str(key), own[key], other[key])
    for what, (expected, got) in compared.items():
        if str(expected) != str(got):
            yield f"{what} mismatch for {name}: expected {expected} but got {got}."


def narrowed(given: Arguments) -> Arguments:
    """The same arguments as an IPU takes them: numbers that fit 32 bits, of float64 as float32.

    Raises:
        Error: a number does not fit.
    """
    names = (name for name, _ in leaves(given.structure))
    narrow = [_in_32_bits(tensor, f"Argument `{next(names)}`") for tensor in given.tensors]
    return given.with_tensors([n if n.is_floating_point() else t for t, n in zip(given.tensors, narrow, strict=True)])


def write_back(given: Arguments, narrow: Arguments, written: Collection[Input]) -> None:
    """Gives the program's own tensors what a call has written into narrower ones."""
    for tensor, own, (name, _) in zip(given.tensors, narrow.tensors, leaves(given.structure), strict=True):
        if tensor is not own and Input(Role.ARGUMENT, name) in written:
            tensor.copy_(own)


def example_of(signature: inspect.Signature, structure: Structure) -> Arguments:
    """Arguments that nest like a different call, with zeros in all tensors."""
    zeros = [torch.zeros(leaf.shape, dtype=leaf.dtype) for _, leaf in leaves(structure)]
    return Arguments(signature=signature, tensors=zeros, structure=structure)


def check_batch(given: Arguments, options: Options) -> None:
    """Checks that the first dimension of each tensor is a multiple of the micro-batches of a call.

    Raises:
        AssertionError: it is not; it is a ValueError too.
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
    """Says, where a model cannot be compiled, that it was given an empty tensor, as PopTorch refuses them all.

    Raises:
        Error: one of the tensors is empty.
    """
    for tensor in given.tensors:
        if not tensor.numel():
            raise Error(f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}). {error}") from error


def for_each_replica(tensor: Tensor, options: Options) -> Tensor:
    """A call's tensor with a micro-batch for each replica, where groups of replicas share what they are given.

    Example:
        >>> options = Options().replicationFactor(4).inputReplicaGrouping(2, CommGroupType.Orthogonal)
        >>> for_each_replica(torch.tensor([7, 9]), options)
        tensor([7, 9, 7, 9])
    """
    size, replicas = options.input_group_size, torch.arange(options.replication_factor)
    groups = options.replication_factor // size
    consecutive = options.input_group_type == CommGroupType.Consecutive
    group = replicas // size if consecutive else replicas % groups  # of each replica
    steps = options.device_iterations * options.Training.gradient_accumulation
    return tensor.reshape(steps, groups, -1, *tensor.shape[1:])[:, group].reshape(-1, *tensor.shape[1:])


def as_results(returned: Any) -> tuple[Any, list[Tensor]]:
    """What a model returns with 64-bit numbers in 32 bits, as an IPU has them, and its tensors.

    Raises:
        Error: a number does not fit.

    Example:
        >>> results, _ = as_results((torch.tensor([1]), torch.zeros(2)))
        >>> results[0].dtype
        torch.int32
    """
    tensors, structure = flatten(returned)
    tensors = [_in_32_bits(tensor, "A result") for tensor in tensors]
    for tensor in tensors:
        tensor.backward = _NoBackward()  # type: ignore[method-assign]  # PopTorch's own way to say so
    return unflatten(structure, tensors), tensors


def _in_32_bits(tensor: Tensor, what: str) -> Tensor:
    narrow = tensor.to(_TYPES.get(tensor.dtype, tensor.dtype))
    known = (tensor.isfinite(), narrow.isfinite()) if tensor.is_floating_point() else (tensor, narrow)
    if narrow is not tensor and not torch.equal(*known):
        raise Error(
            f"{what} holds {tensor.abs().max().item()}, which {narrow.dtype} has no room for, and an IPU computes in "
            f"32 bits. Keep {tensor.dtype} numbers small, or compute with them outside of the model."
        )
    return narrow


class _NoBackward:
    """Stands in the place of a result's `backward`."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise Error(said("NoBackward"))

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, ()  # so that torch.load(weights_only=True) reads a saved result


def _detached(tensor: Tensor) -> Tensor:
    if not tensor.requires_grad:
        return tensor
    logger.warning(said("detached"))
    return tensor.detach()
