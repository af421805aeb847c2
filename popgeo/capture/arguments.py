"""The arguments of a call, taken apart into tensors and the rest.

Of a batch of graphs each argument gets the attribute of its name, or one argument gets all.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from popgeo.capture.pytree import SCALARS, Structure, flatten, is_graph_data, templates, unflatten
from popgeo.capture.structures import reordered

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# By name, the number to look for: of a batch with seeds, `batch_size` is not a number of every call.
_COUNTS = {"num_graphs": "num_graphs", "batch_size": "num_graphs", "num_nodes": "num_nodes", "num_edges": "num_edges"}
_REMEDY = "Name the attributes as the model's arguments are named, or pass it too: step(batch, {}=...)."


@dataclass(frozen=True, kw_only=True, eq=False)
class Arguments:
    """What a function is called with.

    Attributes:
        signature: The function's.
        tensors: In order.
        structure: How they nest, by the names of the arguments, and what else the function is given.
        batch: The batch whose attributes they are; None if the caller names them.
    """

    signature: inspect.Signature
    tensors: Sequence[Tensor]
    structure: Structure
    batch: Any = None

    @classmethod
    def of(cls, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Arguments":
        """Those of a call `function(*args, **kwargs)`, the same whether it names a default or leaves it out.

        A function of tensors that is given one batch takes the attributes that its arguments are named after.

        Raises:
            TypeError: the function takes no such arguments.
            ValueError: an argument is not an attribute of the batch.
        """
        whole = args[0] if len(args) == 1 and is_graph_data(args[0]) else None
        args, kwargs = BatchArguments(signature)(args, kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            taken = ", ".join(map(str, signature.parameters.values()))
            raise TypeError(f"The model's forward({taken}) is called otherwise: {error}.") from None
        parts = [(one, given.get(name, one.default)) for name, one in signature.parameters.items()]
        # A default that is more than a plain value counts as left out, also if the call gives that very object.
        kept = {one.name: part for one, part in parts if part is not one.default or isinstance(part, SCALARS)}
        tensors, structure = flatten(kept)
        return cls(signature=signature, tensors=tensors, structure=structure, batch=None if args else whole)

    def like(self, structure: Structure) -> "Arguments":
        """The same arguments with the parts of dictionaries and graph data in the order of another nest."""
        tensors, own = reordered(self.structure, self.tensors, structure)
        return Arguments(signature=self.signature, tensors=tensors, structure=own)

    @property
    def graph_data(self) -> list[Any]:
        """The graph data among them, in order."""
        return list(templates(self.structure))

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Arguments":
        """The same arguments with other tensors, also of other shapes."""
        own, structure = flatten(unflatten(self.structure, tensors))
        return replace(self, tensors=own, structure=structure)

    def pass_to(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """Calls the function with these tensors in place of its own.

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
    """Names of a model's arguments that a batch holds; None if the model takes the batch itself.

    A model takes the batch itself if the only argument that it needs has a name of no attribute, such as `data`, or is
    called `batch`.

    Args:
        parameters: The model's.
        held: Names that the batch holds.
        remedy: What the message about missing arguments advises.
        given: Names of arguments that the caller gives.

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
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(
            f"The model takes {', '.join(missing)}, which the graphs do not have; they have "
            f"{', '.join(sorted(held))}. {remedy.format(missing[0])}"
        )
    return found


class BatchArguments:
    """Calls with one batch, as calls with the attributes of the batch that a function's arguments are named after.

    Other calls, and calls of a function that takes the batch itself, remain as they are.

    Args:
        signature: The function's.
        remedy: What the message about missing arguments advises.

    Example:
        >>> from torch_geometric.data import Data
        >>> BatchArguments(inspect.signature(lambda x, weight: x * weight))([Data(x="X")], {"weight": 2})
        ((), {'x': 'X', 'weight': 2})
    """

    def __init__(self, signature: inspect.Signature, remedy: str = _REMEDY) -> None:
        self._parameters, self._remedy = signature.parameters, remedy
        self._known: dict[tuple[Any, ...], dict[str, str] | None] = {}

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments of a call.

        Raises:
            ValueError: the function needs arguments that neither the batch nor the caller has.
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
        """Return the attribute of a batch for each argument that it gives; None if it is the argument itself."""
        held = _names_in(batch, self._parameters)
        names = taken_by_name(self._parameters.values(), held, self._remedy, given)
        if names is None:
            return None
        attributes = {name: name for name in names}
        optional = "batch_size" in names and self._parameters["batch_size"].default is not inspect.Parameter.empty
        if optional and "batch" in names and hasattr(type(batch), "num_graphs"):
            attributes["batch_size"] = "num_graphs"  # as layers of PyG call the number of graphs in `batch`
        if hasattr(type(batch), "refuse_names"):
            batch.refuse_names(attributes.values(), given)
        return attributes


def _names_in(batch: Any, wanted: Collection[str]) -> set[str]:
    """What a batch of PyG holds: attributes, `x_dict` and the like if there are types of nodes, and counts wanted."""
    named = ((name, number) for name, number in _COUNTS.items() if name in wanted)
    held = {name for name, number in named if isinstance(getattr(batch, number, None), int)}
    stores = [(store._key, store._mapping) for store in batch.stores]
    return held.union(*([name if key is None else f"{name}_dict" for name in own] for key, own in stores))
