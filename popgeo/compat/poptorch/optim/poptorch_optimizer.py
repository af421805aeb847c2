"""What PopTorch's optimizers have in common: arguments, types of their state, and what they tell the engine."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from popgeo.compat.account import ACCOUNT, Treatment
from popgeo.engine.optimizer.mixed_worker import MixedWorker, needs_mixed
from popgeo.engine.optimizer.precision import restore_types
from popgeo.engine.step_options import StepOptions

_TYPES = (torch.float16, torch.float32)
_WITHOUT_MEANING = ("amsgrad", "foreach", "capturable", "differentiable", "fused")  # how torch would go about it


class VariableAttributes:
    """Which settings of an optimizer may change after compiling; here all of them may, and this is only remembered.

    A setting that is left to its default is constant, until it is marked.

    Example:
        >>> attributes = VariableAttributes(["lr", "momentum"], constant=["momentum"])
        >>> attributes.markAsVariable("momentum")
        >>> attributes.isConstant("momentum")
        False
    """

    def __init__(self, names: Iterable[str], constant: Iterable[str] = ()) -> None:
        self._names, self._constant = frozenset(names), set(constant)

    def isConstant(self, attr: str) -> bool:
        """Whether a setting is taken not to change."""
        self._require(attr)
        return attr in self._constant

    def markAsConstant(self, attr: str) -> None:
        """Takes a setting not to change."""
        self._require(attr)
        self._constant.add(attr)

    def markAsVariable(self, attr: str) -> None:
        """Takes a setting to change."""
        self._require(attr)
        self._constant.discard(attr)

    def _require(self, attr: str) -> None:
        if attr not in self._names:
            raise ValueError(f"Unknown attribute {attr!r}; this optimizer has {', '.join(sorted(self._names))}.")


class PoptorchOptimizer(torch.optim.Optimizer):
    """Takes PopTorch's arguments; updates of half weights, and of state in half, are worked out in float32.

    A subclass stands before the optimizer of torch whose arguments it has, and names all of its own.

    Attributes:
        arguments: Names of the constructor's arguments in PopTorch's order; all may be left out, or be None.
        choices: Those of them that become attributes.
        types: Those of them that are a type, and the state that is kept in it.
        of_groups: The choices that each parameter group may have for itself, and their defaults.
        state_types: What of the state is kept in a narrower type than float32.
    """

    elementwise = True
    arguments: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    types: Mapping[str, tuple[str, ...]] = {}
    of_groups: Mapping[str, float | None] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [inspect.Parameter(name, kind, default=None) for name in cls.arguments]
        cls.__signature__ = inspect.Signature([inspect.Parameter("params", kind), *names])  # type: ignore[attr-defined]

    def __init__(self, *args: Any, **settings: Any) -> None:
        signature: inspect.Signature = type(self).__signature__  # type: ignore[attr-defined]
        given = signature.bind(*args, **settings).arguments
        params = given.pop("params")
        given = {name: setting for name, setting in given.items() if setting is not None}
        if given.get("amsgrad"):
            raise ValueError("PopTorch optimizers do not support the amsgrad variant; pass amsgrad=False.")
        apart = {"loss_scaling", "max_grad_norm", "accum_type", *self.choices, *self.types, *_WITHOUT_MEANING}
        super().__init__(params, **{name: setting for name, setting in given.items() if name not in apart})
        for name in self.choices:
            setattr(self, name, given.get(name))
        for group in (*self.param_groups, self.defaults):
            for name, default in self.of_groups.items():
                group.setdefault(name, given.get(name, default))
        self.loss_scaling = float(given.get("loss_scaling", 1.0))
        norm = given.get("max_grad_norm")
        self.max_grad_norm = None if norm in (None, 0, float("inf")) else norm
        self._take_types(given)
        unchanging = {"maximize", "accum_type", "use_combined_accum", *self.types, *_WITHOUT_MEANING}
        names = {*self.arguments, "max_grad_norm"} - unchanging
        self.variable_attrs = VariableAttributes(names, names - given.keys())
        for name in ("loss_scaling", "max_grad_norm"):
            if name in given:
                ACCOUNT.add(f"optim.{name}", Treatment.HONOURED, "the engine scales and limits gradients")

    def _take_types(self, given: Mapping[str, Any]) -> None:
        for name in ("accum_type", *self.types):
            if given.get(name, torch.float32) not in _TYPES:
                raise ValueError(
                    f"Accumulation types must be either torch.float32 or torch.float16; {name} is {given[name]}."
                )
        self.accum_type = given.get("accum_type", torch.float32)
        narrow = [name for name in self.types if given.get(name) is torch.float16]
        self.state_types = {key: torch.float16 for name in narrow for key in self.types[name]}
        kinds = {p.dtype for group in self.param_groups for p in group["params"]}
        if self.accum_type is torch.float16 and torch.float32 in kinds:
            ACCOUNT.add("optim.accum_type=float16", Treatment.IGNORED, "gradients of float32 weights stay float32")

    def __getstate__(self) -> dict[str, Any]:
        own = ("loss_scaling", "max_grad_norm", "accum_type", "state_types", "variable_attrs", *self.choices)
        return {**super().__getstate__(), **{name: vars(self)[name] for name in own if name in vars(self)}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's own, but state keeps the types in which it was saved; torch gives it those of the weights."""
        super().load_state_dict(state_dict)
        restore_types(self, state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if needs_mixed(self, StepOptions()):
            MixedWorker(self, StepOptions()).step()
        else:
            self._update()
        return loss

    def _update(self) -> None:
        """One update where all is of one type, that of the weights."""
        super().step()

    def _each(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Any], dict[str, Any]]]:
        """Each parameter that has a gradient: itself, its gradient, state and settings."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = -parameter.grad if group.get("maximize") else parameter.grad
                    yield parameter, gradient, self.state[parameter], group
