"""Lets the user's optimizer itself step the user's parameters."""

import copy
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from popgeo.engine.misuse import refuse_empty_update
from popgeo.engine.optimizer.flat_parameters import FlatParameters
from popgeo.engine.optimizer.worker import Worker, settings_of, without_parameters


class OwnWorker(Worker):
    """Calls the user's optimizer with its own groups, state and hooks, once the parameters show their gradients.

    It is right for any optimizer: those that keep progress in their groups or in attributes, that look at all
    parameters of a group, or whose step has hooks. What it does is neither joined nor captured.

    Args:
        optimizer: The user's.
        flat: The parameters that have a gradient.
    """

    def __init__(self, optimizer: Optimizer, flat: Sequence[FlatParameters]) -> None:
        super().__init__(optimizer)
        self._flat = flat

    def step(self) -> None:
        pairs = [pair for part in self._flat for pair in zip(part.members, part.total_views, strict=True)]
        held = [parameter.grad for parameter, _ in pairs]
        try:
            for parameter, total in pairs:
                parameter.grad = total.to(parameter.dtype, copy=True)  # it may keep them
            self.optimizer.step()
        except RuntimeError as error:  # as of one that differentiates gradients
            reason = f"{error}. A compiled step gives it gradients alone: no graph behind them, no closure"
            raise RuntimeError(f"{type(self.optimizer).__name__}'s own step() failed: {reason}.") from error
        finally:
            for (parameter, _), gradient in zip(pairs, held, strict=True):
                parameter.grad = gradient

    has_stepped = False  # for copies, which make a state of their own

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [part.own for part in self._flat]

    def over(self, parameters: Sequence[nn.Parameter]) -> Worker:
        """A copy that steps other parameters, in the same groups; what it keeps in them is its own."""
        own, given = without_parameters(self.optimizer), iter(parameters)
        counts = Counter(part.group for part in self._flat)
        groups = [(group, counts[number]) for number, group in enumerate(settings_of(self.optimizer)) if counts[number]]
        own.param_groups = [{**copy.deepcopy(group), "params": list(islice(given, count))} for group, count in groups]
        return Worker(own)


def wants_itself(optimizer: Optimizer) -> bool:
    """Whether something is called around an optimizer's step, which only its own step calls.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        >>> handle = sgd.register_step_pre_hook(lambda optimizer, args, kwargs: None)
        >>> wants_itself(sgd), handle.remove(), wants_itself(sgd)
        (True, None, False)
    """
    step = vars(optimizer).get("step")
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    hooks = [hook for hook in hooks if hook is not refuse_empty_update]
    # A scheduler's own wrapper does no more than note that there was a step.
    is_its_own = not callable(step) or getattr(step, "__wrapped__", None) is type(optimizer).step
    return bool(hooks or _global_optimizer_pre_hooks or _global_optimizer_post_hooks or not is_its_own)


def require_gradients_suffice(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuses what needs more of a step than the gradients that it leaves.

    Raises:
        ValueError: the optimizer's step takes a closure; or something is called once a gradient has been added up.
    """
    _, *given = inspect.signature(type(optimizer).step).parameters.values()
    needed = [one.name for one in given if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if needed:
        name = type(optimizer).__name__
        raise ValueError(f"{name} evaluates the model several times per step: its step() needs {needed}. Use another.")
    hooked = [name for name, p in parameters.items() if p._post_accumulate_grad_hooks]
    if hooked:
        raise ValueError(
            f"A compiled step cannot call what register_post_accumulate_grad_hook was given for {', '.join(hooked)}. "
            "Use the parameter's register_hook, or the optimizer's register_step_pre_hook, which sees all gradients."
        )
