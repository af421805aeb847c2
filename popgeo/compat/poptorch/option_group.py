"""A group of named options, frozen once it is in use, and the setters by which programs choose them.

A setter is a row of `options.csv`: the group that it belongs to, the name that programs call and its one parameter, the
name that the choice is kept under, whether it is honoured, recorded or ignored, and why. One that does more than a row
can say is a method under `setter`. What all choices are in popgeo's terms is said in one place, `popgeo_options`.
"""

import ast
import copy
import csv
import functools
import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from popgeo.compat.account import Treatment, enter
from popgeo.compat.poptorch.enums import ConnectionType, HalfFloatCastingBehavior, SyncPattern
from popgeo.compat.poptorch.errors import FrozenOptionsError, check
from popgeo.did_you_mean import meant

Group = TypeVar("Group", bound="OptionGroup")
Accept = Callable[[str, Any], Any]  # turns the name of a setter and its argument into what is kept, or refuses it


class OptionGroup:
    """Options by name: read as attributes, set by methods that return the group, frozen once a model uses them.

    Args:
        defaults: The options and the values that they have first. A later value has the type of the first.

    Example:
        >>> group = OptionGroup(device_iterations=1)
        >>> group.set(device_iterations=4).device_iterations
        4
        >>> group.set(device_iterations="4")
        Traceback (most recent call last):
            ...
        popgeo.compat.poptorch.errors.CheckFailed: Unexpected type <class 'str'> for option device_iterations...
    """

    _asked = ""  # by which name the account lists the group
    _popart: Any = None  # PopART's own settings, in groups that choose some of them
    _kinds: ClassVar[Mapping[str, tuple[Any, Accept | None]]] = {}  # of parameters that this group alone has

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for row in _ROWS:
            if row["group"] == cls.__name__:
                setattr(cls, row["name"], _setter_of(row, {**_KINDS, **cls._kinds}))

    def __init__(self, **defaults: Any) -> None:
        self._is_frozen = False
        groups = {kind.__name__ for kind in type(self).__mro__}
        own = (row for row in _ROWS if row["group"] in groups and row["starts"])
        self._values = {row["keeps"]: ast.literal_eval(row["starts"]) for row in own} | defaults

    def set(self, **values: Any) -> "OptionGroup":
        """Changes options that exist.

        Raises:
            AttributeError: the group is in use.
            AssertionError: there is no such option, or its value has another type; it is a ValueError too.
        """
        self.checkIsFrozen()
        for option, value in values.items():
            check(self.exists(option), f"Invalid option {option}, valid options are {list(self._values)}")
            expected = type(self._values[option])
            fits = isinstance(value, expected) or self._values[option] is None
            check(fits, f"Unexpected type {type(value)} for option {option}. Expected {expected}")
            self._values[option] = value
        return self

    def createOrSet(self, **values: Any) -> "OptionGroup":
        """Changes options, also those that have had no value so far."""
        self.checkIsFrozen()
        for option, value in values.items():
            self._values.setdefault(option, value)
            self.set(**{option: value})
        return self

    def deleteIfExists(self, option: str) -> None:
        """Takes an option's value away."""
        self._values.pop(option, None)

    def exists(self, option: str) -> bool:
        """Whether an option has a value."""
        return option in self._values

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raises where the group is in use.

        Raises:
            AttributeError: it is; it is a ValueError too.
        """
        check(
            not vars(self).get("_is_frozen") or option == "_is_frozen",
            "Can't modify frozen Options",
            FrozenOptionsError,
        )

    def toDict(self) -> dict[str, Any]:
        """All options and their values."""
        return dict(self._values)

    def _keep(self, option: str, value: Any) -> None:
        """Keeps a choice: `popart:name` with PopART's own settings, `_name` next to the options that `toDict` lists."""
        if option.startswith("popart:"):
            self._popart.keep(option.removeprefix("popart:"), value)
        elif option.startswith("_"):
            setattr(self, option, value)
        else:
            self.createOrSet(**{option: value})

    def _freeze(self) -> None:
        """Freezes this group and those inside it."""
        self._is_frozen = True
        for part in vars(self).values():
            if isinstance(part, OptionGroup):
                part._freeze()

    def __deepcopy__(self, memory: dict[int, Any]) -> "OptionGroup":
        other = object.__new__(type(self))
        memory[id(self)] = other
        for name, part in vars(self).items():
            object.__setattr__(other, name, False if name == "_is_frozen" else copy.deepcopy(part, memory))
        return other

    def __getattr__(self, option: str) -> Any:
        if option.startswith("_") or option not in self._values:
            known = (name for name in dir(self) if not name.startswith("_"))
            raise AttributeError(f"Invalid attribute {option}.{meant(option, known)}")
        return self._values[option]

    def __setattr__(self, option: str, value: Any) -> None:
        self.checkIsFrozen(option)
        if option.startswith("_"):
            object.__setattr__(self, option, value)
        else:
            self.set(**{option: value})

    def __call__(self, option: str) -> Any:
        return getattr(self, option)

    def __repr__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self._values.items()]
        parts += [f"{name[1:]}={part!r}" for name, part in vars(self).items() if isinstance(part, OptionGroup)]
        return f"{type(self).__name__.lstrip('_')}({', '.join(parts)})"


def setter(keeps: str, becomes: str | None, because: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a setter of a method that has a name, an argument and a docstring, and mostly no body.

    Args:
        keeps: The option that the choice is kept under: `popart:name` is one of PopART's own settings, `_name` stands
            next to the options that `toDict` lists.
        becomes: What the account says of it; None leaves that to the method.
        because: Why, or how.

    Returns:
        A decorator. A method with a body may refuse the argument, or turn it into something else: what the method
        returns is kept, unless it is None.

    Example:
        >>> class Names(OptionGroup):
        ...     @setter("model_name", "ignored", "nothing is written under that name")
        ...     def modelName(self, name): ...
        >>> Names().modelName("resnet").model_name
        'resnet'
    """

    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        signature, name = inspect.signature(method), method.__name__

        @functools.wraps(method)
        def choose(self: Group, *args: Any, **kwargs: Any) -> Group:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            made = method(*bound.args)
            self._keep(keeps, bound.args[-1] if made is None else made)
            if becomes is not None:
                enter(Treatment(becomes), f"{self._asked}.{name}", because)
            return self

        choose.becomes = becomes and Treatment(becomes)  # type: ignore[attr-defined]
        return choose

    return make


def at_least_one(name: str, count: Any) -> int:
    """A count, as it is given.

    Raises:
        AssertionError: it is not a positive integer; it is a ValueError too.

    Example:
        >>> at_least_one("deviceIterations", 4)
        4
    """
    is_count = isinstance(count, int) and not isinstance(count, bool) and count > 0
    check(is_count, f"{name} is {count!r}; it must be an integer of at least 1.")
    return int(count)


def of_kind(kind: type, what: str) -> Accept:
    """Takes choices of a kind as they are given, and refuses anything else as `at_least_one` does."""

    def accept(name: str, choice: Any) -> Any:
        check(isinstance(choice, kind), f"{name} is {choice!r}; it must be {what}.")
        return choice

    return accept


def member_of(kind: type[Enum]) -> Accept:
    """Takes the members of an enum of PopTorch."""
    return of_kind(kind, f"a member of poptorch.{kind.__name__}")


def number_of(kind: type[Enum]) -> Accept:
    """Takes the members of an enum likewise, and keeps their numbers."""
    return lambda name, choice: member_of(kind)(name, choice).value


whole_number = of_kind(int, "an integer")
true_or_false = of_kind(bool, "a bool")


def zero_or_one(name: str, choice: Any) -> int:
    """Takes true or false, and keeps it as a number."""
    return int(true_or_false(name, choice))


# What a row calls a kind of parameter: its type, and what accepts it; without that it is kept as it is given.
_KINDS: Mapping[str, tuple[Any, Accept | None]] = {
    "bool": (bool, None), "true or false": (bool, true_or_false), "0 or 1": (bool, zero_or_one), "str": (str, None),
    "dithering": (bool, lambda _, choice: {"enableConvDithering": choice}), "int or None": (int | None, None),
    "0 or 2": (bool, lambda _, choice: 2 if choice else 0), "names": (list[str], lambda _, names: list(names)),
    "count": (int, at_least_one), "whole number": (int, whole_number),
    "ConnectionType": (ConnectionType, number_of(ConnectionType)), "SyncPattern": (SyncPattern, number_of(SyncPattern)),
    "HalfFloatCastingBehavior": (HalfFloatCastingBehavior, member_of(HalfFloatCastingBehavior)),
}  # fmt: skip

with Path(__file__).with_name("options.csv").open(newline="") as _file:
    _ROWS = list(csv.DictReader(_file))


def _setter_of(row: Mapping[str, str], kinds: Mapping[str, tuple[Any, Accept | None]]) -> Callable[..., Any]:
    """The method that a row describes, with its name, signature and docstring."""

    kind, accepts = kinds[row["kind"]]

    def method(self: OptionGroup, choice: Any) -> Any:
        return choice if accepts is None else accepts(row["name"], choice)

    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = True if row["default"] == "True" else inspect.Parameter.empty
    parameter = inspect.Parameter(row["parameter"], either, default=default, annotation=kind)
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", either), parameter], return_annotation=Any
    )
    method.__name__, method.__doc__ = row["name"], row["explains"]
    method.__qualname__ = f"{row['group']}.{row['name']}"
    return setter(row["keeps"], row["becomes"] or None, row["because"])(method)
