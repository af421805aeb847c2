"""Groups of named options, which are frozen while a model uses them, and the setters that programs call.

Each row of `options.csv` is a setter: its group, its name, its parameter, the option that it sets, whether popgeo
honours, records or ignores the option, and the reason. A setter that does more is a method with the decorator `setter`.
`popgeo_options` translates all options to popgeo's.
"""

import ast
import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from popgeo.compat.account import Treatment, enter
from popgeo.compat.poptorch.enums import ConnectionType, HalfFloatCastingBehavior, SyncPattern
from popgeo.compat.poptorch.errors import FrozenOptionsError, check, rows_of
from popgeo.did_you_mean import meant

Group = TypeVar("Group", bound="OptionGroup")
Convert = Callable[[str, Any], Any]  # (name of a setter, its argument) -> the value of the option, or an error


class OptionGroup:
    """Named options: attributes read them, setters return the group, and a model in use freezes them.

    Args:
        defaults: First value of each option. Later values must have the same type.

    Example:
        >>> group = OptionGroup(device_iterations=1)
        >>> group.set(device_iterations=4).device_iterations
        4
        >>> group.set(device_iterations="4")
        Traceback (most recent call last):
            ...
        popgeo.compat.poptorch.errors.CheckFailed: Unexpected type <class 'str'> for option device_iterations...
    """

    _asked = ""  # name of the group in the account
    _popart: Any = None  # PopART's settings, in groups that set some of them
    _kinds: ClassVar[Mapping[str, tuple[Any, Convert]]] = {}  # kinds of arguments that only this group has

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
        """Set existing options.

        Raises:
            AttributeError: The group is frozen.
            AssertionError: An option does not exist, or its value has another type. The error is also a ValueError.
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
        """Set options, including options that have no value yet."""
        self.checkIsFrozen()
        for option, value in values.items():
            self._values.setdefault(option, value)
            self.set(**{option: value})
        return self

    def deleteIfExists(self, option: str) -> None:
        """Delete the value of an option."""
        self._values.pop(option, None)

    def exists(self, option: str) -> bool:
        """Check whether an option has a value."""
        return option in self._values

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Check that the group is not frozen.

        Raises:
            AttributeError: The group is frozen. The error is also a ValueError.
        """
        is_free = not vars(self).get("_is_frozen") or option == "_is_frozen"
        check(is_free, "Can't modify frozen Options", FrozenOptionsError)

    def toDict(self) -> dict[str, Any]:
        """Return all options and their values."""
        return dict(self._values)

    def _keep(self, option: str, value: Any) -> None:
        """Set an option. `popart:name` is one of PopART's settings, `_name` an attribute that `toDict` omits."""
        if option.startswith("popart:"):
            self._popart.keep(option.removeprefix("popart:"), value)
        elif option.startswith("_"):
            setattr(self, option, value)
        else:
            self.createOrSet(**{option: value})

    def _freeze(self) -> None:
        """Freeze this group and the groups inside it."""
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
        """Return the value of an option."""
        return getattr(self, option)

    def __repr__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self._values.items()]
        parts += [f"{name[1:]}={part!r}" for name, part in vars(self).items() if isinstance(part, OptionGroup)]
        return f"{type(self).__name__.lstrip('_')}({', '.join(parts)})"


def setter(keeps: str, becomes: str | None, because: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a setter from a method with a name, one argument, a docstring and possibly a body.

    Args:
        keeps: Option to set. `popart:name` is one of PopART's settings, `_name` an attribute that `toDict` omits.
        becomes: Treatment that the account lists. None: the method itself enters the account.
        because: Reason or explanation in the account.

    Returns:
        A decorator. The method's result is the value of the option, or the argument if the result is None. The method
        may raise an error.

    Example:
        >>> class Names(OptionGroup):
        ...     @setter("model_name", "ignored", "no file has this name")
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
    """Return a positive integer, or raise an error that names the setter.

    Raises:
        AssertionError: `count` is not a positive integer. The error is also a ValueError.

    Example:
        >>> at_least_one("deviceIterations", 4)
        4
    """
    is_count = isinstance(count, int) and not isinstance(count, bool) and count > 0
    check(is_count, f"{name} is {count!r}; it must be an integer of at least 1.")
    return int(count)


def require_kind(kind: type, name: str, choice: Any) -> Any:
    """Return an argument of a setter, which must be an integer, a bool or a member of one of PopTorch's enums."""
    what = {int: "an integer", bool: "a bool"}.get(kind, f"a member of poptorch.{kind.__name__}")
    check(isinstance(choice, kind), f"{name} is {choice!r}; it must be {what}.")
    return choice


def number_of(kind: type, name: str, choice: Any) -> int:
    """Return the number of an enum's member."""
    return int(require_kind(kind, name, choice).value)


def zero_or_one(name: str, choice: Any) -> int:
    """Return the number of a bool.

    Raises:
        AssertionError: `choice` is not a bool. The error is also a ValueError.
    """
    return int(require_kind(bool, name, choice))


def _unchanged(name: str, choice: Any) -> Any:
    return choice


# Kinds of arguments in `options.csv`: the type in signatures, and the conversion to the value of the option.
_KINDS: Mapping[str, tuple[Any, Convert]] = {
    "bool": (bool, _unchanged), "str": (str, _unchanged), "int or None": (int | None, _unchanged),
    "true or false": (bool, partial(require_kind, bool)), "0 or 1": (bool, zero_or_one),
    "0 or 2": (bool, lambda _, choice: 2 if choice else 0), "names": (list[str], lambda _, names: list(names)),
    "count": (int, at_least_one), "whole number": (int, partial(require_kind, int)),
    "dithering": (bool, lambda _, choice: {"enableConvDithering": choice}),
    "ConnectionType": (ConnectionType, partial(number_of, ConnectionType)),
    "SyncPattern": (SyncPattern, partial(number_of, SyncPattern)),
    "HalfFloatCastingBehavior": (HalfFloatCastingBehavior, partial(require_kind, HalfFloatCastingBehavior)),
}  # fmt: skip

_ROWS = rows_of(Path(__file__).with_name("options.csv"))


def _setter_of(row: Mapping[str, str], kinds: Mapping[str, tuple[Any, Convert]]) -> Callable[..., Any]:
    """Return the method that a row describes, with its name, signature and docstring."""
    kind, convert = kinds[row["kind"]]

    def method(self: OptionGroup, choice: Any) -> Any:
        return convert(row["name"], choice)

    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = True if row["default"] == "True" else inspect.Parameter.empty
    parameter = inspect.Parameter(row["parameter"], either, default=default, annotation=kind)
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", either), parameter], return_annotation=Any
    )
    method.__name__, method.__doc__ = row["name"], row["explains"]
    method.__qualname__ = f"{row['group']}.{row['name']}"
    return setter(row["keeps"], row["becomes"] or None, row["because"])(method)
