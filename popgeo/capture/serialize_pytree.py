"""How the results of a model nest, as JSON, and back."""

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from torch_geometric.data import Data

from popgeo.capture.pytree import Container, Fixed, Leaf, Structure, besides
from popgeo.capture.serialize_values import from_json, to_json, torch_name, torch_thing


def structure_out(structure: Structure) -> Any:
    """A nest of results as what JSON holds.

    Raises:
        TypeError: JSON cannot hold it, or graph data among the results is like none of the arguments.
    """
    if isinstance(structure, Leaf):
        return ["slot", structure.shape, torch_name(structure.dtype)]
    if isinstance(structure, Fixed):
        return ["fixed", to_json(structure.value)]
    return [
        _kind_out(structure),
        [to_json(key) for key in structure.keys],
        [structure_out(part) for part in structure.parts],
    ]


def structure_in(fields: list[Any], arguments: Sequence[Any]) -> Structure:
    """The nest that `structure_out` was given, with the graph data among the arguments of now.

    Raises:
        ValueError: this process does not have a class that the results need.
    """
    kind, *rest = fields
    if kind == "slot":
        return Leaf(tuple(rest[0]), torch_thing("dtype", rest[1]))
    if kind == "fixed":
        return Fixed(from_json(rest[0]))
    parts = tuple(structure_in(part, arguments) for part in rest[1])
    if isinstance(kind, Mapping):
        template = Data() if kind["like"] is None else arguments[kind["like"]]
        keys = tuple((tuple(place) if isinstance(place, list) else place, name) for place, name in rest[0])
        return Container(type(template), keys, parts, template, kind["like"])
    return Container(_kind_in(kind), tuple(rest[0]), parts)


def _kind_out(container: Container) -> Any:
    if container.template is not None:
        if container.like is None and (container.kind is not Data or besides(container.template, container.keys)):
            raise TypeError(f"{container.kind.__name__} is like none of the arguments, so it cannot be written as JSON")
        return {"like": container.like}
    if container.original is not None:
        raise TypeError(f"{container.kind.__name__} cannot be written as JSON")
    if issubclass(container.kind, Mapping):
        return "OrderedDict" if container.kind is OrderedDict else "dict"
    if container.kind in (tuple, list):
        return container.kind.__name__
    place = [container.kind.__module__, container.kind.__qualname__]
    if _named_tuple(*place) is not container.kind:
        raise TypeError(f"{container.kind.__name__} cannot be written as JSON")
    return place


def _kind_in(kind: Any) -> type:
    if isinstance(kind, str):
        return {"tuple": tuple, "list": list, "dict": dict, "OrderedDict": OrderedDict}[kind]
    found = _named_tuple(*kind)
    if found is None:
        raise ValueError(f"the result is a {'.'.join(kind)}, which this process does not have")
    return found


def _named_tuple(module: str, name: str) -> type | None:
    """A class of named tuples that this process has; nothing is imported for it."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields") else None
