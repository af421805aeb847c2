"""Finds everything in a model that is not static, at once; `dynamic_shapes.py` says why, and the remedy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_map

from popgeo.capture.capture import fake_of
from popgeo.capture.dynamic_shapes import Problem
from popgeo.capture.held_state import swapped
from popgeo.capture.pytree import flatten, unflatten
from popgeo.capture.recorder import Recorder
from popgeo.capture.schemas import makes_tensors
from popgeo.capture.static_forms import static_forms


def check_static(model: Callable[..., Any], *inputs: Any, **named_inputs: Any) -> list[Problem]:
    """Lists each place in a model where a shape, or the path taken, depends on the data.

    Nothing is computed but what follows from whole numbers and masks alone, such as how many graphs a batch has; where
    the model decides by anything else, the check goes on as if every condition held, every mask kept all, and every
    number were 1. Neither the model nor torch's random numbers change.

    Args:
        model: A module, or any function of tensors, called like `model(*inputs, **named_inputs)`.

    Returns:
        One `Problem` for each line and operation, in the order in which they are met; empty when nothing is in the way.

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
    tensors, structure = flatten((inputs, named_inputs))
    state = [*module.parameters(), *module.buffers()]
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_mode:
        fakes = [fake_of(tensor, tensor.requires_grad) for tensor in (*tensors, *state)]
    stand_in = StandIn(fake_mode, list(zip(fakes, (*tensors, *state), strict=True)))
    recorder = Recorder(
        check_static.__code__, note, keeps_state=False, on_result=stand_in.follow, instead=stand_in.instead
    )
    args, kwargs = unflatten(structure, fakes)
    by_id = {id(tensor): fake for tensor, fake in zip(state, fakes[len(tensors) :], strict=True)}
    try:
        with (
            torch.random.fork_rng(devices=[]), fake_mode, swapped(module, by_id) as held, torch.enable_grad(),
            static_forms(), recorder.follow_modules(module), recorder,
        ):  # fmt: skip
            model(*args, **kwargs)
            held.replaced_buffers(recorder.page.is_constant)
    except Exception:
        # What follows from a value made up may fail; what was found until then stays true.
        if not found:
            raise
    return list(found.values())


class StandIn:
    """Knows the values that follow from whole numbers and masks alone, and answers for those that it does not know.

    The indices of a batch say how many graphs and edges there are, so what is read from them is right. Everything else,
    which depends on features and weights, is never computed: a mask keeps all, a condition holds, a number is 1.

    Args:
        fake_mode: What the stand-ins live in.
        inputs: Tensors of the call by their stand-ins; those of whole numbers and masks are known.
    """

    def __init__(self, fake_mode: FakeTensorMode, inputs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._fake_mode = fake_mode
        self._known = {id(fake): real.clone() for fake, real in inputs if not real.is_floating_point()}
        self._kept = [fake for fake, _ in inputs]  # a value is found by the tensor's id, so none may be freed

    def instead(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation whose result depends on data."""
        if func._schema.is_mutable:
            self._forget(_tensors(args, kwargs))
            return args[0]
        known = self._all_known(args, kwargs)
        with unset_fake_temporarily():
            made = func(*tree_map(self._value, args), **tree_map(self._value, dict(kwargs)))
        fake = tree_map(lambda t: self._fake_mode.from_tensor(t) if isinstance(t, Tensor) else t, made)
        if known:
            self._remember(fake, made)
        return fake

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Computes an operation for real where all that it reads is known."""
        tensors = _tensors(args, kwargs)
        random = torch.Tag.nondeterministic_seeded in func.tags
        # A tensor of the user's own is read, but never written to.
        writable = not func._schema.is_mutable or all(isinstance(t, FakeTensor) for t in tensors)
        if makes_tensors(func) and not random and writable and self._all_known(args, kwargs):
            with unset_fake_temporarily():
                made = func(*tree_map(self._value, args), **tree_map(self._value, dict(kwargs)))
            self._remember(result, made)
        elif func._schema.is_mutable:
            self._forget(tensors)

    def _all_known(self, args: Any, kwargs: Any) -> bool:
        return all(id(t) in self._known or not isinstance(t, FakeTensor) for t in _tensors(args, kwargs))

    def _value(self, part: Any) -> Any:
        if not isinstance(part, FakeTensor):
            return part
        known = self._known.get(id(part))
        return torch.ones(part.shape, dtype=part.dtype) if known is None else known

    def _remember(self, fake: Any, made: Any) -> None:
        for stand_in, tensor in zip(tree_flatten(fake)[0], tree_flatten(made)[0], strict=True):
            if isinstance(stand_in, FakeTensor):
                self._known[id(stand_in)] = tensor
                self._kept.append(stand_in)

    def _forget(self, written: Sequence[Tensor]) -> None:
        """What is unknown was written into these tensors, or some of them, so nothing in their memory is known."""
        places = {self._known[id(t)].untyped_storage()._cdata for t in written if id(t) in self._known}
        self._known = {key: t for key, t in self._known.items() if t.untyped_storage()._cdata not in places}


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    return [part for part in tree_flatten((args, dict(kwargs)))[0] if isinstance(part, Tensor)]
