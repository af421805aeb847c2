"""What PopTorch's optimizers have in common: types of their state, and scaling and limits for the engine."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from popgeo.compat.account import ACCOUNT, Treatment
from popgeo.engine.optimizer import wide_updates
from popgeo.engine.optimizer.mixed_optimizer import restore_types

_TYPES = (torch.float16, torch.float32)
_KEPT = ("loss_scaling", "max_grad_norm", "accum_type", "variable_attrs", "_types", "_choices")


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


class WideOptimizer(torch.optim.Optimizer):
    """What PopTorch's optimizers have in common; each element's update depends on that element alone."""

    elementwise = True
    loss_scaling: float
    max_grad_norm: float | None
    accum_type: torch.dtype

    def _set_up(
        self,
        choices: Mapping[str, Any],
        given: Mapping[str, Any],
        *,
        loss_scaling: float | None,
        max_grad_norm: float | None,
        accum_type: torch.dtype | None,
        types: Mapping[str, torch.dtype | None],
    ) -> None:
        """Remembers the settings beyond torch's own.

        Args:
            choices: What the update also depends on, by name.
            given: Settings of the constructor; None where one is left to its default.
            loss_scaling: What the loss is multiplied by before the backward pass.
            max_grad_norm: 2-norm that all gradients together are limited to.
            accum_type: Type of the joined gradients.
            types: Types of the moments, by the name of the argument.
        """
        self.loss_scaling = 1.0 if loss_scaling is None else float(loss_scaling)
        unlimited = max_grad_norm is None or max_grad_norm in (0, float("inf"))
        self.max_grad_norm = None if unlimited else max_grad_norm
        for name, dtype in {"accum_type": accum_type, **types}.items():
            if dtype is not None and dtype not in _TYPES:
                raise ValueError(
                    f"Accumulation types must be either torch.float32 or torch.float16; {name} is {dtype}."
                )
        self.accum_type = accum_type or torch.float32
        self._types = {name: dtype or torch.float32 for name, dtype in types.items()}
        self._choices = dict(choices)
        names = [*given, *choices, "loss_scaling", "max_grad_norm"]
        scaling = {"loss_scaling": loss_scaling, "max_grad_norm": max_grad_norm}
        everything = {**given, **choices, **scaling}
        self.variable_attrs = VariableAttributes(names, [name for name in names if everything[name] is None])
        for name in ("loss_scaling", "max_grad_norm"):
            if scaling[name] is not None:
                ACCOUNT.add(f"optim.{name}", Treatment.HONOURED, "the engine scales and limits gradients")
        kinds = {p.dtype for group in self.param_groups for p in group["params"]}
        if accum_type is torch.float16 and torch.float32 in kinds:
            ACCOUNT.add("optim.accum_type=float16", Treatment.IGNORED, "gradients of float32 weights stay float32")

    def __getstate__(self) -> dict[str, Any]:
        held = {name: self.__dict__[name] for name in _KEPT if name in self.__dict__}
        return {**super().__getstate__(), **held}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's own, but state keeps the types in which it was saved; torch gives it those of the weights."""
        super().load_state_dict(state_dict)
        restore_types(self, state_dict)

    def _is_plain(self) -> bool:
        """Whether torch's own update does the same, bit by bit."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        widths = {p.dtype for p in parameters} | {p.grad.dtype for p in parameters if p.grad is not None}
        return widths <= {torch.float32, torch.float64} and {*self._types.values()} <= {torch.float32}

    @torch.no_grad()
    def _update_each(self, update: Callable[..., None], **choices: Any) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = wide_updates.wide_gradient(parameter, maximize=group.get("maximize", False))
                    update(parameter, gradient, self.state[parameter], group, **choices)


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """What a closure returns, with gradients; None where there is none."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def given(**settings: Any) -> dict[str, Any]:
    """The settings that were given."""
    return {name: setting for name, setting in settings.items() if setting is not None}


def moment_types(first: torch.dtype | None, second: torch.dtype | None) -> dict[str, torch.dtype | None]:
    """The types of both moments, by the names of their arguments."""
    return {"first_order_momentum_accum_type": first, "second_order_momentum_accum_type": second}
