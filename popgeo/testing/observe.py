"""One run of a model with its observable effects: results, gradients, buffers, and calls of submodules."""

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
    """One call of a submodule, with its first input and its first result.

    Attributes:
        name: Dotted name and class.
        given: First tensor among its arguments.
        made: First tensor among its results.
    """

    name: str
    given: Tensor | None
    made: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The effects of a run of a model.

    Attributes:
        result: Result of the model.
        tensors: Tensors of the result, by name, differentiable.
        parameters: Trained parameters, by name; empty in evaluation, where models may keep no graph.
        buffers: Buffers after the run, by name.
        parts: Calls of submodules, in the order of their ends.
    """

    result: Any
    tensors: dict[str, Tensor]
    parameters: Mapping[str, Tensor]
    buffers: dict[str, Tensor]
    parts: list[SubmoduleCall]

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """Return the gradient of a loss for each parameter; zero if the loss does not depend on the parameter."""
        if not self.parameters or not loss.requires_grad:
            return {}
        slopes = torch.autograd.grad(loss, list(self.parameters.values()), retain_graph=True, materialize_grads=True)
        return dict(zip(self.parameters, slopes, strict=True))


def observe(model: Callable[..., Any], run: Callable[[Any], Any], seed: int = 0, dropout: bool = False) -> Observation:
    """Run a copy of a model, without dropout and with fixed random numbers.

    Dropout is left out because its random numbers depend on the shapes: other padding would drop other channels.

    Args:
        model: Module or function.
        run: Function that calls the copy.
        seed: Seed of the random numbers.
        dropout: Whether dropout stays active.

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
        # `torch.manual_seed` formats the stack for each missing kind of device, which takes longer than a run
        seed_all = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
        seed_all(seed)
        result = run(module)
    tensors = returned_tensors(result, ", or pass call=lambda model, batch: ... that extracts them")
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
    """Yield a list that collects the calls of all submodules during the block."""
    parts: list[SubmoduleCall] = []

    def note(name: str, part: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        called = f"{name} ({type(part).__name__})"
        parts.append(SubmoduleCall(name=called, given=_first((args, kwargs)), made=_first(result)))

    with ExitStack() as hooks:
        for name, part in module.named_modules() if isinstance(module, nn.Module) else ():
            if name and not isinstance(part, torch.jit.ScriptModule):  # a ScriptModule accepts no hook
                hooks.enter_context(part.register_forward_hook(partial(note, name), with_kwargs=True))
        yield parts


def _first(values: Any) -> Tensor | None:
    """Return a copy of the first floating point tensor."""
    return next((tensor.detach().clone() for _, tensor in named_tensors(values) if tensor.is_floating_point()), None)
