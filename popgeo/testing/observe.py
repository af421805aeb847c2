"""Runs a model once and keeps what can be seen of it: results, gradients, buffers, and what each part made."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from popgeo.testing.differences import named_tensors, returned_tensors

_DROPOUTS = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout),
}


@dataclass(frozen=True, kw_only=True)
class SubmoduleCall:
    """One call of a submodule: what it was given first and what it returned first.

    Attributes:
        name: Dotted name and class.
        given: The first tensor among its arguments.
        made: The first tensor among its results.
    """

    name: str
    given: Tensor | None
    made: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a run of a model left.

    Attributes:
        result: What it returned.
        tensors: The tensors in that, by name, differentiable.
        parameters: Those that are trained, by name; none in evaluation, where models may keep no graph.
        buffers: As they are after the run, by name.
        parts: The calls of submodules, in the order in which they ended.
    """

    result: Any
    tensors: dict[str, Tensor]
    parameters: Mapping[str, Tensor]
    buffers: dict[str, Tensor]
    parts: list[SubmoduleCall]

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """The slope of a loss by each parameter; zero where the loss does not depend on it."""
        if not self.parameters or not loss.requires_grad:
            return {}
        slopes = torch.autograd.grad(loss, list(self.parameters.values()), retain_graph=True, materialize_grads=True)
        return dict(zip(self.parameters, slopes, strict=True))


def observe(model: Callable[..., Any], run: Callable[[Any], Any], seed: int = 0, dropout: bool = False) -> Observation:
    """Runs a copy of a model, without dropout and with the same random numbers each time.

    Dropout is left out because its random numbers depend on the shapes: other padding would drop other channels.

    Args:
        model: A module, or a function.
        run: Calls what it is given, the copy, as the model is called.
        seed: Of the random numbers.
        dropout: Whether dropout stays in.

    Raises:
        ValueError: the model returns no tensor.
    """
    module = copy.deepcopy(model)
    with (
        torch.random.fork_rng(),
        torch.enable_grad(),
        nullcontext() if dropout else _NoDropoutMode(),
        _record(module) as parts,
    ):
        # `torch.manual_seed` formats the stack for each kind of device that is not there, which takes longer than a run
        seed_all = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
        seed_all(seed)
        result = run(module)
    tensors = returned_tensors(result, ", or pass call=lambda model, batch: ... that takes them from it")
    owner = module if isinstance(module, nn.Module) else nn.Module().eval()
    parameters = {name: p for name, p in owner.named_parameters() if p.requires_grad and owner.training}
    buffers = dict(owner.named_buffers())
    return Observation(result=result, tensors=tensors, parameters=parameters, buffers=buffers, parts=parts)


class _NoDropoutMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        return func(*args, **(kwargs or {}))


@contextmanager
def _record(module: Any) -> Iterator[list[SubmoduleCall]]:
    """The calls of all submodules while the block runs."""
    parts: list[SubmoduleCall] = []

    def note(name: str, part: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        called = f"{name} ({type(part).__name__})"
        parts.append(SubmoduleCall(name=called, given=_first((args, kwargs)), made=_first(result)))

    with ExitStack() as hooks:
        for name, part in module.named_modules() if isinstance(module, nn.Module) else ():
            if name and not isinstance(part, torch.jit.ScriptModule):  # which takes no hook
                hooks.enter_context(part.register_forward_hook(partial(note, name), with_kwargs=True))
        yield parts


def _first(values: Any) -> Tensor | None:
    """A copy of the first tensor with entries to compare."""
    return next((tensor.detach().clone() for _, tensor in named_tensors(values) if tensor.is_floating_point()), None)
