"""PopTorch's optimizers: torch's, with the arguments that a machine without float64 and with small float16 needs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from popgeo.compat.account import ACCOUNT, Treatment
from popgeo.engine.optimizer import wide_updates

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "RMSprop", "VariableAttributes"]

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


class _WideOptimizer(torch.optim.Optimizer):
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


def _loss_of(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _given(**settings: Any) -> dict[str, Any]:
    return {name: setting for name, setting in settings.items() if setting is not None}


def _refuse_amsgrad(amsgrad: bool | None) -> None:
    if amsgrad:
        raise ValueError("PopTorch optimizers do not support the amsgrad variant; pass amsgrad=False.")


class SGD(_WideOptimizer, torch.optim.SGD):
    """Stochastic gradient descent with PopTorch's arguments.

    Args:
        params, lr, momentum, dampening, weight_decay, nesterov, maximize: As in `torch.optim.SGD`.
        loss_scaling: What the loss is multiplied by, and gradients divided by.
        velocity_scaling: What the velocity is kept multiplied by.
        use_combined_accum: Recorded: joined gradient and velocity would share memory.
        accum_type: Type of joined gradients: `torch.float32` (by default) or `torch.float16`.
        velocity_accum_type: Type of the velocity, likewise.
        max_grad_norm: 2-norm that all gradients together are limited to.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> SGD([weight], lr=0.1, loss_scaling=8.0).loss_scaling
        8.0
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        if lr is None:
            raise ValueError("SGD needs a learning rate: pass lr.")
        settings = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, lr, **_given(**settings, nesterov=nesterov, maximize=maximize))
        for group in self.param_groups:
            group.setdefault("velocity_scaling", 1.0 if velocity_scaling is None else velocity_scaling)
        self.defaults["velocity_scaling"] = self.param_groups[0]["velocity_scaling"]
        self._set_up(
            {},
            {"lr": lr, **settings, "velocity_scaling": velocity_scaling, "nesterov": nesterov},
            loss_scaling=loss_scaling, max_grad_norm=max_grad_norm, accum_type=accum_type,
            types={"velocity_accum_type": velocity_accum_type},
        )  # fmt: skip
        self.use_combined_accum = bool(use_combined_accum)
        if use_combined_accum is not None:
            ACCOUNT.add("optim.SGD(use_combined_accum)", Treatment.RECORDED, "it saves memory and changes no result")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        if self._is_plain() and all(group["velocity_scaling"] == 1 for group in self.param_groups):
            return super().step(closure)
        loss = _loss_of(closure)
        velocity = self._types["velocity_accum_type"]

        def update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
            scaling = group["velocity_scaling"]
            wide_updates.sgd(parameter, gradient, state, group, velocity_type=velocity, velocity_scaling=scaling)

        self._update_each(update)
        return loss


class _Adam(_WideOptimizer):
    """Adam and AdamW, which differ in how weights decay."""

    _decoupled = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        corrects = self._choices.get("bias_correction") is not False
        if self._is_plain() and corrects:
            return super().step(closure)
        loss = _loss_of(closure)
        self._update_each(
            wide_updates.adam,
            decoupled=self._decoupled,
            bias_correction=corrects,
            first_type=self._types["first_order_momentum_accum_type"],
            second_type=self._types["second_order_momentum_accum_type"],
        )
        return loss


class Adam(_Adam, torch.optim.Adam):
    """Adam with PopTorch's arguments.

    Args:
        params, lr, betas, eps, weight_decay, maximize: As in `torch.optim.Adam`.
        amsgrad: Must not be set.
        loss_scaling: What the loss is multiplied by, and gradients divided by.
        accum_type: Type of joined gradients: `torch.float32` (by default) or `torch.float16`.
        first_order_momentum_accum_type: Type of the first moment, likewise.
        second_order_momentum_accum_type: Type of the second moment, likewise.
        max_grad_norm: 2-norm that all gradients together are limited to.

    Raises:
        ValueError: amsgrad is asked for, or another type.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> Adam([weight], lr=0.1).variable_attrs.isConstant("eps")
        True
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        _refuse_amsgrad(amsgrad)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, **_given(**settings, maximize=maximize))
        self._set_up(
            {}, settings, loss_scaling=loss_scaling, max_grad_norm=max_grad_norm, accum_type=accum_type,
            types=_moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )  # fmt: skip


class AdamW(_Adam, torch.optim.AdamW):
    """AdamW with PopTorch's arguments: those of `Adam`, and `bias_correction`.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = AdamW([weight], lr=0.1, betas=(0.5, 0.75), weight_decay=0.0, bias_correction=False)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    _decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        _refuse_amsgrad(amsgrad)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, **_given(**settings, maximize=maximize))
        self._set_up(
            {"bias_correction": bias_correction}, settings,
            loss_scaling=loss_scaling, max_grad_norm=max_grad_norm, accum_type=accum_type,
            types=_moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )  # fmt: skip


class RMSprop(_WideOptimizer, torch.optim.RMSprop):
    """RMSprop with PopTorch's arguments.

    Args:
        params, lr, alpha, eps, weight_decay, momentum, centered, maximize: As in `torch.optim.RMSprop`.
        loss_scaling, accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type: As in `Adam`.
        use_tf_variant: TensorFlow's variant: eps is added before the root, and the rate counts before the momentum.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = RMSprop([weight], lr=0.1, alpha=0.75, eps=0.75, use_tf_variant=True)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()
        >>> round(weight.item(), 3)
        0.9
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        settings = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
        }
        super().__init__(params, **_given(**settings, maximize=maximize))
        self._set_up(
            {"use_tf_variant": use_tf_variant}, settings,
            loss_scaling=loss_scaling, max_grad_norm=None, accum_type=accum_type,
            types=_moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )  # fmt: skip

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        if self._is_plain() and not self._choices["use_tf_variant"]:
            return super().step(closure)
        loss = _loss_of(closure)
        self._update_each(
            wide_updates.rmsprop,
            eps_in_root=bool(self._choices["use_tf_variant"]),
            first_type=self._types["first_order_momentum_accum_type"],
            second_type=self._types["second_order_momentum_accum_type"],
        )
        return loss


class LAMB(_WideOptimizer):
    """LAMB (arXiv:1904.00962) with PopTorch's arguments.

    Args:
        params: Parameters or groups of them.
        lr, betas, eps, weight_decay: As in `torch.optim.AdamW`.
        bias_correction: Whether the moments are divided by what they lack at first; they are by default.
        max_weight_norm: The most that the norm of the weights counts; None leaves it.
        loss_scaling, accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type, max_grad_norm: As
            in `Adam`.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = LAMB([weight], lr=0.1, weight_decay=0.0)
        >>> weight.grad = torch.tensor([1.0, 1.0])
        >>> optimizer.step()
        >>> weight.data
        tensor([2.6464, 3.6464])
    """

    elementwise = False  # it looks at the norm of each tensor

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_weight_norm": max_weight_norm,
        }
        usual = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": None}
        super().__init__(params, {**usual, **_given(**settings)})
        self._set_up(
            {"bias_correction": bias_correction}, settings,
            loss_scaling=loss_scaling, max_grad_norm=max_grad_norm, accum_type=accum_type,
            types=_moment_types(first_order_momentum_accum_type, second_order_momentum_accum_type),
        )  # fmt: skip

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient."""
        loss = _loss_of(closure)
        self._update_each(
            wide_updates.lamb,
            bias_correction=self._choices["bias_correction"] is not False,
            first_type=self._types["first_order_momentum_accum_type"],
            second_type=self._types["second_order_momentum_accum_type"],
        )
        return loss


def _moment_types(first: torch.dtype | None, second: torch.dtype | None) -> dict[str, torch.dtype | None]:
    return {"first_order_momentum_accum_type": first, "second_order_momentum_accum_type": second}
