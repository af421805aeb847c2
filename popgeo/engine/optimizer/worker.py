"""Who steps an optimizer over joined parameters: torch's own code, or what stands around it."""

import copy
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from popgeo.capture.op_graph import Input, Role
from popgeo.engine.misuse import refuse_empty_update
from popgeo.engine.optimizer.flat_parameters import FlatParameters


class Worker:
    """Steps an optimizer as torch itself does.

    `MixedWorker` does so with weights and state of narrow types, `CapturedWorker` by captured graphs. An optimizer that
    needs to be treated in yet another way gets a worker of its own: the settings that it receives of the user's
    optimizer before an update is up to `begin` and `follow`, and what the user is shown afterwards is up to `state`.

    Args:
        optimizer: Steps over joined parameters and owns their state, in which a worker may keep numbers of its own.

    Attributes:
        is_captured: Whether updates run as captured graphs; None before that is known.
        keeps_types: Whether state may have other types than the weights, which torch's `load_state_dict` does not know.

    Example:
        >>> import torch
        >>> weight = nn.Parameter(torch.ones(2))
        >>> worker = Worker(torch.optim.SGD([weight], lr=1.0))
        >>> weight.grad = torch.ones(2)
        >>> worker.follow([{"lr": 0.25}])
        >>> worker.step()
        >>> weight.tolist()
        [0.75, 0.75]
    """

    is_captured: bool | None = False
    keeps_types = False

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def begin(self, num_updates: int, seed: int) -> None:
        """Goes on from another state, which the optimizer has been given.

        Args:
            num_updates: How many updates there have been.
            seed: Where the random numbers of the first update started.
        """

    def follow(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Takes the settings of each parameter group for the next update."""
        for group, chosen in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(chosen)

    def step(self) -> None:
        """One update with the gradients that the parameters have."""
        self.optimizer.step()

    def state(self, parameter: Tensor) -> Mapping[str, Any]:
        """The state of a parameter as the user's optimizer is to show it."""
        return self.optimizer.state.get(parameter, {})

    @property
    def has_stepped(self) -> bool:
        """Whether the state holds what a step makes."""
        return any(self.optimizer.state.values())

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those of all groups, in order."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def over(self, parameters: Sequence[nn.Parameter]) -> "Worker":
        """One of the same kind and settings, without state, over other parameters."""
        other, given = copy.copy(self), iter(parameters)
        other.optimizer = without_parameters(self.optimizer)
        groups = self.optimizer.param_groups
        other.optimizer.param_groups = [{**one, "params": [next(given) for _ in one["params"]]} for one in groups]
        return other

    def tensors(self) -> dict[Input, Tensor]:
        """Everything that an update reads or writes: each parameter, its gradient and its state."""
        tensors: dict[Input, Tensor] = {}
        for number, parameter in enumerate(self.parameters):
            tensors[Input(Role.PARAMETER, f"{number}")] = parameter
            if parameter.grad is not None:
                tensors[Input(Role.GRADIENT, f"{number}")] = parameter.grad
            tensors |= self.state_tensors(number)
        return tensors

    def state_tensors(self, number: int) -> dict[Input, Tensor]:
        """The tensors that there are for the parameter of this number."""
        state = self.optimizer.state.get(self.parameters[number], {})
        return {Input(Role.STATE, f"{number}.{key}"): part for key, part in state.items() if isinstance(part, Tensor)}


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


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What each parameter group holds next to its parameters, as it is now; later changes in place are not included.

    Example:
        >>> import torch
        >>> [group["lr"] for group in settings_of(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5))]
        [0.5]
    """
    groups = optimizer.param_groups
    return [{key: with_floats(part, float) for key, part in one.items() if key != "params"} for one in groups]


def noted_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Its groups as they are now, with their parameters: what `holds_the_same` compares at the next update."""
    pairs = zip(settings_of(optimizer), optimizer.param_groups, strict=True)
    return [{**settings, "params": list(group["params"])} for settings, group in pairs]


def with_floats(part: Any, of: Callable[[float], Any]) -> Any:
    """Settings, or a part of them, with something in the place of each float.

    Example:
        >>> with_floats({"lr": 0.5, "betas": [0.9, 1]}, str)
        {'lr': '0.5', 'betas': ['0.9', 1]}
    """
    if type(part) is float:
        return of(part)
    if type(part) in (tuple, list):
        return type(part)([with_floats(choice, of) for choice in part])
    return {key: with_floats(choice, of) for key, choice in part.items()} if isinstance(part, dict) else part


def without_parameters(optimizer: Optimizer) -> Optimizer:
    """The same optimizer with no groups and no state; hooks and schedulers stay with the one given.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
        >>> other = without_parameters(sgd)
        >>> other.defaults["lr"], other.param_groups, len(sgd.param_groups)
        (0.5, [], 1)
    """
    other: Optimizer = object.__new__(type(optimizer))
    other.__setstate__({**optimizer.__getstate__(), "state": defaultdict(dict), "param_groups": []})
    # torch's copies leave out what others keep in attributes; `step` there is a scheduler's, for the one given.
    missing = vars(optimizer).keys() - vars(other).keys() - {"step"}
    vars(other).update(copy.deepcopy({name: vars(optimizer)[name] for name in missing}))
    return other


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


def require_gradients(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
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
