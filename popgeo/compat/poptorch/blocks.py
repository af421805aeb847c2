"""Which part of a model runs on which IPU: accepted everywhere, remembered, and without effect on results."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from popgeo.capture.recorder import active_recorder
from popgeo.compat.account import ACCOUNT, Treatment

__all__ = ["BeginBlock", "Block", "BlockFunction", "NameScope", "removeBlocks"]


def _remember(user_id: str | None, ipu_id: int | None) -> None:
    where = "" if ipu_id is None else f" on IPU {ipu_id}"
    ACCOUNT.add(f"Block({user_id!r}){where}", Treatment.RECORDED, "the model of the machine plans the step as a whole")


class Block(nn.Module):
    """A part of a model, as a context.

    Args:
        user_id: Its name.
        ipu_id: The IPU that it is to run on.

    Example:
        >>> with Block("Encoder", ipu_id=0):
        ...     pass
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        super().__init__()
        self._user_id, self._ipu_id = user_id, ipu_id

    @staticmethod
    def useAutoId() -> None:
        """Numbers the blocks without a name; they need none here."""

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begins a block that lasts until the next one."""
        _remember(user_id, ipu_id)

    def __enter__(self) -> None:
        _remember(self._user_id, self._ipu_id)

    def __exit__(self, *error: object) -> None:
        return None


@dataclass(frozen=True)
class _BlockHook:
    """Begins a block where a module is called."""

    user_id: str | None
    ipu_id: int | None

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        _remember(self.user_id, self.ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self.user_id}, ipu_id={self.ipu_id})"


def BeginBlock(layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None) -> Any:
    """Begins a block where a module, or a function, is called.

    Returns:
        The module itself, or a function that does the same.

    Raises:
        ValueError: it is neither, or begins a block already.

    Example:
        >>> layer = BeginBlock(nn.Linear(2, 2), "first", ipu_id=0)
        >>> list(layer._forward_pre_hooks.values())
        [BeginBlock(user_id=first, ipu_id=0)]
    """
    if not isinstance(layer_to_call, nn.Module):
        if not callable(layer_to_call):
            raise ValueError("module is not an instance of torch.nn.Module or function.")
        return BlockFunction(user_id, ipu_id)(layer_to_call)
    if any(isinstance(hook, _BlockHook) for hook in layer_to_call._forward_pre_hooks.values()):
        raise ValueError("module has already been assigned to a block.")
    layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
    return layer_to_call


def removeBlocks(module: nn.Module) -> None:
    """Takes the marks of `BeginBlock` off a module and those inside it."""
    for part in module.modules():
        hooks = part._forward_pre_hooks.items()
        part._forward_pre_hooks = OrderedDict((key, hook) for key, hook in hooks if not isinstance(hook, _BlockHook))


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Makes a block of a function.

    Example:
        >>> @BlockFunction("Decoder", ipu_id=1)
        ... def decode(x):
        ...     return x + 1
        >>> decode(1)
        2
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def in_block(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return in_block

    return decorate


class NameScope:
    """Operations inside are listed under this name in the report of a compiled model.

    Example:
        >>> with NameScope("attention"):
        ...     pass
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise ValueError("Parameter to NameScope must be a string")
        self.name = name
        self._recorder: Any = None

    def __enter__(self) -> None:
        self._recorder = active_recorder()
        if self._recorder is not None:
            modules = self._recorder.modules
            modules.append(f"{modules[-1]}.{self.name}" if modules and modules[-1] else self.name)

    def __exit__(self, *error: object) -> None:
        if self._recorder is not None:
            self._recorder.modules.pop()
            self._recorder = None
