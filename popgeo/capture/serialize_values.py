"""Arguments of operations as JSON, and back."""

from collections.abc import Mapping
from typing import Any

import torch

from popgeo.capture.op_graph import Ref

_TORCH = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format, "device": torch.device}


def to_json(argument: Any) -> Any:
    """An argument of an operation as what JSON holds.

    Raises:
        TypeError: JSON cannot hold it.

    Example:
        >>> to_json([Ref(3), torch.float32, None])
        [{'ref': 3}, {'dtype': 'float32'}, None]
    """
    if isinstance(argument, Ref):
        return {"ref": argument.value}
    if isinstance(argument, list | tuple):
        return [to_json(item) for item in argument]
    for kind, cls in _TORCH.items():
        if isinstance(argument, cls):
            return {kind: torch_name(argument)}
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    raise TypeError(f"{type(argument).__name__} cannot be written as JSON")


def from_json(argument: Any) -> Any:
    """What `to_json` was given; tuples come back as lists.

    Example:
        >>> from_json([{"ref": 3}, {"dtype": "float32"}])
        [Ref(value=3), torch.float32]
    """
    if isinstance(argument, list):
        return [from_json(item) for item in argument]
    if isinstance(argument, Mapping):
        ((kind, held),) = argument.items()
        return Ref(held) if kind == "ref" else torch_thing(kind, held)
    return argument


def torch_name(thing: Any) -> str:
    """The name of a dtype, layout, memory format or device."""
    return str(thing).removeprefix("torch.")


def torch_thing(kind: str, name: str) -> Any:
    """What has this name.

    Raises:
        ValueError: torch has it, but it is no such kind.
    """
    if kind == "device":
        return torch.device(name)
    found = getattr(torch, name)
    if not isinstance(found, _TORCH[kind]):
        raise ValueError(f"{name} is no {kind}")
    return found
