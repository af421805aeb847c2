"""Compares a model with its state at the capture: changed modules and attributes, and weights in other memory."""

import copy
import gc
import inspect
import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.hooks import RemovableHandle

from popgeo.capture.held_state import OF_EVERY_MODULE, containers_in, tensors_in
from popgeo.capture.pytree import SCALARS
from popgeo.engine.same_objects import holds_the_same, same_tables
from popgeo.native.tensor_forms import same_forms

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_FORWARD, _VERSION = operator.attrgetter("forward"), operator.attrgetter("_version")
_HOOKS_OF_ALL = tuple(vars(torch_module)[f"_global{name}"] for name in _HOOKS)


class ModelWatch:
    """A model's state at the capture, for comparison before each call.

    `is_unchanged` compares identities and addresses that `look` gathered; each call asks it, so it must be fast. If one
    of them differs, `needs_capture` compares the properties that affect the capture.

    Args:
        model: The captured model.
        modes: For each submodule, whether it trains in the step.
        reads: The attributes that the capture read, by submodule and name; None for a kept step, which has copies of
            the tensors in all attributes.
        trains: Whether the step trains the model.
    """

    def __init__(
        self, model: nn.Module, modes: Mapping[nn.Module, bool], reads: frozenset[tuple[str, str]] | None, trains: bool
    ) -> None:
        self.model, self._given_modes, self._reads, self._trains = model, modes, reads, trains
        self._has_warned = False
        self._captured = dict(self._properties())
        self.look()

    def is_unchanged(self) -> bool:
        """Return whether no part of the model was replaced, moved or set since the last look."""
        return (
            self._has_same_tables()
            and all(map(operator.is_, self._visible(), self._seen))
            and (not self._lists or holds_the_same(self._lists, self._copies))
            and self._has_same_forms()
        )

    def _visible(self) -> list[Any]:
        """Return the present types and functions."""
        return [
            *types_around(),
            RemovableHandle.next_id,
            *map(_FORWARD, self._forwards),
            *map(_VERSION, self._copied),
        ]

    def needs_capture(self) -> bool:
        """Return whether a property that affects the capture has changed; False if weights have only moved."""
        return not holds_the_same(dict(self._properties()), self._captured)

    def has_moved(self) -> bool:
        """Return whether a weight or buffer is in other memory than at the last look."""
        return self._addresses != [t.data_ptr() for t in (*self.model.parameters(), *self.model.buffers())]

    def look(self) -> None:
        """Gather the identities and addresses that `is_unchanged` compares."""
        modules = dict(self.model.named_modules())
        # Classes of TorchScript have no `forward`; only their instances do.
        kinds = dict.fromkeys(map(type, modules.values()))
        self._forwards = [kind for kind in kinds if not issubclass(kind, torch.jit.ScriptModule)]
        tables = [t for one in modules.values() for t in (one._parameters, one._buffers, one._modules)]
        tensors = [*self.model.parameters(), *self.model.buffers()]
        trainable = self.model.parameters() if self._trains else []
        hooks = [*_HOOKS_OF_ALL, *(getattr(one, name) for one in modules.values() for name in _HOOKS)]
        hooks += [own for parameter in trainable for own in _hooks_of(parameter)]
        tables = [table for table in tables if isinstance(table, dict)] + [own for own in hooks if own]
        watched = [(one, name) for path, one in modules.items() for name in self._attributes(path, one)]
        values = [vars(one).get(name, getattr(type(one), name, None)) for one, name in watched]
        tables += [table for value in values for table in containers_in(value)]
        self._copied = [] if self._reads is not None else [one for value in values for one in _counting_tensors(value)]
        of_classes = dict.fromkeys((type(one), name) for one, name in watched)
        places: list[Any] = [(vars(one), name) for one, name in watched]
        places += [(table, name) for kind, name in of_classes for table in _class_tables(kind)]
        places += [(vars(one), "training") for one in modules.values()]
        whole = [table for table in tables if isinstance(table, dict)]
        self._has_same_tables = same_tables(whole, places, list(modules.values()))
        self._lists = [table for table in tables if not isinstance(table, dict)]
        self._addresses = [tensor.data_ptr() for tensor in tensors]
        self._has_same_forms = same_forms(tensors)
        self._seen, self._copies = self._visible(), [copy.copy(table) for table in self._lists]

    def _properties(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the value of each property of the model that affects its capture."""
        modes = modes_now(self.model, self._given_modes)
        self._warn_of_eval()
        yield "autocast or the default type", types_around()
        yield "hooks of all modules", [list(hooks.items()) for hooks in _HOOKS_OF_ALL]
        for path, module in self.model.named_modules():
            place = f"{path}." if path else ""
            # PopTorch replaces the class of a model by a subclass that names the original in `__wrapped__`.
            kind = vars(type(module)).get("__wrapped__", type(module))
            yield path or "the model", (id(module), kind, inspect.getattr_static(kind, "forward", None))
            yield f"{place}training", modes.get(module, module.training)
            yield f"hooks of {path or 'the model'}", [list(getattr(module, hooks).items()) for hooks in _HOOKS]
            yield from ((f"{place}{name}", _form(buffer)) for name, buffer in module._buffers.items())
            for name, parameter in module._parameters.items():
                yield f"{place}{name}", _form(parameter)
                if self._trains and parameter is not None:
                    yield f"{place}{name} itself", (id(parameter), parameter.requires_grad)
                    yield f"hooks of {place}{name}", [list(hooks.items()) for hooks in _hooks_of(parameter)]
            for name in self._attributes(path, module):
                own = name in vars(module)
                value = vars(module)[name] if own else inspect.getattr_static(type(module), name, None)
                yield f"attribute {place}{name}", _value_or_identity(value)
                if self._reads is None:
                    yield f"tensors of {place}{name}", list(map(_VERSION, _counting_tensors(value)))

    def _warn_of_eval(self) -> None:
        """Warn once if `eval()` was called on the model of a forward pass that was compiled in training mode."""
        is_evaluated = not self._trains and self._given_modes.get(self.model) and not self.model.training
        if not is_evaluated or self._has_warned:
            return
        if any(isinstance(one, (_DropoutNd, _NormBase)) for one in self.model.modules()):
            self._has_warned = True
            warnings.warn(
                "The model is in the mode of eval() now, and its compiled forward pass keeps that of train(), in which "
                "it was compiled: dropout and norms act as in training. To switch it, call the step's eval().",
                stacklevel=2,
            )

    def _attributes(self, path: str, module: nn.Module) -> list[str]:
        """Return the names of a submodule's plain attributes that the capture read, or looked for and did not find.

        An attribute of the class counts too, since an attribute of the instance would hide it.
        """
        if self._reads is None:
            of_class = [vars(one) for one in type(module).__mro__ if one not in nn.Module.__mro__]
            plain = [name for own in of_class for name, value in own.items() if not hasattr(value, "__get__")]
            return [name for name in dict.fromkeys([*vars(module), *plain]) if name not in OF_EVERY_MODULE]
        return sorted(name for place, name in self._reads if place == path)


def modes_now(model: nn.Module, given: Mapping[nn.Module, bool]) -> Mapping[nn.Module, bool]:
    """Return for each submodule whether it trains in the step.

    Submodules keep their present modes, in whatever order these were set. While the whole model is in another mode than
    its step, as during an evaluation, the modes of the step remain.

    Args:
        model: The model of a step.
        given: For each submodule, whether it has trained in the step so far.
    """
    if model.training != given.get(model, model.training):
        return given
    return {one: one.training for one in model.modules()}


def autocast_around() -> torch.dtype | None:
    """Return the type of the autocast around this call; None if autocast is off.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     autocast_around()
        torch.bfloat16
    """
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def types_around() -> tuple[torch.dtype | None, torch.dtype]:
    """Return the type of the autocast around this call, and the default type of new tensors."""
    return autocast_around(), torch.get_default_dtype()


def _counting_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value that count their changes in place."""
    return [one for one in tensors_in(value) if not one.is_inference()]


def _class_tables(kind: type) -> list[dict[str, Any]]:
    """Return the attributes of a class and of its bases, up to `nn.Module`."""
    # `vars` of a class is a proxy; entries are compared in the dictionary behind it.
    return [gc.get_referents(vars(one))[0] for one in kind.__mro__ if one not in nn.Module.__mro__]


def _hooks_of(parameter: nn.Parameter) -> list[Mapping[int, Any]]:
    return [parameter._backward_hooks or {}, getattr(parameter, "_post_accumulate_grad_hooks", None) or {}]


def _form(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _value_or_identity(value: Any) -> Any:
    """Return a number or text with its type, and the identity and present content of any other object."""
    if isinstance(value, SCALARS):
        return type(value), value
    return id(value), [copy.copy(table) for table in containers_in(value)]
