"""The state of a module during its capture: stand-ins for its tensors, and checks of all its changes."""

import contextlib
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import get_ident
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from popgeo.capture.op_graph import Input, Role
from popgeo.capture.pytree import SCALARS
from popgeo.forked import Lock
from popgeo.replaced import replaced

OF_EVERY_MODULE = frozenset(dir(nn.Module())) - {"forward"}
"""The attributes that torch gives a module."""
_MOST_CONTAINERS = 64
_HOLDERS = (dict, OrderedDict, list, set)
Reads = Mapping[tuple[int, str], tuple[Any, Any]]
"""The value of each attribute at its first read, with its contents by `_snapshot`; by module id and attribute name."""
ONE_AT_A_TIME = Lock()
"""The lock of state that all threads share: torch's default generator, and functions and attributes in a capture."""


def module_state(module: nn.Module) -> dict[Input, Tensor]:
    """Return a module's parameters and buffers, named as inputs of a graph.

    Raises:
        ValueError: a tensor is lazy, and no call has given it a shape yet.
    """
    require_shapes(module)
    state: dict[Input, Tensor] = {Input(Role.PARAMETER, name): p for name, p in module.named_parameters()}
    return state | {Input(Role.BUFFER, name): b for name, b in module.named_buffers()}


def held_storages(module: nn.Module) -> set[int]:
    """Return the addresses of the storages of all tensors that a module holds, without parameters and buffers."""
    values = [value for one in module.modules() for name, value in vars(one).items() if name not in OF_EVERY_MODULE]
    tensors = [tensor for value in values for tensor in tensors_in(value)]
    return {one.untyped_storage()._cdata for one in tensors if one.layout is torch.strided}


def require_shapes(module: nn.Module) -> None:
    """Check that each parameter and buffer of a module has a shape.

    Raises:
        ValueError: a tensor is lazy, and no call has given it a shape yet.

    Example:
        >>> require_shapes(nn.LazyLinear(2))
        Traceback (most recent call last):
            ...
        ValueError: weight, bias of the model are lazy: their shapes come from a first call. Call model(...)...
    """
    if lazy := [name for name, one in (*module.named_parameters(), *module.named_buffers()) if is_lazy(one)]:
        raise ValueError(
            f"{', '.join(lazy)} of the model {'are' if len(lazy) > 1 else 'is'} lazy: their shapes come from a first "
            "call. Call model(...) once with a batch, within torch.no_grad(), before the optimizer and the compiled "
            "step are made; or give its layers their numbers of input channels."
        )


class ReplacedStateError(ValueError):
    """An error about a module that replaces its own tensors or attributes in a way that a step cannot repeat.

    Attributes:
        buffers: `"reassigned"` or `"removed"`, by the name of the buffer.

    Example:
        >>> ReplacedStateError("The model replaces mean.", {"mean": "reassigned"}).buffers
        {'mean': 'reassigned'}
    """

    def __init__(self, message: str, buffers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.buffers = dict(buffers or {})


@contextlib.contextmanager
def swapped(module: nn.Module, replacement: Mapping[int, Tensor]) -> Iterator["HeldState"]:
    """Replace a module's parameters and buffers while the block runs; restore all its attributes afterwards.

    Args:
        module: Module.
        replacement: Stand-in of each parameter and buffer, by the id of the original tensor.
    """
    held = [_ModuleState(f"{prefix}." if prefix else "", one) for prefix, one in module.named_modules()]
    state = HeldState(held=held, replacement=replacement)
    try:
        state.insert_stand_ins()
        yield state
    finally:
        try:
            for one in held:
                one.restore()
        except BaseException:  # an interrupt can come at any moment; the second time all modules are restored
            for one in held:
                one.restore()
            raise


@contextlib.contextmanager
def noted_reads(model: nn.Module) -> Iterator[dict[tuple[int, str], tuple[Any, Any]]]:
    """Note the plain attributes of a model that the block reads: each value at the first read, and its contents.

    Example:
        >>> linear = nn.Linear(2, 2)
        >>> with noted_reads(linear) as reads:
        ...     linear.in_features
        2
        >>> reads == {(id(linear), "in_features"): (2, 2)}
        True
    """
    thread, look_up, reads = get_ident(), object.__getattribute__, dict[tuple[int, str], tuple[Any, Any]]()

    def note(module: Any, name: str) -> Any:
        if name not in OF_EVERY_MODULE and (key := (id(module), name)) not in reads and get_ident() == thread:
            value = vars(module).get(name)
            reads[key] = value, _snapshot(value)
        return look_up(module, name)

    with contextlib.ExitStack() as stack:
        # A change of nn.Module itself would make Python update the hundreds of its subclasses.
        kinds = {type(one) for one in model.modules()}
        for kind in {one if one.__getattribute__ is look_up else nn.Module for one in kinds}:
            stack.enter_context(replaced(kind, "__getattribute__", note))
        yield reads


@contextlib.contextmanager
def in_modes(module: nn.Module, modes: Mapping[nn.Module, bool]) -> Iterator[None]:
    """Put a module and its submodules in training or evaluation mode while the block runs."""
    before = {one: one.training for one in module.modules()}
    try:
        for one in before:
            one.training = modes.get(one, one.training)
        yield
    finally:
        for one, training in before.items():
            one.training = training


class _ModuleState:
    """The attributes of one submodule before the capture."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path, self.module, self.attributes = path, module, dict(vars(module))
        self.parameters, self.buffers = dict(module._parameters.items()), dict(module._buffers.items())
        # Tables of parameters, buffers, submodules and hooks, and lists of the model itself.
        self.contents = {name: (own, own.copy()) for name, own in self.attributes.items() if type(own) in _HOLDERS}
        # TorchScript keeps other attributes outside of Python.
        kind = self.attributes.get("_concrete_type")
        script: Any = None if kind is None else module._c
        self._script = script
        self._scripted = {} if kind is None else {name: script.getattr(name) for name in kind.get_attributes()}

    def tensors(self) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
        """Yield each parameter and buffer: its table in the module, its name, and the original tensor."""
        for table, held in ((self.module._parameters, self.parameters), (self.module._buffers, self.buffers)):
            yield from ((table, name, tensor) for name, tensor in held.items() if tensor is not None)

    def restore(self) -> None:
        """Restore all attributes of the submodule."""
        vars(self.module).clear()
        vars(self.module).update(self.attributes)
        for own, before in self.contents.values():
            own.clear()
            if isinstance(own, list):
                own.extend(before)
            else:
                own.update(before)
        for name, value in self._scripted.items():
            self._script.setattr(name, value)
        if not isinstance(self.module._parameters, dict):  # TorchScript's table, with fixed names
            for table, name, tensor in self.tensors():
                table[name] = tensor


def _snapshot(value: Any, depth: int = 4) -> Any:
    """Return the numbers and texts in a list, a dictionary or a plain object, without tensors, to show edits."""
    if isinstance(value, (random.Random, np.random.RandomState)):
        return repr(value.getstate() if isinstance(value, random.Random) else value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    value = _contents(value)
    if depth and isinstance(value, Mapping):
        return {key: _snapshot(one, depth - 1) for key, one in value.items() if not isinstance(one, Tensor)}
    if depth and isinstance(value, (list, tuple, set, deque)):
        return [_snapshot(one, depth - 1) for one in value if not isinstance(one, Tensor)]
    return value if isinstance(value, SCALARS) else type(value)


def _contents(value: Any) -> Any:
    """Return the attributes of a plain object, and every other value unchanged."""
    if isinstance(value, (Mapping, list, tuple, set, deque, Tensor, ModuleType)) or callable(value):
        return value
    return getattr(value, "__dict__", value)


def containers_in(value: Any, depth: int = 4) -> list[Any]:
    """Return the lists, dictionaries and sets in a value, outermost first; comparing copies shows an edit.

    The result is empty for an object with more than 64 containers, such as a Trainer: users do not edit it for the
    model.

    Args:
        value: Attribute of a module; of a plain object, its attributes count.
        depth: Number of levels. Default: 4.

    Example:
        >>> containers_in({"energy": 1.0, "forces": [1.0, 2.0]})
        [{'energy': 1.0, 'forces': [1.0, 2.0]}, [1.0, 2.0]]
    """
    return [one for one in _with_tuples(value, depth) if not isinstance(one, tuple)]


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in a value, also inside the lists, tuples, dictionaries and sets that `containers_in` finds.

    Example:
        >>> tensors_in([{"scale": (torch.tensor(2.0), "fixed")}])
        [tensor(2.)]
    """
    inner = (part for one in _with_tuples(value) for part in (one.values() if isinstance(one, dict) else one))
    return [one for one in (value, *inner) if isinstance(one, Tensor)]


def _with_tuples(value: Any, depth: int = 4) -> list[Any]:
    found, level, num_editable = list[Any](), [value], 0
    for _ in range(depth):
        level = [one for one in map(_contents, level) if isinstance(one, (dict, list, tuple, set, deque))]
        found, num_editable = [*found, *level], num_editable + sum(not isinstance(one, tuple) for one in level)
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        if num_editable > _MOST_CONTAINERS or len(level) > 100 * _MOST_CONTAINERS:
            return []
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldState:
    """The attributes of a module before the block of `swapped`, and the stand-ins of its tensors in the block."""

    held: list[_ModuleState]
    replacement: Mapping[int, Tensor]

    def insert_stand_ins(self) -> None:
        """Replace parameters and buffers by their stand-ins."""
        for one in self.held:
            for table, name, tensor in one.tensors():
                table[name] = self.replacement[id(tensor)]

    def attributes(self) -> Mapping[tuple[int, str], Any]:
        """Return the present plain attributes, by the id of their module and their name."""
        return {(id(one.module), name): value for one in self.held for name, value in vars(one.module).items()}

    def changed_reads(self, before: Mapping[tuple[int, str], Any], reads: Reads) -> list[str]:
        """Return the names of the attributes that a run first read and then changed or replaced."""
        now, found = self.attributes(), []
        for key, (seen, inside) in reads.items():
            new = now.get(key)
            is_same = new is seen or (type(new) is type(seen) and isinstance(new, SCALARS) and new == seen)
            if seen is before.get(key) and not (is_same and inside == _snapshot(new)):
                found += [f"{one.path}{key[1]}" for one in self.held if id(one.module) == key[0]]
        return found

    def replaced_buffers(self, was_read: Callable[[Tensor], bool]) -> list[tuple[Tensor, Tensor]]:
        """Return the stand-in of each buffer that the model has replaced, with the new tensor.

        Args:
            was_read: Whether the model has used a tensor that is neither parameter nor buffer.

        Raises:
            ReplacedStateError: the model replaces a parameter, an unregistered tensor, or a buffer with a new shape or
                type.
        """
        replaced, lost = [], []
        changed: dict[str, str] = {}
        for one in self.held:
            for table, name, tensor in one.tensors():
                old, new = self.replacement[id(tensor)], dict(table.items()).get(name)
                if new is old:
                    continue
                fits = isinstance(new, Tensor) and (new.shape, new.dtype) == (old.shape, old.dtype)
                if isinstance(new, Tensor) and fits and name in one.buffers:
                    replaced.append((old, new))
                else:
                    lost.append(f"{one.path}{name}")
                    if name in one.buffers:
                        changed[f"{one.path}{name}"] = "removed" if new is None else "reassigned"
            buffers = one.module._buffers.items()
            lost += [f"{one.path}{name}" for name, new in buffers if new is not None and one.buffers.get(name) is None]
            for name, old in one.attributes.items():
                new = vars(one.module).get(name)
                if isinstance(old, Tensor) and isinstance(new, Tensor) and new is not old and was_read(old):
                    lost.append(f"{one.path}{name}")
            for name in one.contents.keys() - OF_EVERY_MODULE:
                own, then = (list(c.values() if isinstance(c, dict) else c) for c in one.contents[name])
                gone = [old for old in then if isinstance(old, Tensor) and not any(old is new for new in own)]
                lost += [f"a tensor in {one.path}{name}"] * any(map(was_read, gone))
        if lost:
            raise ReplacedStateError(
                f"The model replaces {', '.join(lost)} while it runs, and the new value would be lost. Register it as "
                "a buffer of its final shape and type with register_buffer; change a parameter in place, with copy_().",
                changed,
            )
        return replaced
