"""A module that a training model holds: it says so, can be let go by itself, and pickles as what it was."""

import copyreg
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class _Wrapped:
    """Marks the classes that `wrap` makes."""


def wrap(module: nn.Module, owner: Any) -> None:
    """Gives a module the methods `destroy` and `copyWeightsToHostIfNeeded`; it stays an instance of its own class.

    Args:
        module: Changes its class.
        owner: The training model that holds it, whose methods of these names are called; not kept alive by the module.
    """
    own: Any = type(module)
    held_by = weakref.ref(owner)

    def destroy(self: nn.Module) -> None:
        """Lets the module go, so that it can be wrapped again."""
        if (held := held_by()) is not None:
            held.destroy()
        unwrap(self)

    def reduce(self: nn.Module, protocol: int) -> Any:
        """Pickles and copies as an instance of the module's own class."""
        make, arguments, *state = own.__reduce_ex__(self, protocol)
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle checks that it makes the object's class
            make, arguments = copyreg._reconstructor, (own, object, None)  # type: ignore[attr-defined]
        return (make, arguments, *state)

    names = {"destroy": destroy, "__reduce_ex__": reduce, "__wrapped__": own, "__module__": own.__module__}
    names["copyWeightsToHostIfNeeded"] = lambda _: False  # they are up to date always
    module.__class__ = type(f"Poptorch{own.__name__}", (own, _Wrapped), names)


def is_wrapped(module: nn.Module) -> bool:
    """Whether a training model holds a module.

    Example:
        >>> is_wrapped(nn.Linear(2, 2))
        False
    """
    return isinstance(module, _Wrapped)


def unwrap(module: nn.Module) -> None:
    """Gives a module its own class back."""
    if is_wrapped(module):
        module.__class__ = type(module).__mro__[1]


def leave(*of_module: Any) -> None:
    """Does nothing: weights and buffers of a wrapped module keep their own classes, and PyG's data need no parser."""


@contextmanager
def unwrapped(module: nn.Module) -> Iterator[None]:
    """A module has its own class while the block runs: a kept step is found by the class's source."""
    held = type(module)
    unwrap(module)
    try:
        yield
    finally:
        module.__class__ = held
