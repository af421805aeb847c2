"""Parts of a model that run on chosen IPUs: the recorder notes the current block at each operation."""

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from popgeo.capture.op_graph import BlockMark
from popgeo.capture.recorder import active_recorder


def begin_block(name: str | None, ipu: int | None) -> BlockMark | None:
    """Begin a block that lasts until the next one; return the previous block. Outside of a capture nothing happens."""
    recorder = active_recorder()
    if recorder is None:
        return None
    before = recorder.block
    recorder.block = BlockMark(f"{next(recorder.block_numbers)}" if name is None else name, ipu)
    return before


class Block(contextlib.ContextDecorator):
    """A part of `forward` that runs on one IPU if `Options.stages` is `"blocks"`.

    Args:
        name: Name of the part in stages. Default: a number.
        ipu_id: Number of the IPU. Default: the IPU of the previous block.

    Raises:
        ValueError: the number of the IPU is not a whole number of at least 0.

    Example:
        >>> from popgeo.capture.capture import bind, capture
        >>> def model(x):
        ...     with Block("first", ipu_id=0):
        ...         x = x + 1
        ...     with Block("second", ipu_id=1):
        ...         return x * 2
        >>> import torch
        >>> [op.block for op in capture(model, bind(model, torch.ones(2))).graph.ops]
        [BlockMark(name='first', ipu=0), BlockMark(name='second', ipu=1)]
    """

    def __init__(self, name: str | None = None, ipu_id: int | None = None) -> None:
        self._name, self._ipu = name, checked_ipu(ipu_id)
        self._before: list[BlockMark | None] = []

    def __enter__(self) -> "Block":
        self._before.append(begin_block(self._name, self._ipu))
        return self

    def __exit__(self, *error: object) -> None:
        before, recorder = self._before.pop(), active_recorder()
        if recorder is not None:
            recorder.block = before


@dataclass(frozen=True)
class BlockHook:
    """A hook that begins a block when its module is called."""

    name: str | None
    ipu: int | None

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Begin the block."""
        begin_block(self.name, self.ipu)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self.name}, ipu_id={self.ipu})"


def BeginBlock(layer: Any, name: str | None = None, *, ipu_id: int | None = None) -> Any:
    """Begin a block at each call of a module; the block lasts until another one begins.

    Args:
        layer: Module, which is marked in place, or function.
        name: Name of the block. Default: a number.
        ipu_id: Number of the IPU. Default: the IPU of the previous block.

    Returns:
        The module itself, or a function that begins the block and calls the given one.

    Raises:
        ValueError: `layer` is neither a module nor a function, or it begins a block already.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))
        >>> BeginBlock(model[1], ipu_id=1)
        Linear(in_features=4, out_features=2, bias=True)
    """
    checked_ipu(ipu_id)
    if not isinstance(layer, nn.Module):
        if not callable(layer):
            raise ValueError(f"A block begins at a torch.nn.Module or a function, found {layer!r}.")
        return functools.partial(_run_in_block, name, ipu_id, layer)  # unlike a closure, it can be pickled
    if any(isinstance(hook, BlockHook) for hook in layer._forward_pre_hooks.values()):
        kind = type(layer).__name__
        raise ValueError(f"This {kind} module has already been assigned to a block; a module begins only one.")
    # The hook runs before the hooks that record the module's name, so all its operations belong to the block.
    layer.register_forward_pre_hook(BlockHook(name, ipu_id), prepend=True)
    return layer


def _run_in_block(name: str | None, ipu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with Block(name, ipu):
        return function(*args, **kwargs)


def remove_blocks(module: nn.Module) -> None:
    """Remove the marks of `BeginBlock` from a module and its submodules."""
    for part in module.modules():
        hooks = part._forward_pre_hooks.items()
        part._forward_pre_hooks = OrderedDict((key, hook) for key, hook in hooks if not isinstance(hook, BlockHook))


def checked_ipu(ipu: Any) -> int | None:
    """Return the number of an IPU.

    Raises:
        ValueError: it is not a whole number of at least 0.
    """
    if ipu is not None and (isinstance(ipu, bool) or not isinstance(ipu, int) or ipu < 0):
        raise ValueError(f"The number of an IPU must be an integer of at least 0, found {ipu!r}.")
    return ipu
