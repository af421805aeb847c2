"""A module's tensors while it is captured: stand-ins in their place, and what becomes of those that it replaces."""

import contextlib
import copy
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
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
"""What a module's attributes held when they were first looked at, each with what `_inside` says of it, by the module's
id and the attribute's name."""
ONE_AT_A_TIME = Lock()
"""Held by who borrows what all threads share: torch's own generator, or functions and attributes during a capture."""


def module_state(module: nn.Module) -> dict[Input, Tensor]:
    """Return a module's parameters and buffers, as graphs name them.

    Raises:
        ValueError: one is lazy, and no call has given it a shape yet.
    """
    require_shapes(module)
    state: dict[Input, Tensor] = {Input(Role.PARAMETER, name): p for name, p in module.named_parameters()}
    return state | {Input(Role.BUFFER, name): b for name, b in module.named_buffers()}


def require_shapes(module: nn.Module) -> None:
    """Check that each parameter and buffer of a module has a shape.

    Raises:
        ValueError: one is lazy, and no call has given it a shape yet.

    Example:
        >>> require_shapes(nn.LazyLinear(2))
        Traceback (most recent call last):
            ...
        ValueError: weight, bias of the model are lazy: their shapes come from a first call. Call model(...)...
    """
    lazy = [name for name, one in (*module.named_parameters(), *module.named_buffers()) if is_lazy(one)]
    if lazy:
        raise ValueError(
            f"{', '.join(lazy)} of the model {'are' if len(lazy) > 1 else 'is'} lazy: their shapes come from a first "
            "call. Call model(...) once with a batch, within torch.no_grad(), before the optimizer and the compiled "
            "step are made; or give its layers their numbers of input channels."
        )


class ReplacedStateError(ValueError):
    """A module put something else in the place of its own tensors, in a way that cannot be kept.

    Attributes:
        buffers: "reassigned" or "removed", for each buffer concerned.

    Example:
        >>> ReplacedStateError("The model replaces mean.", {"mean": "reassigned"}).buffers
        {'mean': 'reassigned'}
    """

    def __init__(self, message: str, buffers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.buffers = dict(buffers or {})


@contextlib.contextmanager
def swapped(module: nn.Module, replacement: Mapping[int, Tensor]) -> Iterator["HeldState"]:
    """Puts other tensors in the place of a module's parameters and buffers while the block runs.

    Afterwards the module and its submodules hold what they held before, plain attributes too.

    Args:
        module: A module.
        replacement: What takes the place of a parameter or buffer, by the id of that tensor.
    """
    held = [_HeldValue(f"{prefix}." if prefix else "", one) for prefix, one in module.named_modules()]
    state = HeldState(held=held, replacement=replacement)
    try:
        state.put_in()
        yield state
    finally:
        try:
            for one in held:
                one.restore()
        except BaseException:  # an interrupt comes at any moment, and a second time all are through
            for one in held:
                one.restore()
            raise


@contextlib.contextmanager
def noted_reads() -> Iterator[dict[tuple[int, str], tuple[Any, Any]]]:
    """Notes which plain attributes of modules the block looks at, and what was there the first time, in two forms.

    Example:
        >>> linear = nn.Linear(2, 2)
        >>> with noted_reads() as reads:
        ...     linear.in_features
        2
        >>> reads == {(id(linear), "in_features"): (2, 2)}
        True
    """
    thread, reads = threading.get_ident(), dict[tuple[int, str], tuple[Any, Any]]()

    def note(module: nn.Module, name: str) -> Any:
        key = id(module), name
        if threading.get_ident() == thread and name not in OF_EVERY_MODULE and key not in reads:
            value = vars(module).get(name)
            reads[key] = value, _inside(value)
        return object.__getattribute__(module, name)

    with replaced(nn.Module, "__getattribute__", note):
        yield reads


@contextlib.contextmanager
def in_modes(module: nn.Module, modes: Mapping[nn.Module, bool]) -> Iterator[None]:
    """Puts a module and its submodules in training or evaluation mode, while the block runs."""
    before = {one: one.training for one in module.modules()}
    try:
        for one in before:
            one.training = modes.get(one, one.training)
        yield
    finally:
        for one, training in before.items():
            one.training = training


class _HeldValue:
    """What one submodule held before the capture."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path, self.module, self.attributes = path, module, dict(vars(module))
        self.parameters, self.buffers = dict(module._parameters.items()), dict(module._buffers.items())
        # Parameters, buffers, submodules, hooks, and what the model collects in lists of its own.
        self.contents = {name: (own, copy.copy(own)) for name, own in self.attributes.items() if type(own) in _HOLDERS}
        # TorchScript keeps other attributes where Python does not see them.
        kind = self.attributes.get("_concrete_type")
        script: Any = None if kind is None else module._c
        self._script = script
        self._scripted = {} if kind is None else {name: script.getattr(name) for name in kind.get_attributes()}

    def tensors(self) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
        """Parameters and buffers: where the module keeps each, its name, and the tensor that it was."""
        for table, held in ((self.module._parameters, self.parameters), (self.module._buffers, self.buffers)):
            yield from ((table, name, tensor) for name, tensor in held.items() if tensor is not None)

    def restore(self) -> None:
        """Gives the module back what it held."""
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
        if not isinstance(self.module._parameters, dict):  # TorchScript's, whose names are fixed
            for table, name, tensor in self.tensors():
                table[name] = tensor


def _inside(value: Any, depth: int = 4) -> Any:
    """Return the numbers and texts in a list, a dictionary or a plain object, so that an edit shows; not tensors."""
    if isinstance(value, (random.Random, np.random.RandomState)):
        return repr(value.getstate() if isinstance(value, random.Random) else value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tobytes()
    value = _contents(value)
    if depth and isinstance(value, Mapping):
        return {key: _inside(one, depth - 1) for key, one in value.items() if not isinstance(one, Tensor)}
    if depth and isinstance(value, (list, tuple, set, deque)):
        return [_inside(one, depth - 1) for one in value if not isinstance(one, Tensor)]
    return value if isinstance(value, SCALARS) else type(value)


def _contents(value: Any) -> Any:
    """Return the attributes of a plain object, and everything else as it is."""
    if isinstance(value, (Mapping, list, tuple, set, deque, Tensor, ModuleType)) or callable(value):
        return value
    return getattr(value, "__dict__", value)


def containers_in(value: Any, depth: int = 4) -> list[Any]:
    """Return the lists, dictionaries and sets of a value, from outside to inside: a copy of each shows an edit.

    An object with more than 64 of them, such as a Trainer, counts as one that the user does not edit for the model.

    Args:
        value: Anything that a module may have for an attribute; of a plain object its attributes count.
        depth: How far inside to look.

    Example:
        >>> containers_in({"energy": 1.0, "forces": [1.0, 2.0]})
        [{'energy': 1.0, 'forces': [1.0, 2.0]}, [1.0, 2.0]]
    """
    found, level = list[Any](), [value]
    for _ in range(depth):
        level = [one for one in map(_contents, level) if isinstance(one, (dict, list, tuple, set, deque))]
        found += [one for one in level if not isinstance(one, tuple)]
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        if len(found) > _MOST_CONTAINERS or len(level) > 100 * _MOST_CONTAINERS:
            return []
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldState:
    """What a module held before the block of `swapped`, and the stand-ins that it holds inside."""

    held: list[_HeldValue]
    replacement: Mapping[int, Tensor]

    def put_in(self) -> None:
        """Puts the stand-ins in the place of parameters and buffers."""
        for one in self.held:
            for table, name, tensor in one.tensors():
                table[name] = self.replacement[id(tensor)]

    def attributes(self) -> Mapping[tuple[int, str], Any]:
        """The plain attributes as they are now."""
        return {(id(one.module), name): value for one in self.held for name, value in vars(one.module).items()}

    def carried(self, before: Mapping[tuple[int, str], Any], reads: Reads) -> list[str]:
        """The attributes that a run looked at as they were before it, and then changed or put something else there."""
        now, found = self.attributes(), []
        for key, (seen, inside) in reads.items():
            new = now.get(key)
            is_same = new is seen or (type(new) is type(seen) and isinstance(new, SCALARS) and new == seen)
            if seen is before.get(key) and not (is_same and inside == _inside(new)):
                found += [f"{one.path}{key[1]}" for one in self.held if id(one.module) == key[0]]
        return found

    def replaced_buffers(self, was_read: Callable[[Tensor], bool]) -> list[tuple[Tensor, Tensor]]:
        """Each buffer's stand-in that the model has replaced, and what the model put there instead.

        Args:
            was_read: Whether the model has used a tensor that is neither parameter nor buffer.

        Raises:
            ReplacedStateError: what it replaced is a parameter, no buffer at all, or of another shape or type.
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
