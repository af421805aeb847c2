"""Paths and descriptions of the parts of a nest, and the comparison of two nests."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from popgeo.capture.op_graph import shape_text
from popgeo.capture.pytree import SCALARS, Container, FixedValue, Leaf, Structure, flatten


def leaves(structure: Structure) -> Iterator[tuple[str, Leaf]]:
    """Return the path, shape and type of each tensor, in the order of `flatten`.

    Example:
        >>> import torch
        >>> from popgeo.capture.pytree import flatten
        >>> [(path, leaf.shape) for path, leaf in leaves(flatten({"x": [torch.ones(2), 3]})[1])]
        [('x[0]', (2,))]
    """
    return ((path, part) for path, part in _walk(structure, "") if isinstance(part, Leaf))


def templates(structure: Structure) -> list[Any]:
    """Return the graph data objects of a nest, in order."""
    containers = (part for _, part in _walk(structure, "") if isinstance(part, Container))
    return [one.template for one in containers if one.template is not None]


def describe(structure: Structure) -> Iterator[tuple[str, str]]:
    """Yield the path and a description of each part, for error messages.

    Example:
        >>> from popgeo.capture.pytree import flatten
        >>> dict(describe(flatten({"x": [1, 2]})[1]))
        {'x': 'list of 2', 'x[0]': '1', 'x[1]': '2'}
    """
    for path, part in _walk(structure, ""):
        if isinstance(part, Leaf):
            yield path, shape_text(part)
        elif isinstance(part, FixedValue):
            yield path, repr(part.value)
        elif path:
            yield path, f"{part.kind.__name__} of {len(part.parts)}"


def _walk(structure: Structure, path: str) -> Iterator[tuple[str, Structure]]:
    """Yield each part of a nested structure with its path, beginning with the structure itself."""
    yield path, structure
    if isinstance(structure, Container):
        for key, part in zip(structure.keys, structure.parts, strict=True):
            yield from _walk(part, _join(path, key, structure))


def _join(path: str, key: Any, container: Container) -> str:
    if container.template is not None:
        place, name = key
        return f"{path}.{name}" if place is None else f"{path}[{place!r}].{name}"
    if not path:
        return str(key)
    return f"{path}.{key}" if hasattr(container.kind, "_fields") else f"{path}[{key!r}]"


def same(compiled: Structure, given: Structure) -> bool:
    """Check that two nests have the same containers, shapes, types and fixed values.

    Example:
        >>> from popgeo.capture.pytree import flatten
        >>> same(flatten([1, 2.0])[1], flatten([1, 3.0])[1])
        False
    """
    if isinstance(compiled, Container):
        if not (isinstance(given, Container) and compiled.kind is given.kind and compiled.keys == given.keys):
            return False
        return all(map(same, compiled.parts, given.parts))
    if isinstance(compiled, FixedValue) and isinstance(given, FixedValue):
        scalars = isinstance(compiled.value, SCALARS) and type(compiled.value) is type(given.value)
        # Compared by their text, which tells 0.0 from -0.0 and is equal for NaN.
        return compiled.value is given.value or (scalars and repr(compiled.value) == repr(given.value))
    return compiled == given


def takes(compiled: Structure, given: Any, tensors: list[Tensor], graph_data: list[Any]) -> bool:
    """Check whether an argument matches a structure that was compiled; collect its tensors and graph data.

    Args:
        compiled: Structure at the compilation.
        given: Argument of this call.
        tensors: List to which the argument's tensors are appended.
        graph_data: List to which its graph data is appended.

    Example:
        >>> import torch
        >>> from popgeo.capture.pytree import flatten
        >>> found = []
        >>> takes(flatten(torch.ones(2))[1], torch.zeros(2), found, []), found
        (True, [tensor([0., 0.])])
    """
    if isinstance(compiled, Leaf):
        fits = isinstance(given, Tensor) and given.shape == compiled.shape and given.dtype == compiled.dtype
        if fits:
            tensors.append(given)
        return fits
    own, structure = flatten(given)
    tensors += own
    graph_data += templates(structure)
    return same(compiled, structure)


def reordered(structure: Structure, tensors: Iterable[Any], like: Structure | None) -> tuple[list[Any], Structure]:
    """Return a nest with dictionaries and graph data in the order of another nest, if their names are equal.

    Example:
        >>> from popgeo.capture.pytree import flatten
        >>> compiled, given = flatten({"a": 1, "b": 2})[1], flatten({"b": 2, "a": 1})[1]
        >>> reordered(given, [], like=compiled)[1] == compiled
        True
    """
    tensors = iter(tensors)
    if not isinstance(structure, Container):
        return ([next(tensors)] if isinstance(structure, Leaf) else []), structure
    model = dict(zip(like.keys, like.parts, strict=True)) if isinstance(like, Container) else {}
    pairs = zip(structure.keys, structure.parts, strict=True)
    parts = {key: reordered(part, tensors, model.get(key)) for key, part in pairs}
    named = structure.template is not None or issubclass(structure.kind, Mapping)
    keys = tuple(model) if named and model.keys() == parts.keys() else structure.keys
    own = replace(structure, keys=keys, parts=tuple(parts[key][1] for key in keys))
    return [tensor for key in keys for tensor in parts[key][0]], own


def first_difference(compiled: Structure, given: Structure) -> str:
    """Return a sentence about the first part that differs, with its path."""
    before, after = dict(describe(compiled)), dict(describe(given))
    for path in [*before, *(path for path in after if path not in before)]:
        if before.get(path) != after.get(path):
            return f"`{path}` is {after.get(path, 'absent')}, but the model was compiled for {before.get(path, 'none')}"
    return "an argument that is neither a tensor nor a number is a different object than at compilation"
