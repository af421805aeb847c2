"""Arguments of a call, split into tensors and a structure.

A function of tensors can be called with one batch of graphs: each argument is then the attribute with the same name.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from popgeo.capture.pytree import SCALARS, Structure, flatten, is_graph_data, unflatten
from popgeo.capture.structures import reordered, templates

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# The attribute of each count. The `batch_size` of a batch with seeds is not the same in every call.
_COUNTS = {"num_graphs": "num_graphs", "batch_size": "num_graphs", "num_nodes": "num_nodes", "num_edges": "num_edges"}
_REMEDY = "Name the attributes as the model's arguments are named, or pass it too: step(batch, {}=...)."


@dataclass(frozen=True, kw_only=True, eq=False)
class Arguments:
    """The arguments of one call of a function.

    Attributes:
        signature: Signature of the function.
        tensors: All tensors, in order.
        structure: Nesting of the tensors by argument name, with all arguments that are not tensors.
        batch: Batch whose attributes are the arguments; None if the caller names the arguments.
    """

    signature: inspect.Signature
    tensors: Sequence[Tensor]
    structure: Structure
    batch: Any = None

    @classmethod
    def of(cls, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Arguments":
        """Return the arguments of a call `function(*args, **kwargs)`; passing a default is the same as omitting it.

        A function of tensors that gets one batch takes the attributes with the names of its arguments.

        Raises:
            TypeError: the function does not take these arguments.
            ValueError: an argument is not an attribute of the batch.
        """
        whole = args[0] if len(args) == 1 and is_graph_data(args[0]) else None
        args, kwargs = BatchArguments(signature)(args, kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            taken = ", ".join(map(str, signature.parameters.values()))
            raise TypeError(f"The model's forward({taken}) does not take these arguments: {error}.") from None
        parts = [(one, given.get(name, one.default)) for name, one in signature.parameters.items()]
        # An argument that is the default object itself counts as left out, unless it is a plain value.
        kept = {one.name: part for one, part in parts if part is not one.default or isinstance(part, SCALARS)}
        tensors, structure = flatten(kept)
        return cls(signature=signature, tensors=tensors, structure=structure, batch=None if args else whole)

    def like(self, structure: Structure) -> "Arguments":
        """Return the arguments with dictionaries and graph data in the order of another structure."""
        tensors, own = reordered(self.structure, self.tensors, structure)
        return Arguments(signature=self.signature, tensors=tensors, structure=own)

    @property
    def graph_data(self) -> list[Any]:
        """Graph data among the arguments, in order."""
        return templates(self.structure)

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Arguments":
        """Return the arguments with other tensors, which may have other shapes."""
        own, structure = flatten(unflatten(self.structure, tensors))
        return replace(self, tensors=own, structure=structure)

    def pass_to(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """Call a function with these tensors in place of the original ones.

        Example:
            >>> def scale(x, factor):
            ...     return factor * x
            >>> Arguments.of(inspect.signature(scale), [Tensor(3)], {"factor": 2}).pass_to(scale, [5])
            10
        """
        bound = inspect.BoundArguments(self.signature, OrderedDict(unflatten(self.structure, tensors)))
        bound.apply_defaults()
        return function(*bound.args, **bound.kwargs)


def taken_by_name(
    parameters: Iterable[inspect.Parameter], held: Collection[str], remedy: str, given: Collection[str] = ()
) -> list[str] | None:
    """Return the model's arguments to take from a batch, by name; None if the model takes the batch itself.

    A model takes the batch itself if it needs one argument, and that argument is called `batch` or, like `data`, is not
    an attribute.

    Args:
        parameters: Parameters of the model.
        held: Names of attributes of the batch.
        remedy: Advice at the end of the message about missing arguments.
        given: Names of arguments that the caller passes. Default: none.

    Raises:
        ValueError: the model needs further arguments.

    Example:
        >>> def model(x, edge_index, edge_weight=None): ...
        >>> taken_by_name(inspect.signature(model).parameters.values(), {"x", "edge_index", "batch"}, "")
        ['x', 'edge_index']
        >>> taken_by_name(inspect.signature(lambda data: data).parameters.values(), {"x", "edge_index"}, "") is None
        True
    """
    named = [one for one in parameters if one.kind in _BY_NAME and one.name not in given]
    needed = [one.name for one in named if one.default is one.empty]
    found = [one.name for one in named if one.name in held]
    if needed == ["batch"] or (len(needed) == 1 and needed[0] not in found) or not (needed or found):
        return None
    if missing := [name for name in needed if name not in found]:
        raise ValueError(
            f"The model takes {', '.join(missing)}, which the graphs do not have; they have "
            f"{', '.join(sorted(held))}. {remedy.format(missing[0])}"
        )
    return found


class BatchArguments:
    """A translation of calls with one batch into calls with attributes of the batch.

    Other calls, and calls of a function that takes the batch itself, stay unchanged.

    Args:
        signature: Signature of the function.
        remedy: Advice at the end of the message about missing arguments. Default: how to name the attributes.

    Example:
        >>> from torch_geometric.data import Data
        >>> BatchArguments(inspect.signature(lambda x, weight: x * weight))([Data(x="X")], {"weight": 2})
        ((), {'x': 'X', 'weight': 2})
    """

    def __init__(self, signature: inspect.Signature, remedy: str = _REMEDY) -> None:
        self._parameters, self._remedy = signature.parameters, remedy
        self._known: dict[tuple[Any, ...], dict[str, str] | None] = {}

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the translated arguments of a call.

        Raises:
            ValueError: neither the batch nor the caller has an argument that the function needs.
        """
        if len(args) != 1 or not is_graph_data(args[0]):
            return args, kwargs
        batch = args[0]
        held = (*kwargs, type(batch), *[tuple(store._mapping) for store in batch.stores])
        if held not in self._known:
            self._known[held] = self._attributes_of(batch, kwargs)
        names = self._known[held]
        if names is None:
            return args, kwargs
        return (), {**{name: getattr(batch, attribute) for name, attribute in names.items()}, **kwargs}

    def _attributes_of(self, batch: Any, given: Mapping[str, Any]) -> dict[str, str] | None:
        """Return the batch attribute of each argument; None if the batch itself is the argument."""
        held = _names_in(batch, self._parameters)
        names = taken_by_name(self._parameters.values(), held, self._remedy, given)
        if names is None:
            return None
        attributes = {name: name for name in names}
        optional = "batch_size" in names and self._parameters["batch_size"].default is not inspect.Parameter.empty
        if optional and "batch" in names and hasattr(type(batch), "num_graphs"):
            attributes["batch_size"] = "num_graphs"  # the name that PyG's layers have for the number of graphs
        if hasattr(type(batch), "refuse_names"):
            batch.refuse_names(attributes.values(), given)
        return attributes


def _names_in(batch: Any, wanted: Collection[str]) -> set[str]:
    """Return the names in a batch of PyG: attributes, dictionaries such as `x_dict`, and the wanted counts."""
    named = ((name, number) for name, number in _COUNTS.items() if name in wanted)
    held = {name for name, number in named if isinstance(getattr(batch, number, None), int)}
    stores = [(store._key, store._mapping) for store in batch.stores]
    return held.union(*([name if key is None else f"{name}_dict" for name in own] for key, own in stores))
