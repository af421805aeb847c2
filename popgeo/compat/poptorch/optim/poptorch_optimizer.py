"""Base class of PopTorch's optimizers: arguments, types of the state, and state under PopART's names."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.compat.account import honoured, ignored, recorded
from popgeo.compat.poptorch.errors import check, rows_of, said
from popgeo.engine.loss_scaling import LossScale
from popgeo.engine.optimizer.flat_worker import FlatWorker, needs_mixed
from popgeo.engine.optimizer.precision import restore_types
from popgeo.engine.step_options import StepOptions

_ROWS = rows_of(Path(__file__).with_name("arguments.csv"))
_TYPES = (torch.float16, torch.float32)
_OWN = ("loss_scaling", "max_grad_norm", "accum_type", "state_types", "variable_attrs", "_names", "_scale", "_loaded")
_NO_STATE: Mapping[str, Any] = {"ipu_state": None, "ipu_param": None}
_IGNORED = ("amsgrad", "foreach", "capturable", "differentiable", "fused")  # choices of torch's implementation
_PREFIXES = {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "square_avg": "Accl1", "grad_avg": "Accl2"}
_PREFIXES |= {"momentum_buffer": "Accl3"}  # except for SGD, where it is Accl1
_FACTOR = "lossScaleUpdateFactor"  # dynamic scale of the loss, relative to its first value
_NEEDED = {"grad_avg": "centered", "momentum_buffer": "momentum"}  # settings that this state needs
Names = Mapping[nn.Parameter, str]


class VariableAttributes:
    """Record of the settings that a program may change after compiling. Here it may change all of them.

    A setting with its default value is constant until it is marked as variable.

    Args:
        variable_attributes: Names of variable settings.
        allowed_attributes: Names of all settings.

    Example:
        >>> attributes = VariableAttributes(["lr"], allowed_attributes=["lr", "momentum"])
        >>> attributes.markAsVariable("momentum")
        >>> attributes.isConstant("momentum")
        False
    """

    def __init__(self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]) -> None:
        self._variable_attributes, self._allowed_attributes = list(variable_attributes), list(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        """Check whether a setting is not marked as variable."""
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Mark a setting as constant."""
        self._variable_attributes = [name for name in self._variable_attributes if name != self._known(attr)]

    def markAsVariable(self, attr: str) -> None:
        """Mark a setting as variable."""
        self._variable_attributes.append(self._known(attr))

    def _known(self, attr: str) -> str:
        if attr not in self._allowed_attributes:
            names = ", ".join(sorted(self._allowed_attributes))
            raise ValueError(f"Unknown attribute {attr!r}; this optimizer has {names}.")
        return attr


def new_attributes(optimizer: Any, seen: dict[tuple[type, str], set[str]]) -> Iterator[str]:
    """Yield, in PopTorch's words, the attributes of an optimizer and its groups that are new since the last check.

    Args:
        optimizer: Optimizer to check.
        seen: Names at the last check, by class of optimizer and place. New names are added.

    Example:
        >>> optimizer, seen = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1), {}
        >>> list(new_attributes(optimizer, seen))
        []
        >>> optimizer.lr = 0.2
        >>> list(new_attributes(optimizer, seen))
        ["optimizer attribute in SGD optimizer: ['lr']"]
    """
    own = {name for name, value in vars(optimizer).items() if not (name.startswith("_") or callable(value))}
    groups = {f"group {number}": {*group} for number, group in enumerate(optimizer.param_groups)}
    for place, names in {"optimizer": own, **groups}.items():
        known = seen.setdefault((type(optimizer), place), names)
        if new := sorted(names - known):
            yield f"{place} attribute in {type(optimizer).__name__} optimizer: {new}"
        seen[type(optimizer), place] = known | names


class PoptorchOptimizer(torch.optim.Optimizer):
    """Base class of PopTorch's optimizers, which update narrow weights and narrow state in float32.

    A subclass also inherits from torch's optimizer of the same name. `arguments.csv` lists PopTorch's arguments.

    Attributes:
        arguments: Names of the constructor's arguments in PopTorch's order. All are optional, and None is the default.
        choices: Arguments that become attributes.
        types: Arguments that are types, with the names of the state that has this type.
        of_groups: Arguments that each parameter group may override, with their defaults.
        state_types: Types of state that is stored narrower than float32, by name.
    """

    elementwise = True
    arguments: Sequence[str] = ()
    choices: Sequence[str] = ()
    bias_correction = use_tf_variant = use_combined_accum = None
    types: Mapping[str, tuple[str, ...]] = {}
    of_groups: Mapping[str, float | None] = {}
    _names: Mapping[nn.Parameter, str] | None = None  # names of parameters, after a model has been compiled with it
    _scale: LossScale | None = None
    _loaded = _NO_STATE  # loaded state, until then

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for row in _ROWS:
            if row["optimizer"] == cls.__name__:
                cls.arguments, cls.choices = row["arguments"].split(), row["choices"].split()
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
        apart = {"loss_scaling", "max_grad_norm", "accum_type", *self.choices, *self.types, *_IGNORED}
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
        unchanging = {"maximize", "accum_type", "use_combined_accum", *self.types, *_IGNORED}
        names = {*self.arguments, "max_grad_norm"} - unchanging
        self.variable_attrs = VariableAttributes(names & given.keys(), names)
        for name in ("loss_scaling", "max_grad_norm"):
            if name in given:
                honoured(f"optim.{name}", "the engine scales and clips gradients")

    def _take_types(self, given: Mapping[str, Any]) -> None:
        for name in ("accum_type", *self.types):
            check(given.get(name) in (None, *_TYPES), said("take_types", name=name, given=given.get(name)), ValueError)
        self.accum_type = given.get("accum_type", torch.float32)
        narrow = [name for name in self.types if given.get(name) is torch.float16]
        self.state_types = {key: torch.float16 for name in narrow for key in self.types[name]}
        kinds = {p.dtype for group in self.param_groups for p in group["params"]}
        if self.accum_type is torch.float16 and torch.float32 in kinds:
            ignored("optim.accum_type=float16", "gradients of float32 weights stay float32")

    def __getstate__(self) -> dict[str, Any]:
        own = (name for name in (*_OWN, *self.choices) if name in vars(self))
        return {**super().__getstate__(), **{name: vars(self)[name] for name in own}}

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of torch's `state_dict` with PopTorch's `ipu_state` and `ipu_param`.

        `ipu_state` has the state under PopART's names, such as `Accl1___lin.weight`. `ipu_param` has the numbers of the
        next update. Both are None before a model is compiled.
        """
        held = copy.deepcopy(super().state_dict())
        if self._names is None:
            return {**self._loaded, **held}
        state, settings = named_state(self, self._names, held["state"]), named_settings(self, self._names)
        if self._scale is not None:
            state[_FACTOR] = settings[_FACTOR] = torch.tensor(self._scale.value / self._scale.rule.initial)
        return {"ipu_state": state, "ipu_param": settings, **held}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state without a conversion to the types of the weights, unlike torch's own method.

        The values of an `ipu_state` take precedence. Settings come from `param_groups`, not from `ipu_param`.
        """
        super().load_state_dict(state_dict)
        restore_types(self, state_dict)
        self._loaded = {key: state_dict.get(key) for key in _NO_STATE}
        if self._names is not None:
            self.use_names(self._names, self._scale)

    def use_names(self, names: Mapping[nn.Parameter, str], scale: LossScale | None) -> None:
        """Set the names of the parameters in a compiled model, and apply state that was loaded under these names.

        Args:
            names: Name of each parameter.
            scale: Scale of the loss, if it is dynamic.

        Raises:
            ValueError: Some of the loaded state belongs to no parameter.
        """
        loaded = dict(self._loaded["ipu_state"] or {})
        factor = loaded.pop(_FACTOR, None)
        take_state(self, names, loaded)
        if factor is not None and scale is not None:
            scale.tensor.fill_(float(factor) * scale.rule.initial)
        elif factor is not None:
            recorded(f"a state with {_FACTOR}", "the scale of the loss is constant here")
        self._names, self._scale, self._loaded = names, scale, _NO_STATE

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update each parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if needs_mixed(self, StepOptions()):
            FlatWorker(self, StepOptions()).step_once()
        else:
            self._update()
        return loss

    def _update(self) -> None:
        """Update all parameters when weights, gradients and state have the same type."""
        super().step()

    def _each(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Any], dict[str, Any]]]:
        """Yield each parameter that has a gradient: parameter, gradient, state and settings."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = -parameter.grad if group.get("maximize") else parameter.grad
                    yield parameter, gradient, self.state[parameter], group


def named_state(optimizer: Any, names: Names, state: Mapping[int, Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return each parameter's state under PopART's names, from the state of a `state_dict`. Default: zeros."""
    numbers = {p: number for number, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    places = _places(optimizer, names)
    return {name: state.get(numbers[p], {}).get(key, torch.zeros(shape)) for name, p, key, shape in places}


def named_settings(optimizer: Any, names: Names) -> dict[str, Tensor]:
    """Return the numbers of the next update: rates and decays of each parameter, and the scale of the loss."""
    scale = float(optimizer.loss_scaling)
    found = {"lossScaling_FLOAT": torch.tensor(scale)}
    for group in optimizer.param_groups:
        numbers = {"learningRate": group["lr"], "weightDecay": group["weight_decay"]}
        if isinstance(optimizer, torch.optim.SGD):
            rate = group["lr"] * (1 - group["dampening"])
            numbers = {"scaledLearningRate0": rate / scale, "weightDecayScaleFactor0": 1 - rate * group["weight_decay"]}
        for own in (names[parameter] for parameter in group["params"] if parameter in names):
            found |= {f"{name}___specific___{own}": torch.tensor(float(number)) for name, number in numbers.items()}
    return found


def take_state(optimizer: Any, names: Names, loaded: Mapping[str, Tensor]) -> None:
    """Set an optimizer's state from a checkpoint under PopART's names. Other state stays, or starts at zero.

    Names of SDK 2.6 and before, with `model.` before the parameter's name, are accepted, too.

    Raises:
        ValueError: The optimizer does not have some of this state, which would be lost.
    """
    places = list(_places(optimizer, names))
    own = {name for name, *_ in places}
    older = {name.replace("___model.", "___", 1): part for name, part in loaded.items()}
    loaded = max(loaded, older, key=lambda held: len(held.keys() & own))
    if strange := sorted(loaded.keys() - own):
        kind, known = type(optimizer).__name__, ", ".join(sorted(own)) or "no state"
        raise ValueError(said("take_state", strange=", ".join(strange), kind=kind, known=known))
    met = {parameter for name, parameter, _, _ in places if name in loaded}
    for name, parameter, key, shape in places:
        if parameter in met:
            held = optimizer.state[parameter]
            part = loaded.get(name, held.get(key, torch.zeros(shape)))
            held[key] = part.detach().clone().reshape(shape)


def _places(optimizer: Any, names: Names) -> Iterator[tuple[str, nn.Parameter, str, torch.Size]]:
    """Yield each piece of state: PopART's name, its parameter, torch's name and its shape."""
    own = {"momentum_buffer": "Accl1"} if isinstance(optimizer, torch.optim.SGD) else {"step": "Step"}
    prefixes = {key: _PREFIXES[key] for keys in optimizer.types.values() for key in keys} | own
    for group in optimizer.param_groups:
        for key, prefix in prefixes.items():
            for p in group["params"] if group.get(_NEEDED.get(key), True) else ():
                if p in names:
                    yield f"{prefix}___{names[p]}", p, key, torch.Size() if key == "step" else p.shape
