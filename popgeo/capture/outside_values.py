"""The values outside a model that its methods may read: globals, closures, defaults, other classes and modules.

A program may set them without a change of a source file, such as `args.dropout` of a global `args`.
"""

import argparse
import functools
import logging
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

_LIBRARIES = frozenset({"torch", "torch_geometric", "popgeo", "builtins", "abc", "typing", *sys.stdlib_module_names})
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_READ_AS_A_WHOLE = Tensor | nn.Module | Mapping | list | tuple | set | frozenset
_READ_AS_A_WHOLE |= argparse.Namespace | types.SimpleNamespace
_WITHOUT_CONTENT = types.BuiltinFunctionType | types.MemberDescriptorType | types.GetSetDescriptorType | logging.Logger
_WRAPPERS: dict[type, tuple[str, ...]] = {
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    types.MethodType: ("__func__", "__self__"),
    property: ("fget",),
    functools.partial: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
}
_OF_EVERY_CLASS = ("__init__", "_abc_impl")


class UnknownStateError(Exception):
    """An error about an object in a model with unreadable content, where a change would go unnoticed."""


class OutsideValues:
    """Texts of the values that the methods of some classes may read, by a name of their place.

    Of a class, a module or an object with attributes, only the attributes count whose names are in the code that is
    reached. Values of installed packages count only if they are plain or functions.

    Args:
        kinds: The classes.
        describe: Return a text for a value, or raise an `UnknownStateError`.
        is_plain: Return whether a value is plain, so that `describe` can read it.

    Raises:
        UnknownStateError: a value cannot be read, or a function reads the environment.

    Example:
        >>> class Scaled(nn.Module):
        ...     __module__, scale = "my_models", 2.0
        >>> OutsideValues([Scaled], repr, lambda value: True).texts["Scaled.scale"]
        '2.0'
    """

    def __init__(self, kinds: Iterable[type], describe: Callable[[Any], str], is_plain: Callable[[Any], bool]) -> None:
        self.texts: dict[str, str] = {}
        self._describe, self._is_plain = describe, is_plain
        self._names, self._tables, self._seen = set[str](), dict[str, Mapping[str, Any]](), set[int]()
        for base in dict.fromkeys(base for kind in kinds for base in kind.__mro__):
            for name, value in vars(base).items():
                if name not in _OF_EVERY_CLASS and (name[:2] != "__" or isinstance(value, types.FunctionType)):
                    self._add(f"{base.__qualname__}.{name}", value, base.__module__)
        self._follow()

    def add(self, place: str, value: Any) -> None:
        """Add the functions in a value that the model holds, and the values that they may read."""
        for number, function in enumerate(_functions_in(value)):
            self._add(f"{place}/{number}", function, function.__module__)
        self._follow()

    def _follow(self) -> None:
        count = -1
        while count != len(self.texts) + len(self._tables):
            count = len(self.texts) + len(self._tables)
            for place, table in list(self._tables.items()):
                for name in sorted(name for name in self._names & table.keys() if name[:2] != "__"):
                    self._add(f"{place}.{name}", table[name], "__main__")

    def _add(self, place: str, value: Any, owner: str) -> None:
        """Add a value that belongs to the module `owner`."""
        if place in self.texts:
            return
        if isinstance(value, types.FunctionType):
            if not _is_of_library(value.__module__):
                self._add_function(place, value)
        elif _is_of_library(owner):
            return  # the version of the library decides it
        elif parts := _WRAPPERS.get(type(value)):
            for part in parts:
                self._add(f"{place}.{part}", getattr(value, part), owner)
        elif self._is_plain(value) or (_is_own(owner) and not self._follows(place, value)):
            self.texts[place] = self._describe(value)
            for number, function in enumerate(_functions_in(value)):
                self._add(f"{place}/{number}", function, owner)

    def _add_function(self, place: str, function: types.FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        code, owner = function.__code__, function.__module__
        self.texts[place] = self._describe(code)
        names = names_in(code)
        self._names |= names
        if _is_own(owner) and names & {"environ", "getenv"}:
            raise UnknownStateError(f"{function.__qualname__} reads the environment")
        if _is_own(owner):
            self._add(f"{place}()", (function.__defaults__, function.__kwdefaults__), owner)
        for name in sorted(names & function.__globals__.keys()):
            self._add(f"{owner}.{name}", function.__globals__[name], owner)
        for name, value in outer_variables(function).items():
            if name != "__class__":
                self._add(f"{place}.{name}", value, owner)

    def _follows(self, place: str, value: Any) -> bool:
        """Return whether only the attributes of a value count, or nothing of it."""
        if isinstance(value, _WITHOUT_CONTENT):
            return True
        kind = value if isinstance(value, type) else type(value)
        owner = value.__name__ if isinstance(value, types.ModuleType) else kind.__module__
        is_type_or_module = isinstance(value, type | types.ModuleType)
        if not _is_own(owner):
            return is_type_or_module
        has_plain_attributes = hasattr(value, "__dict__") and not hasattr(kind, "__getattr__")
        has_plain_attributes &= kind.__getattribute__ is object.__getattribute__
        if not is_type_or_module and (isinstance(value, _READ_AS_A_WHOLE) or not has_plain_attributes):
            return False
        if id(value) not in self._seen:
            self._seen.add(id(value))
            tables = [vars(base) for base in reversed(kind.__mro__) if _is_own(base.__module__)]
            tables += [] if isinstance(value, type) else [vars(value)]
            self._tables[place] = {name: one for table in tables for name, one in table.items()}
        return True


def outer_variables(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of outer functions that a function uses, by name. A variable without a value is left out."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}


def _functions_in(value: Any) -> list[types.FunctionType]:
    """Return the functions in a value, and in the lists and dictionaries that it contains."""
    if isinstance(value, types.FunctionType):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [function for one in inner for function in _functions_in(one)]


def names_in(code: types.CodeType) -> set[str]:
    """Return the names that a function's code uses, and its texts, which may be names of attributes."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return {*code.co_names, *(one for one in code.co_consts if isinstance(one, str))}.union(*map(names_in, inner))


def _is_of_library(module: str | None) -> bool:
    return (module or "").split(".")[0] in _LIBRARIES


def _is_own(module: str | None) -> bool:
    """Return whether a module is the user's own: the program, or a module that is no library and not installed."""
    root = (module or "").split(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root == "__main__" or (root not in _LIBRARIES and not file.startswith(_INSTALLED))
