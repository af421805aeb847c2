"""Notices what a compiled step has to follow in its model: memory that moved, and changes of what was captured."""

import copy
import inspect
import operator
import warnings
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo import guards
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.hooks import RemovableHandle

from popgeo.capture.held_state import OF_EVERY_MODULE, containers_in
from popgeo.capture.pytree import SCALARS
from popgeo.engine.same_objects import holds_the_same

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_FORWARD = operator.attrgetter("forward")  # a class may be given another
_HOOKS_OF_ALL = tuple(vars(torch_module)[f"_global{name}"] for name in _HOOKS)


class ModelWatch:
    """Knows what a model was like when its step was captured, and compares.

    Each call asks `is_as_seen`, which looks at identities and addresses that were gathered once. `changes` looks at
    their meaning only if one of them differs.

    Args:
        model: The captured model.
        modes: Which submodules train in the step.
        reads: The attributes that the capture has looked at, by submodule and name; None for all that there are.
        trains: Whether the step trains the model.
    """

    def __init__(
        self, model: nn.Module, modes: Mapping[nn.Module, bool], reads: frozenset[tuple[str, str]] | None, trains: bool
    ) -> None:
        self.model, self._given_modes, self._reads, self._trains = model, modes, reads, trains
        self._has_warned = False
        self._captured = dict(self._facts())
        self.look()

    def is_as_seen(self) -> bool:
        """Whether nothing of the model has been replaced, moved or set since the last look."""
        return (
            holds_the_same(self._tables, self._entries)
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
            and self._forms.check(*self._tensors)
            and all(map(operator.is_, map(dict.get, self._holders, self._names), self._kept))
            and list(map(type, self._modules)) == self._kinds
            and list(map(_FORWARD, self._forwards)) == [*self._forwards.values()]
            and holds_the_same(list(map(getattr, self._classes, self._class_names, repeat(None))), self._class_values)
            and RemovableHandle.next_id == self._next_hook
            and types_around() == self._types
        )

    def changes(self) -> list[str]:
        """What decides the capture and is no longer as it was captured; none where weights have only moved."""
        facts = dict(self._facts())
        names = [*self._captured, *(name for name in facts if name not in self._captured)]
        return [name for name in names if not holds_the_same(facts.get(name, ()), self._captured.get(name, ()))]

    def has_moved(self) -> bool:
        """Whether a weight or buffer is in other memory than at the last look."""
        return self._addresses != [t.data_ptr() for t in (*self.model.parameters(), *self.model.buffers())]

    def modes(self) -> Mapping[nn.Module, bool]:
        """Return which submodules are to train, and warn once of a forward pass that trains on after `eval()`."""
        if not self._trains and self._given_modes.get(self.model) and not self.model.training:
            self._warn_of_mode()
        return modes_now(self.model, self._given_modes)

    def _warn_of_mode(self) -> None:
        if not self._has_warned and any(isinstance(one, (_DropoutNd, _NormBase)) for one in self.model.modules()):
            self._has_warned = True
            warnings.warn(
                "The model is in the mode of eval() now, and its compiled forward pass keeps that of train(), in which "
                "it was compiled: dropout and norms continue as there. To switch it call eval() of the compiled step.",
                stacklevel=2,
            )

    def _facts(self) -> Iterator[tuple[str, Any]]:
        """All that decides the capture of the model, by name."""
        modes = self.modes()
        yield "autocast or the default type", types_around()
        yield "hooks of all modules", [list(hooks.items()) for hooks in _HOOKS_OF_ALL]
        for path, module in self.model.named_modules():
            place = f"{path}." if path else ""
            # PopTorch's programs find their model to be of a class that says which one it is instead of.
            kind = vars(type(module)).get("__wrapped__", type(module))
            yield path or "the model", (id(module), kind, inspect.getattr_static(kind, "forward", None))
            yield f"{place}training", modes.get(module, module.training)
            yield f"hooks of {path or 'the model'}", [list(getattr(module, hooks).items()) for hooks in _HOOKS]
            yield from ((f"{place}{name}", _form(buffer)) for name, buffer in module._buffers.items())
            for name, parameter in module._parameters.items():
                yield f"{place}{name}", _form(parameter)
                if self._trains and parameter is not None:
                    yield f"{place}{name} itself", id(parameter)
                    yield f"{place}{name}.requires_grad", parameter.requires_grad
                    yield f"hooks of {place}{name}", [list(hooks.items()) for hooks in _hooks_of(parameter)]
            for name in self._watched(path, module):
                own = name in vars(module)
                value = vars(module)[name] if own else inspect.getattr_static(type(module), name, None)
                yield f"{place}{name}", _known(value)

    def _watched(self, path: str, module: nn.Module) -> list[str]:
        """Return names of the plain attributes that the capture looked at, or would have, had they been there.

        An attribute of its class counts, since one of the submodule itself would take its place.
        """
        if self._reads is None:
            of_class = [vars(one) for one in type(module).__mro__ if one not in nn.Module.__mro__]
            plain = [name for own in of_class for name, value in own.items() if not hasattr(value, "__get__")]
            return [name for name in dict.fromkeys([*vars(module), *plain]) if name not in OF_EVERY_MODULE]
        tables = (module._parameters, module._buffers, module._modules)
        return sorted(name for place, name in self._reads if place == path and not any(name in t for t in tables))

    def look(self) -> None:
        """Gathers what `is_as_seen` compares, as it is now."""
        modules = dict(self.model.named_modules())
        self._modules, self._types = list(modules.values()), types_around()
        self._kinds = list(map(type, self._modules))
        # TorchScript's classes have a forward only for an instance.
        self._forwards = {kind: _FORWARD(kind) for kind in self._kinds if not issubclass(kind, torch.jit.ScriptModule)}
        tables = [t for one in modules.values() for t in (one._parameters, one._buffers, one._modules)]
        self._tensors = [*self.model.parameters(), *self.model.buffers()]
        trainable = self.model.parameters() if self._trains else []
        hooks = [*_HOOKS_OF_ALL, *(getattr(one, name) for one in modules.values() for name in _HOOKS)]
        hooks += [own for parameter in trainable for own in _hooks_of(parameter)]
        self._tables = [table for table in tables if isinstance(table, dict)] + [own for own in hooks if own]
        watched = [(one, name) for path, one in modules.items() for name in self._watched(path, one)]
        values = [vars(one).get(name, getattr(type(one), name, None)) for one, name in watched]
        self._tables += [table for value in values for table in containers_in(value)]
        self._entries = [copy.copy(table) for table in self._tables]
        of_classes = [(type(one), name) for one, name in watched if not callable(getattr(type(one), name, None))]
        self._classes, self._class_names = [kind for kind, _ in of_classes], [name for _, name in of_classes]
        self._class_values = list(map(getattr, self._classes, self._class_names, repeat(None)))
        places = [(vars(one), name) for one, name in watched] + [(vars(one), "training") for one in modules.values()]
        self._holders: list[Any] = [holder for holder, _ in places]
        self._names, self._kept = [name for _, name in places], [holder.get(name) for holder, name in places]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        # Types, shapes, strides and requires_grad of all in one call.
        sizes: Any = [list(tensor.size()) for tensor in self._tensors]
        strides: Any = [list(tensor.stride()) for tensor in self._tensors]
        self._forms = guards.TensorGuards(*self._tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        self._next_hook = RemovableHandle.next_id


def modes_now(model: nn.Module, given: Mapping[nn.Module, bool]) -> Mapping[nn.Module, bool]:
    """Return which submodules of a model train in its step: as they are now, in whatever order they were set.

    While the model as a whole is in the other mode than its step, as during an evaluation, they are as before it.

    Args:
        model: The model of a step.
        given: Which submodules have trained in the step.
    """
    if model.training != given.get(model, model.training):
        return given
    return {one: one.training for one in model.modules()}


def autocast_around() -> torch.dtype | None:
    """The type in which torch computes here if that is safe; None where autocast is off.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     autocast_around()
        torch.bfloat16
    """
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def types_around() -> tuple[torch.dtype | None, torch.dtype]:
    """Return the types that torch computes in here: `autocast_around()`, and the default type of new tensors."""
    return autocast_around(), torch.get_default_dtype()


def _hooks_of(parameter: nn.Parameter) -> list[Mapping[int, Any]]:
    return [parameter._backward_hooks or {}, getattr(parameter, "_post_accumulate_grad_hooks", None) or {}]


def _form(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _known(value: Any) -> Any:
    """Return a number or a text itself, and everything else as the object that it is, with what it contains now."""
    if isinstance(value, SCALARS):
        return type(value), value
    return id(value), [copy.copy(table) for table in containers_in(value)]
