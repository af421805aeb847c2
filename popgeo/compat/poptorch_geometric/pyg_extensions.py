"""PyG as programs of PopTorch Geometric expect it: with its extensions, and with arguments of PyG 2.4."""

import functools
import inspect
from contextlib import ExitStack
from typing import Any

from torch_geometric.nn import MessagePassing

from popgeo.compat.account import honoured, ignored
from popgeo.extension_path import engines
from popgeo.replaced import replaced

_CHANGES = ExitStack()  # closing it restores PyG's functions


def stand_in() -> None:
    """Accept old arguments of PyG until `take_back`, and account for the extensions that popgeo serves.

    Example:
        >>> from torch_geometric.nn import SAGEConv
        >>> stand_in()
        >>> SAGEConv(2, 3, add_self_loops=False)
        SAGEConv(2, 3, aggr=mean)
        >>> take_back()
    """
    if engines()["pyg_lib"] == "popgeo":
        honoured("import pyg_lib", "popgeo's searches, samples and partitions replace the missing package")
    _accept_old_arguments()


def take_back() -> None:
    """Restore PyG's own functions.

    Example:
        >>> take_back()
    """
    _CHANGES.close()


def _accept_old_arguments() -> None:
    """Ignore `add_self_loops` of layers without loops, as PyG 2.4 did; old programs pass it to `SAGEConv`."""
    make = MessagePassing.__init__
    if hasattr(make, "__wrapped__") or "add_self_loops" in inspect.signature(make).parameters:
        return

    @functools.wraps(make)
    def take(layer: MessagePassing, *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("add_self_loops", None) is not None:
            ignored(
                f"{type(layer).__name__}(add_self_loops=)", "the layer adds no loops; PyG 2.4 ignored the argument, too"
            )
        make(layer, *args, **kwargs)

    _CHANGES.enter_context(replaced(MessagePassing, "__init__", take))
