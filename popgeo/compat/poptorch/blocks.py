"""Which part of a model runs on which IPU: blocks become stages, which run here one by one with the same results."""

from collections.abc import Callable
from textwrap import indent
from typing import Any

from torch import nn

from popgeo.capture import blocks
from popgeo.compat.account import honoured
from popgeo.compat.poptorch.errors import as_poptorch_errors

__all__ = ["BeginBlock", "Block", "BlockFunction", "module_repr", "removeBlocks"]


def _remember(user_id: str | None, ipu_id: int | None) -> None:
    where = "" if ipu_id is None else f" on IPU {ipu_id}"
    why = "what follows runs as a stage of its own where the model names several IPUs; results stay as they are"
    honoured(f"Block({user_id!r}){where}", why)


class Block(nn.Module, blocks.Block):
    """A part of a model, as a context.

    Args:
        user_id: Its name.
        ipu_id: The IPU that it is to run on.

    Example:
        >>> with Block("Encoder", ipu_id=0):
        ...     pass
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        nn.Module.__init__(self)
        blocks.Block.__init__(self, user_id, ipu_id)
        _remember(user_id, ipu_id)

    @staticmethod
    def useAutoId() -> None:
        """Numbers the blocks without a name; they need none here."""

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begins a block that lasts until the next one."""
        _remember(user_id, ipu_id)
        blocks.begin_block(user_id, ipu_id)


def BeginBlock(layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None) -> Any:
    """Begins a block where a module, or a function, is called.

    Returns:
        The module itself, or a function that does the same.

    Raises:
        Error: it is neither, or begins a block already.

    Example:
        >>> layer = BeginBlock(nn.Linear(2, 2), "first", ipu_id=0)
        >>> list(layer._forward_pre_hooks.values())
        [BeginBlock(user_id=first, ipu_id=0)]
    """
    with as_poptorch_errors():
        begun = blocks.BeginBlock(layer_to_call, user_id, ipu_id=ipu_id)
    _remember(user_id, ipu_id)
    if begun is not layer_to_call:  # a function's, which PopTorch tells so
        begun._user_id, begun._ipu_id = user_id, ipu_id
    return begun


removeBlocks = blocks.remove_blocks


def module_repr(m: nn.Module) -> str:
    """A module as torch prints it, with the blocks that begin at it and at those inside it.

    Example:
        >>> print(module_repr(nn.Sequential(nn.ReLU(), BeginBlock(nn.Dropout(0.5), "last"))))
        Sequential(
          (0): ReLU()
          (1): BeginBlock(user_id=last, ipu_id=None) Dropout(p=0.5, inplace=False)
        )
    """
    begins = "".join(f"{hook!r} " for hook in m._forward_pre_hooks.values())
    inside = [f"({name}): {module_repr(part)}" for name, part in m._modules.items() if part is not None]
    text = "\n".join([*m.extra_repr().splitlines(), *inside])
    if "\n" in text or inside:
        text = f"\n{indent(text, '  ')}\n"
    return f"{begins}{m._get_name()}({text})"


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Makes a block of a function.

    Example:
        >>> @BlockFunction("Decoder", ipu_id=1)
        ... def decode(x):
        ...     return x + 1
        >>> decode(1)
        2
    """

    _remember(user_id, ipu_id)
    return blocks.Block(user_id, ipu_id)  # a context that is a decorator, too
