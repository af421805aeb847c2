"""A list of all places in a model that are not static; `refused_shapes.py` explains each one and gives a remedy."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.capture.arguments import BatchArguments
from popgeo.capture.capture import fake_of, signature_of
from popgeo.capture.held_state import require_shapes, swapped
from popgeo.capture.interrupts import held_interrupts
from popgeo.capture.pytree import flatten, unflatten
from popgeo.capture.recorder import Recorder
from popgeo.capture.refused_shapes import Problem
from popgeo.capture.static_forms import static_forms
from popgeo.plain_surroundings import plain_surroundings


@held_interrupts()
@plain_surroundings()
def check_static(model: Callable[..., Any], *inputs: Any, **named_inputs: Any) -> list[Problem]:
    """Return each place in a model where a shape, or the path taken, depends on the data.

    Only values that follow from whole numbers and masks are computed, such as the number of graphs in a batch. Where
    the model decides by other values, the check continues as if every condition held, every mask kept all elements, and
    every number were 1. Neither the model nor torch's random numbers change.

    Args:
        model: Module or function of tensors.
        inputs: Arguments of the model; or one batch, from which the model takes attributes by name, as in a step.
        named_inputs: Arguments of the model, by name.

    Returns:
        One `Problem` per line and operation, in the order of the run; empty if the model is static.

    Example:
        >>> class Positive(nn.Module):
        ...     def forward(self, x):
        ...         largest = x.max().item()
        ...         return x[x > 0] / largest
        >>> [problem.operation for problem in check_static(Positive(), torch.tensor([1.0, -2.0]))]
        ['_local_scalar_dense', 'index']
    """
    found: dict[tuple[str, str], Problem] = {}

    def note(problem: Problem) -> None:
        found.setdefault((problem.operation, problem.source), problem)

    module = model if isinstance(model, nn.Module) else nn.Module()
    require_shapes(module)
    tensors, structure = flatten(BatchArguments(signature_of(model))(inputs, named_inputs))
    state = [*module.parameters(), *module.buffers()]
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [fake_of(fake_mode, tensor, tensor.requires_grad) for tensor in (*tensors, *state)]
    # Indices of a batch determine the numbers of graphs and edges; values that depend on features are made up.
    pairs = zip(fakes, (*tensors, *state), strict=True)
    given = {id(fake): real for fake, real in pairs if not (real.is_floating_point() or real.is_complex())}

    def instead(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return recorder.page.compute(func, args, kwargs, given, makes_up=True)

    recorder = Recorder(inspect.unwrap(check_static).__code__, note, keeps_state=False, instead=instead)
    args, kwargs = unflatten(structure, fakes)
    by_id = {id(tensor): fake for tensor, fake in zip(state, fakes[len(tensors) :], strict=True)}
    try:
        with (
            torch.random.fork_rng(devices=[]), fake_mode, swapped(module, by_id) as held, torch.enable_grad(),
            static_forms(recorder.slots), recorder.follow_modules(module), recorder,
        ):  # fmt: skip
            recorder.slots.check_results(flatten(model(*args, **kwargs))[0])
            held.replaced_buffers(recorder.page.is_constant)
    except Exception:
        # Code after a made-up value may fail; earlier findings stay true.
        if not found:
            raise
    return list(found.values())
