"""Workers, which step an optimizer over flat parameters with the optimizer's own code."""

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
    """Base class of workers: step an optimizer as torch itself does.

    `FlatWorker` captures updates of flat parameters. `OwnWorker` steps the user's optimizer itself.

    Args:
        optimizer: Optimizer of the parameters. It owns their state, in which a worker may keep numbers, too.

    Attributes:
        is_captured: Whether the last update ran as a captured graph. None: this is not known yet.
        keeps_types: Whether state may have other types than the weights. torch's `load_state_dict` would convert it.

    Example:
        >>> import torch
        >>> weight = nn.Parameter(torch.ones(2))
        >>> worker = Worker(torch.optim.SGD([weight], lr=1.0))
        >>> weight.grad = torch.ones(2)
        >>> worker.take_settings([{"lr": 0.25}])
        >>> worker.step()
        >>> weight.tolist()
        [0.75, 0.75]
    """

    is_captured: bool | None = False
    keeps_types = False

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def begin(self, num_updates: int, seed: int) -> None:
        """Continue from the state that the optimizer holds now.

        Args:
            num_updates: Number of updates before this state.
            seed: Seed of the random numbers that round weights.
        """

    def take_settings(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Set the settings of each parameter group for the next update."""
        for group, chosen in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(chosen)

    def step(self) -> None:
        """Update the parameters once with their gradients."""
        self.step_once()

    def step_once(self) -> None:
        """Let the optimizer itself update the parameters once."""
        self.optimizer.step()

    def state(self, parameter: Tensor) -> Mapping[str, Any]:
        """Return the state of a parameter that the user's optimizer shows."""
        return self.optimizer.state.get(parameter, {})

    @property
    def has_stepped(self) -> bool:
        """Whether a step has made its state."""
        return any(self.optimizer.state.values())

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters of all groups, in order."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def for_parameters(self, parameters: Sequence[nn.Parameter]) -> "Worker":
        """Return a worker with the same settings, without state, over other parameters."""
        other, given = copy.copy(self), iter(parameters)
        other.optimizer = without_parameters(self.optimizer)
        groups = self.optimizer.param_groups
        other.optimizer.param_groups = [{**one, "params": [next(given) for _ in one["params"]]} for one in groups]
        return other

    def tensors(self) -> dict[Input, Tensor]:
        """Return each tensor that an update reads or writes: parameters, their gradients and their state."""
        tensors: dict[Input, Tensor] = {}
        for number, parameter in enumerate(self.parameters):
            tensors[Input(Role.PARAMETER, f"{number}")] = parameter
            if parameter.grad is not None:
                tensors[Input(Role.GRADIENT, f"{number}")] = parameter.grad
            tensors |= self.state_tensors(number)
        return tensors

    def state_tensors(self, number: int) -> dict[Input, Tensor]:
        """Return the tensors in the state of the parameter with this number."""
        state = self.optimizer.state.get(self.parameters[number], {})
        return {Input(Role.STATE, f"{number}.{key}"): part for key, part in state.items() if isinstance(part, Tensor)}


class OwnWorker(Worker):
    """Worker that steps the user's optimizer itself, with its groups, state and hooks, over the original parameters.

    This is correct for any optimizer, including optimizers that keep progress in their groups or attributes, that look
    at all parameters of a group, or that have hooks around their step. Its updates are neither joined nor captured.

    Args:
        optimizer: The user's optimizer.
        flat: Parameters that have a gradient.
    """

    def __init__(self, optimizer: Optimizer, flat: Sequence[FlatParameters]) -> None:
        super().__init__(optimizer)
        self._flat = flat

    def step_once(self) -> None:
        """Call the optimizer's own `step`, with the accumulated gradients as the parameters' gradients."""
        pairs = [pair for part in self._flat for pair in zip(part.members, part.total_views, strict=True)]
        held = [parameter.grad for parameter, _ in pairs]
        try:
            for parameter, total in pairs:
                parameter.grad = total.to(parameter.dtype, copy=True)  # the optimizer may keep it
            self.optimizer.step()
        except RuntimeError as error:  # for example from an optimizer that differentiates gradients
            reason = f"{error}. A compiled step gives it gradients alone: no graph behind them, no closure"
            raise RuntimeError(f"{type(self.optimizer).__name__}'s own step() failed: {reason}.") from error
        finally:
            for (parameter, _), gradient in zip(pairs, held, strict=True):
                parameter.grad = gradient

    has_stepped = False  # copies make their own state

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Flat parameters, in order."""
        return [part.own for part in self._flat]

    def for_parameters(self, parameters: Sequence[nn.Parameter]) -> Worker:
        """Return a worker with a deep copy of each group over other parameters."""
        own, given = without_parameters(self.optimizer), iter(parameters)
        counts = Counter(part.group for part in self._flat)
        groups = [(group, counts[number]) for number, group in enumerate(settings_of(self.optimizer)) if counts[number]]
        own.param_groups = [{**copy.deepcopy(group), "params": list(islice(given, count))} for group, count in groups]
        return Worker(own)


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return a copy of each parameter group's settings, without the parameters.

    Example:
        >>> import torch
        >>> [group["lr"] for group in settings_of(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5))]
        [0.5]
    """
    groups = optimizer.param_groups
    return [{key: map_floats(part, float) for key, part in one.items() if key != "params"} for one in groups]


def map_floats(part: Any, function: Callable[[float], Any]) -> Any:
    """Return a copy of nested settings with a function applied to each float.

    Example:
        >>> map_floats({"lr": 0.5, "betas": [0.9, 1]}, str)
        {'lr': '0.5', 'betas': ['0.9', 1]}
    """
    if isinstance(part, float):
        return function(part)
    if type(part) in (tuple, list):
        return type(part)([map_floats(choice, function) for choice in part])
    return {key: map_floats(choice, function) for key, choice in part.items()} if isinstance(part, dict) else part


def without_parameters(optimizer: Optimizer) -> Optimizer:
    """Return a copy of an optimizer without groups, state, hooks and scheduler.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
        >>> other = without_parameters(sgd)
        >>> other.defaults["lr"], other.param_groups, len(sgd.param_groups)
        (0.5, [], 1)
    """
    other: Optimizer = object.__new__(type(optimizer))
    other.__setstate__({**optimizer.__getstate__(), "state": defaultdict(dict), "param_groups": []})
    # torch's __getstate__ omits other attributes. An attribute `step` is a scheduler's wrapper of the original step.
    missing = vars(optimizer).keys() - vars(other).keys() - {"step"}
    vars(other).update(copy.deepcopy({name: vars(optimizer)[name] for name in missing}))
    return other


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Check whether hooks or a wrapper surround an optimizer's step, so that only its own `step` calls them.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        >>> handle = sgd.register_step_pre_hook(lambda optimizer, args, kwargs: None)
        >>> has_step_hooks(sgd), handle.remove(), has_step_hooks(sgd)
        (True, None, False)
    """
    step = vars(optimizer).get("step")
    own = optimizer._optimizer_step_pre_hooks.values(), optimizer._optimizer_step_post_hooks.values()
    hooks = [*own[0], *own[1], *_global_optimizer_pre_hooks, *_global_optimizer_post_hooks]
    # A scheduler's wrapper only notes that the optimizer has stepped.
    is_its_own = not callable(step) or getattr(step, "__wrapped__", None) is type(optimizer).step
    return hooks not in ([], [refuse_empty_update]) or not is_its_own


def require_gradients(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
    """Check that gradients are all that an optimizer and its parameters need from a step.

    Raises:
        ValueError: The optimizer's step takes a closure, or a parameter has a hook for accumulated gradients.
    """
    _, *given = inspect.signature(type(optimizer).step).parameters.values()
    needed = [one.name for one in given if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if needed:
        name = type(optimizer).__name__
        raise ValueError(f"{name} evaluates the model several times per step: its step() needs {needed}. Use another.")
    hooked = [name for name, p in parameters.items() if p._post_accumulate_grad_hooks]
    if hooked:
        raise ValueError(
            "A compiled step does not call hooks of register_post_accumulate_grad_hook, which "
            f"{', '.join(hooked)} has. Use the parameter's register_hook, or the optimizer's register_step_pre_hook, "
            "which sees all gradients."
        )
