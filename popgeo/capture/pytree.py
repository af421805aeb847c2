"""Arguments and results of any nesting, split into tensors and a structure, and put together again."""

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_PARTS = (Tensor, bool, int, float)
# Types that are compared by value. Every other part that is not a tensor must be the same object.
SCALARS = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class Leaf:
    """The place of a tensor in a nest."""

    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class FixedValue:
    """A part that is not a tensor; it becomes a constant of the compiled program."""

    value: Any


@dataclass(frozen=True)
class Container:
    """A container: its type, the names of its parts, and the parts.

    Attributes:
        kind: Class of the container.
        keys: Names of the parts.
        parts: Structures of the parts.
        template: Graph data to copy, if the container is graph data.
        like: Number of the argument that equals the result except for tensors, if the container is graph data among the
            results. All other attributes then come from that argument of each call.
        original: Object to copy, if the container is a dataclass, a subclass of dict, or of a registered class.
    """

    kind: type
    keys: tuple[Any, ...]
    parts: tuple["Leaf | FixedValue | Container", ...]
    template: Any = None
    like: int | None = None
    original: Any = field(default=None, compare=False)


Structure = Leaf | FixedValue | Container

TakeApart = Callable[[Any], Iterable[Any]]
"""The parts of an object, in order."""
PutTogether = Callable[[Any, Iterator[Any]], Any]
"""A copy of an object with other parts."""
_REGISTERED: dict[type, tuple[TakeApart, PutTogether]] = {}


def register_kind(kind: type, take_apart: TakeApart, put_together: PutTogether) -> None:
    """Register how objects of a class and its subclasses are split and put together, as arguments and results.

    Args:
        kind: Class. Graph data, dictionaries, lists, tuples and dataclasses need no registration.
        take_apart: Returns the tensors of an object, in order; all other parts become constants of the program.
        put_together: Returns a copy of an object with other tensors.

    Example:
        >>> class Pair:
        ...     def __init__(self, a, b):
        ...         self.a, self.b = a, b
        >>> register_kind(Pair, lambda pair: [pair.a, pair.b], lambda like, parts: Pair(*parts))
        >>> unflatten(flatten(Pair(Tensor(), Tensor()))[1], ["A", "B"]).b
        'B'
    """
    _REGISTERED[kind] = take_apart, put_together


def _registered(kind: type) -> tuple[TakeApart, PutTogether] | None:
    return next((_REGISTERED[base] for base in kind.__mro__ if base in _REGISTERED), None)


def flatten(tree: Any) -> tuple[list[Tensor], Structure]:
    """Return the tensors of a nest of tuples, named tuples, lists, dicts and PyG data objects, and its structure.

    Example:
        >>> import torch
        >>> tensors, structure = flatten({"a": torch.ones(2), "b": (torch.zeros(1), 3)})
        >>> len(tensors), unflatten(structure, ["A", "B"])
        (2, {'a': 'A', 'b': ('B', 3)})
    """
    tensors: list[Tensor] = []
    return tensors, _take_apart(tree, tensors)


def _take_apart(tree: Any, tensors: list[Tensor]) -> Structure:
    if isinstance(tree, Tensor):
        tensors.append(tree)
        if tree.is_nested:
            raise ValueError("A nested tensor has no shape. Pass a dense one: nested.to_padded_tensor(0.0) gives it.")
        return Leaf(tuple(tree.shape), tree.dtype)
    parts: Mapping[Any, Any]
    template = original = None
    if is_graph_data(tree):
        parts, template = {place: part for place, part in _data_parts(tree) if isinstance(part, _PARTS)}, tree
    elif (known := _registered(type(tree))) is not None:
        parts, original = dict(enumerate(known[0](tree))), tree
    elif isinstance(tree, Mapping):
        plain = type(tree) in (dict, OrderedDict) or not isinstance(tree, dict)
        parts, original = tree, None if plain else tree
    elif _is_foreign_dataclass(tree):
        parts, original = {one.name: getattr(tree, one.name) for one in fields(tree)}, tree
    elif isinstance(tree, tuple | list):
        parts = dict(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    else:
        return FixedValue(tree)
    own = tuple(_take_apart(part, tensors) for part in parts.values())
    return Container(type(tree), tuple(parts), own, template, original=original)


def is_graph_data(tree: Any) -> bool:
    """Check whether an object is graph data of PyG; the check does not import PyG."""
    pyg = sys.modules.get("torch_geometric.data.data")
    return pyg is not None and isinstance(tree, pyg.BaseData)


def _is_foreign_dataclass(tree: Any) -> bool:
    """Check whether an object is a user's dataclass; dataclasses of popgeo, such as plans, are not split."""
    record = is_dataclass(tree) and not isinstance(tree, type | nn.Module)
    return record and not type(tree).__module__.startswith("popgeo.")


def _data_parts(data: "BaseData") -> Iterator[tuple[tuple[Any, str], Any]]:
    for store in data.stores:
        for key, part in store.items():
            yield (store._key, key), part


def unflatten(structure: Structure, tensors: Iterable[Any], arguments: Sequence[Any] = ()) -> Any:
    """Return a nest with this structure and these tensors, in the order of `flatten`.

    Args:
        structure: Structure from `flatten`.
        tensors: Tensors of the nest.
        arguments: Graph data among the arguments of a call; graph data among the results is made like it. Default:
            none.
    """
    tensors = iter(tensors)
    if isinstance(structure, Leaf):
        return next(tensors)
    if isinstance(structure, FixedValue):
        return structure.value
    parts = [unflatten(part, tensors, arguments) for part in structure.parts]
    if structure.template is not None:
        like = structure.like if arguments else None
        data = copy.copy(structure.template if like is None else arguments[like])
        stores = {store._key: store for store in data.stores}
        for (place, key), part in zip(structure.keys, parts, strict=True):
            stores[place][key] = part
        return data
    if structure.original is not None:
        return _put_together_like(structure, parts)
    if issubclass(structure.kind, Mapping):
        kind = OrderedDict if structure.kind is OrderedDict else dict
        return kind(zip(structure.keys, parts, strict=True))
    make: Any = structure.kind
    return make(*parts) if hasattr(make, "_fields") else make(parts)


def _put_together_like(structure: Container, parts: Sequence[Any]) -> Any:
    known = _registered(structure.kind)
    if known is not None:
        return known[1](structure.original, iter(parts))
    made = copy.copy(structure.original)
    for key, part in zip(structure.keys, parts, strict=True):
        if isinstance(made, dict):
            made[key] = part
        else:
            object.__setattr__(made, key, part)  # also if it is frozen
    return made


def note_likeness(results: Structure, arguments: Sequence[Any]) -> Structure:
    """Note the argument that each graph data object among the results resembles, and return the new structure."""
    if not isinstance(results, Container):
        return results
    parts = tuple(note_likeness(part, arguments) for part in results.parts)
    like = None if results.template is None else _find_like(results, arguments)
    return replace(results, parts=parts, like=like)


def _find_like(result: Container, arguments: Sequence[Any]) -> int | None:
    for number, argument in enumerate(arguments):
        keys = {place for place, part in _data_parts(argument) if isinstance(part, _PARTS)}
        same_rest = other_keys(argument, keys) == other_keys(result.template, result.keys)
        if type(argument) is result.kind and same_rest and keys <= set(result.keys):
            return number
    return None


def other_keys(data: "BaseData", keys: Iterable[Any]) -> set[Any]:
    """Return the keys of graph data that are not among the given keys."""
    return {place for place, _ in _data_parts(data)} - set(keys)
