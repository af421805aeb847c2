"""An optimizer of float16 weights whose update is worked out in float32, around any optimizer of torch."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from popgeo.engine.optimizer.copy_optimizer import without_parameters
from popgeo.engine.optimizer.precision import NARROW, Precision
from popgeo.ops import round_stochastic

MASTER, COUNTER = "master_weights", "rounding"


class MixedOptimizer(Optimizer):
    """Widens weights and state, lets another optimizer step over them, and rounds what is kept in a narrower type.

    Weights of float32 and float64 are stepped as they are; only their state may be kept in another type. Beside the
    other optimizer's state there is `master_weights`, the weights in float32, and `rounding`, a counter from which
    random numbers start; both only where they are asked for.

    Args:
        inner: The optimizer, with one parameter a group.
        precision: The types.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
        >>> mixed = MixedOptimizer(torch.optim.SGD([weight], lr=1e-4, momentum=0.9), Precision(master_weights=True))
        >>> weight.grad = torch.ones(1, dtype=torch.float16)
        >>> for _ in range(3):
        ...     mixed.step()
        >>> weight.item(), mixed.state[weight]["master_weights"], mixed.state[weight]["momentum_buffer"]
        (0.99951171875, tensor([0.9994]), tensor([2.7100]))
    """

    def __init__(self, inner: Optimizer, precision: Precision) -> None:
        self.inner, self.precision = without_parameters(inner), precision
        self.__setstate__({"defaults": inner.defaults, "state": inner.state, "param_groups": inner.param_groups})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "inner": self.inner, "precision": self.precision}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient."""
        wide = [self._widened(group["params"][0]) for group in self.param_groups]
        inner = without_parameters(self.inner)
        inner.param_groups = [{**group, "params": [one]} for group, one in zip(self.param_groups, wide, strict=True)]
        for group, one in zip(self.param_groups, wide, strict=True):
            inner.state[one] = self._wide_state(group["params"][0])
        inner.step()
        for group, one in zip(self.param_groups, wide, strict=True):
            if one.grad is not None:
                self._keep(group["params"][0], one, inner.state[one])

    @torch.no_grad()
    def begin(self, num_updates: int) -> None:
        """Makes what there is beside the other optimizer's state, as after so many updates."""
        self._widen_state()
        for number, group in enumerate(self.param_groups):
            (parameter,) = group["params"]
            if self.precision.stochastic_rounding:
                # What is never divided all processes round alike.
                is_divided = parameter.dim() > 0 and parameter.is_contiguous()
                start = self.precision.counter(number, num_updates, is_divided=is_divided)
                self.state[parameter][COUNTER] = torch.tensor(start, device=parameter.device)
            if self.precision.master_weights and parameter.dtype in NARROW and MASTER not in self.state[parameter]:
                self.state[parameter][MASTER] = parameter.float()

    def has_state(self, parameter: Tensor) -> bool:
        """Whether a step has made some for this parameter."""
        return any(key not in (MASTER, COUNTER) for key in self.state.get(parameter, {}))

    @torch.no_grad()
    def follow_weights(self) -> None:
        """Brings master weights up to date where the weights have been changed from outside."""
        for group in self.param_groups:
            (parameter,) = group["params"]
            master = self.state.get(parameter, {}).get(MASTER)
            if master is not None and not torch.equal(master.to(parameter.dtype), parameter):
                same = master.to(parameter.dtype) == parameter
                master.copy_(torch.where(same, master, parameter.to(master.dtype)))

    def _widened(self, parameter: Tensor) -> Tensor:
        """A parameter in the type in which the update is worked out, with its gradient."""
        if parameter.dtype not in NARROW:
            return parameter
        master = self.state.get(parameter, {}).get(MASTER)
        wide = parameter.detach().float() if master is None else master
        if parameter.grad is not None:
            wide.grad = parameter.grad.to(wide.dtype)
        return wide

    def _wide_state(self, parameter: Tensor) -> dict[str, Any]:
        own = {key: part for key, part in self.state.get(parameter, {}).items() if key not in (MASTER, COUNTER)}
        if self.precision.state is None:
            return own
        dtype = torch.float64 if parameter.dtype is torch.float64 else torch.float32
        return {key: part.to(dtype) if _is_of(part, parameter) else part for key, part in own.items()}

    def _widen_state(self) -> None:
        """Gives state that came in a narrower type than it is kept in that type, with a warning: digits were lost."""
        own = type(self.inner).__module__.startswith("torch.optim")
        kept = self.precision.state or (torch.float32 if own else None)
        if kept is not torch.float32:
            return
        narrow = set()
        for group in self.param_groups:
            state = self.state.get(group["params"][0], {})
            is_new = isinstance(state.get("step"), Tensor) and not state["step"].is_meta and not state["step"].any()
            for key, part in state.items():
                if isinstance(part, Tensor) and part.dtype in NARROW:
                    state[key] = part.float()
                    if not is_new:  # Adagrad makes its state before any step
                        narrow.add(key)
        if narrow:
            warnings.warn(
                f"The optimizer's {', '.join(sorted(narrow))} came in a narrow type, and is kept in float32 from here "
                "on: its last digits are lost. torch's load_state_dict rounds state to the type of the weights; load "
                "it after the model has been compiled, or with CompiledModel.load.",
                stacklevel=2,
            )

    def _keep(self, parameter: Tensor, wide: Tensor, state: dict[str, Any]) -> None:
        """Writes the weights and the state after a step."""
        kept, precision = self.state[parameter], self.precision
        if precision.stochastic_rounding:
            if COUNTER not in kept:
                kept[COUNTER] = torch.zeros((), dtype=torch.int64, device=parameter.device)
            kept[COUNTER].add_(1)
        if parameter.dtype in NARROW:
            if precision.master_weights and MASTER not in kept:
                kept[MASTER] = wide
            wide.grad = None  # master weights stay, and are to hold no gradient
            parameter.copy_(self._narrowed(wide, parameter.dtype, kept, 0))
        for number, (key, part) in enumerate(state.items(), start=1):
            held = kept.get(key)
            if held is part:
                continue
            if precision.state is not None and _is_of(part, parameter) and part.dtype is not precision.state:
                part = self._narrowed(part, precision.state, kept, number)
                if isinstance(held, Tensor) and held.dtype is part.dtype:
                    held.copy_(part)
                    continue
            kept[key] = part

    def _narrowed(self, wide: Tensor, dtype: torch.dtype, kept: dict[str, Any], stream: int) -> Tensor:
        if not self.precision.stochastic_rounding or wide.dtype is not torch.float32 or dtype not in NARROW:
            return wide.to(dtype)
        counter = kept[COUNTER] + (stream << 40) if stream else kept[COUNTER]
        return round_stochastic(wide, counter, dtype)


def mixed(worker: Optimizer, precision: Precision) -> Optimizer:
    """An optimizer, inside one that works out its update in float32 where the precision asks for that."""
    types = {parameter.dtype for group in worker.param_groups for parameter in group["params"]}
    keeps_others = precision.state is not None and types != {precision.state}
    return MixedOptimizer(worker, precision) if keeps_others or (precision.is_mixed and types & {*NARROW}) else worker


def _is_of(part: Any, parameter: Tensor) -> bool:
    """Whether a piece of state has one number for each of the parameter's elements."""
    return isinstance(part, Tensor) and part.is_floating_point() and part.dim() > 0 and part.shape == parameter.shape


def restore_types(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Gives an optimizer's state the types of the `state_dict` that it has loaded, which torch rounds to the weights'.

    Args:
        optimizer: Has loaded it.
        saved: What it has loaded.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
        >>> sgd = torch.optim.SGD([weight], momentum=0.9)
        >>> saved = sgd.state_dict() | {"state": {0: {"momentum_buffer": torch.tensor([0.1])}}}
        >>> sgd.load_state_dict(saved)
        >>> restore_types(sgd, saved)
        >>> sgd.state[weight]["momentum_buffer"]
        tensor([0.1000])
    """
    names = [name for group in saved["param_groups"] for name in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        for key, part in saved["state"].get(name, {}).items():
            loaded = optimizer.state[parameter].get(key)
            if isinstance(part, Tensor) and isinstance(loaded, Tensor) and loaded.dtype in NARROW:
                optimizer.state[parameter][key] = part.detach().clone().to(loaded.device)


def keep_types_when_loading(optimizer: Optimizer) -> None:
    """Lets `optimizer.load_state_dict` leave state in the types in which it was saved."""
    if getattr(optimizer, "_keeps_types_when_loading", False):
        return
    saved: list[dict[str, Any]] = []
    optimizer.register_load_state_dict_pre_hook(lambda _, state: saved.append(state))
    optimizer.register_load_state_dict_post_hook(lambda loaded: restore_types(loaded, saved.pop()))
    optimizer._keeps_types_when_loading = True  # type: ignore[attr-defined]
