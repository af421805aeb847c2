"""A group of named options, whose values keep their types and which is frozen once it is in use."""

import copy
from typing import Any

from popgeo.compat.account import ACCOUNT, Treatment
from popgeo.compat.poptorch.errors import Frozen, check


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

    def __init__(self, **defaults: Any) -> None:
        self._is_frozen = False
        self._values = defaults

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
            check(
                isinstance(value, expected) or self._values[option] is None,
                f"Unexpected type {type(value)} for option {option}. Expected {expected}",
            )
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
        if vars(self).get("_is_frozen") and option != "_is_frozen":
            raise Frozen("Can't modify frozen Options")

    def toDict(self) -> dict[str, Any]:
        """All options and their values."""
        return dict(self._values)

    def _freeze(self) -> None:
        self._set_frozen(True)

    def _unfreeze(self) -> None:
        self._set_frozen(False)

    def _set_frozen(self, frozen: bool) -> None:
        """Freezes or frees this group and those inside it."""
        self._is_frozen = frozen
        for part in vars(self).values():
            if isinstance(part, OptionGroup):
                part._set_frozen(frozen)

    def __deepcopy__(self, memory: dict[int, Any]) -> "OptionGroup":
        other = object.__new__(type(self))
        memory[id(self)] = other
        for name, part in vars(self).items():
            object.__setattr__(other, name, False if name == "_is_frozen" else copy.deepcopy(part, memory))
        return other

    def __getattr__(self, option: str) -> Any:
        if option.startswith("_") or option not in self._values:
            raise AttributeError(f"Invalid attribute {option}.")
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


def at_least_one(option: str, count: object) -> int:
    """A count, as it is given.

    Raises:
        AssertionError: it is not a positive integer; it is a ValueError too.

    Example:
        >>> at_least_one("deviceIterations", 4)
        4
    """
    check(
        isinstance(count, int) and not isinstance(count, bool) and count > 0,
        f"{option} is {count!r}; it must be an integer of at least 1.",
    )
    assert isinstance(count, int)
    return count


def recorded(asked: str, because: str) -> None:
    """Enters something that changes the modelled machine alone into the account."""
    ACCOUNT.add(asked, Treatment.RECORDED, because)


def ignored(asked: str, because: str) -> None:
    """Enters something that can mean nothing here into the account."""
    ACCOUNT.add(asked, Treatment.IGNORED, because)


def honoured(asked: str, because: str = "") -> None:
    """Enters something that works here as it did there into the account."""
    ACCOUNT.add(asked, Treatment.HONOURED, because)
