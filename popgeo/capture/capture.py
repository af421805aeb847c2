"""Turns a model, or a function, into one graph of operations of fixed shape."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.capture.arguments import Arguments
from popgeo.capture.dynamic_shapes import DynamicShapeError, Problem
from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.capture.pytree import Structure, flatten, leaves
from popgeo.capture.recorder import Recorder


@dataclass(frozen=True, kw_only=True)
class Capture:
    """What a function does, as it was written down.

    Attributes:
        graph: Forward and, when training, backward; returns the model's tensors, then a gradient per trained parameter.
        result: How the model's tensors nest.
        trained: Names of the parameters that have a gradient, in the order of the gradients.
        files: Source files that took part.
    """

    graph: OpGraph
    result: Structure
    trained: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()


def capture(
    function: Callable[..., Any],
    arguments: Arguments,
    *,
    trained: Sequence[str] = (),
    loss_scaling: float = 1.0,
    on_operation: Callable[[], object] = lambda: None,
) -> Capture:
    """One graph of what a function does with arguments like these; nothing is computed, and nothing of it changes.

    Args:
        function: A module, whose parameters and buffers become inputs of the graph, or any function of tensors.
        arguments: What it is called with; each tensor becomes an input, everything else a part of the graph.
        trained: Names of the parameters to differentiate the loss by; none captures the forward pass alone.
        loss_scaling: The backward pass starts from this gradient of the loss.
        on_operation: Called after each operation, to show how far it is.

    Raises:
        DynamicShapeError: a shape or a decision depends on the data; the message holds the model's line and a remedy.
        ValueError: no loss, several, or state that is replaced instead of changed in place.

    Example:
        >>> def scale(x, factor):
        ...     return x * factor
        >>> print(capture(scale, bind(scale, torch.ones(3), factor=2)).graph)
        %1 float32[3] = aten.mul.Tensor(%0, 2)
    """
    module = function if isinstance(function, nn.Module) else nn.Module()
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = Recorder(capture.__code__, _refuse)
    recorder.on_operation = on_operation
    state = module_state(module)
    with fake_mode:
        fakes = {one: fake_of(tensor, one.name in trained) for one, tensor in state.items()}
        inputs = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in arguments.tensors]
    for one, tensor in fakes.items():
        recorder.add_input(one, tensor)
    for (name, _), tensor in zip(leaves(arguments.structure), inputs, strict=True):
        recorder.add_input(Input(Role.ARGUMENT, name), tensor)
    by_id = {id(tensor): fakes[one] for one, tensor in state.items()}
    with fake_mode, swapped(module, by_id), torch.enable_grad():
        with recorder.follow_modules(module), recorder:
            tree = arguments.pass_to(function, inputs)
        results, result = flatten(tree)
        gradients: list[Tensor | None] = []
        if trained:
            loss = _find_loss(results, recorder)
            with recorder:
                recorder.phase = "backward"
                seed = torch.full_like(loss, loss_scaling)
                weights = [fakes[Input(Role.PARAMETER, name)] for name in trained]
                gradients = list(torch.autograd.grad(loss, weights, seed, allow_unused=True))
    used = tuple(name for name, gradient in zip(trained, gradients, strict=True) if gradient is not None)
    graph = recorder.graph([*results, *(gradient for gradient in gradients if gradient is not None)])
    return Capture(graph=graph, result=result, trained=used, files=frozenset(recorder.files))


def bind(function: Callable[..., Any], *inputs: Any, **named_inputs: Any) -> Arguments:
    """The arguments of a call of a function, by name; those of torch's own functions are known by position only."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        signature = inspect.Signature([inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)])
    return Arguments.of(signature, inputs, named_inputs)


def module_state(module: nn.Module) -> dict[Input, Tensor]:
    """A module's parameters and buffers, as graphs name them."""
    state: dict[Input, Tensor] = {Input(Role.PARAMETER, name): p for name, p in module.named_parameters()}
    return state | {Input(Role.BUFFER, name): b for name, b in module.named_buffers()}


def fake_of(tensor: Tensor, trained: bool) -> Tensor:
    """A stand-in in memory of its own, even where the tensor is a view of a larger one."""
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return nn.Parameter(fake, requires_grad=trained) if isinstance(tensor, nn.Parameter) else fake


def _refuse(problem: Problem) -> None:
    raise DynamicShapeError(str(problem))


def _find_loss(results: Sequence[Tensor], recorder: Recorder) -> Tensor:
    """The tensor marked by `identity_loss`, else the only scalar result that needs a gradient."""
    if recorder.marked:
        if len(recorder.marked) == 1:
            return recorder.marked[0]
        raise ValueError(f"identity_loss marks {len(recorder.marked)} tensors; mark their sum alone.")
    scalars = [tensor for tensor in results if tensor.dim() == 0 and tensor.requires_grad]
    if len(scalars) == 1:
        return scalars[0]
    found = "no scalar that depends on a parameter" if not scalars else f"{len(scalars)} scalars that could be the loss"
    raise ValueError(f"The model returns {found}. Return one loss, or mark it with popgeo.ipu.identity_loss(loss).")


@contextlib.contextmanager
def swapped(module: nn.Module, replacement: Mapping[int, Tensor]) -> Iterator[None]:
    """Puts other tensors in the place of a module's parameters and buffers while the block runs."""
    places: list[tuple[dict[str, Any], str, Tensor, str]] = []
    for prefix, submodule in module.named_modules():
        for table in (submodule._parameters, submodule._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    places.append((table, name, tensor, f"{prefix}.{name}" if prefix else name))
    replaced = []
    try:
        for table, name, tensor, _ in places:
            table[name] = replacement[id(tensor)]
        yield
        replaced = [path for table, name, tensor, path in places if table.get(name) is not replacement[id(tensor)]]
    finally:
        for table, name, tensor, _ in places:
            table[name] = tensor
    if replaced:
        raise ValueError(
            f"The model replaces {', '.join(replaced)} while it runs, and the new value would be lost. "
            "Change it in place, for example with copy_()."
        )
