"""PyG's graphs as arguments of PopTorch models, PyG's mode during compilations, and interfaces of masks."""

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch_geometric
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.data import BaseData

from popgeo.compat.poptorch.call_arguments import ICustomArgParser
from popgeo.compat.poptorch.compiling import registerPostCompileHook, registerPreCompileHook

DataBatch = type(Batch(_base_cls=Data))
HeteroDataBatch = type(Batch(_base_cls=HeteroData))


def call_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that works at its first call. Later calls return None.

    Example:
        >>> begin = call_once(lambda: "begun")
        >>> begin(), begin()
        ('begun', None)
    """
    left = [function]

    @functools.wraps(function)
    def once(*args: Any, **kwargs: Any) -> Any:
        return left.pop()(*args, **kwargs) if left else None

    return once


class PyGArgsParser(ICustomArgParser):
    """Parser of PyG's graphs and batches: `Data` sorted by name, `HeteroData` in the order graph, nodes, edges.

    Example:
        >>> import torch
        >>> parser, graph = PyGArgsParser(), Data(y=torch.ones(1), x=torch.zeros(2, 1), name="water")
        >>> [tuple(tensor.shape) for tensor in parser.yieldTensors(graph)]
        [(2, 1), (1,)]
        >>> parser.reconstruct(graph, iter([torch.ones(2, 1), torch.zeros(1)])).y
        tensor([0.])
    """

    def yieldTensors(self, struct: BaseData) -> Iterator[Tensor]:
        """Yield the tensors, in the order of `reconstruct`.

        Raises:
            ValueError: `struct` is not a graph or batch of PyG.
        """
        for store, name in _places(struct):
            yield store[name]

    def reconstruct(self, original_structure: BaseData, tensor_iterator: Iterable[Tensor]) -> Any:
        """Return the same graph with other tensors, in the order of `yieldTensors`.

        Raises:
            ValueError: `original_structure` is not a graph or batch of PyG.
        """
        tensors = iter(tensor_iterator)
        made = copy.copy(original_structure)
        for store, name in _places(made):
            store[name] = next(tensors)
        return made


def _places(graph: Any) -> list[tuple[Any, str]]:
    if not isinstance(graph, BaseData):
        raise ValueError(f"Unsupported data type: {type(graph)}. Pass a graph or a batch of PyG.")
    places = [(store, name) for store in graph.stores for name, value in store.items() if isinstance(value, Tensor)]
    return sorted(places, key=lambda place: place[1]) if isinstance(graph, Data) else places


class SubstitutionManager:
    """Context that makes PyG raise an error for dynamic shapes. The error names the missing argument.

    `replace` and `restore` enter and leave it without a block.

    Example:
        >>> import torch
        >>> from torch_geometric.utils import to_dense_batch
        >>> with SubstitutionManager():
        ...     to_dense_batch(torch.ones(2, 1), torch.tensor([0, 1]))
        Traceback (most recent call last):
            ...
        ValueError: Dynamic shapes disabled. Argument 'batch_size' needs to be set
    """

    def replace(self) -> None:
        """Enter the mode."""
        torch_geometric.experimental.set_experimental_mode(True, "disable_dynamic_shapes")

    def restore(self) -> None:
        """Leave the mode."""
        torch_geometric.experimental.set_experimental_mode(False, "disable_dynamic_shapes")

    def __enter__(self) -> "SubstitutionManager":
        self.replace()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.restore()


@call_once
def register() -> None:
    """Enter the mode of `SubstitutionManager` during each compilation."""
    manager = SubstitutionManager()
    registerPreCompileHook(manager.replace)
    registerPostCompileHook(manager.restore)


Entries = Tensor | tuple[Tensor, ...]
Mask = Tensor | None
Layer = Callable[..., Any]


class Masker(ABC):
    """Interface of functions that mask padding in a model."""

    @abstractmethod
    def node_masker(self, node_entries: Entries, mask: Mask = None) -> Entries:
        """Mask entries of nodes.

        Args:
            node_entries: Entries. [num_nodes, ...]
            mask: True for real nodes. [num_nodes]
        """

    @abstractmethod
    def edge_masker(self, edge_entries: Entries, mask: Mask = None) -> Entries:
        """Mask entries of edges.

        Args:
            edge_entries: Entries. [num_edges, ...]
            mask: True for real edges. [num_edges]
        """

    @abstractmethod
    def graph_masker(self, graph_entries: Entries, mask: Mask = None) -> Entries:
        """Mask entries of graphs.

        Args:
            graph_entries: Entries. [num_graphs, ...]
            mask: True for real graphs. [num_graphs]
        """


class NoMasker(Masker):
    """Masker that masks nothing.

    Example:
        >>> NoMasker().node_masker("entries")
        'entries'
    """

    def _unchanged(self, entries: Entries, mask: Mask = None) -> Entries:
        """Return the entries unchanged."""
        return entries

    node_masker = edge_masker = graph_masker = _unchanged  # type: ignore[assignment]  # argument names differ


def _masked_first(name: str) -> Callable[["PreLayerMasker", Layer], Layer]:
    def of_layer(self: "PreLayerMasker", layer: Layer) -> Layer:
        """Return a layer that masks its arguments first. It takes `mask=`."""
        return lambda *args, mask=None: layer(*getattr(self.masker, name)(args, mask=mask))

    return of_layer


class LayerMasker:
    """Base class of maskers of a layer's arguments. Its methods have the names of the masker's methods.

    Args:
        masker: Masker of a layer's arguments, given as a tuple.
    """

    def __init__(self, masker: Masker) -> None:
        self.masker = masker


class PreLayerMasker(LayerMasker):
    """Masker of a layer's arguments with a `Masker`.

    Example:
        >>> PreLayerMasker(NoMasker()).node_masker(max)(1, 2, mask=None)
        2
    """

    node_masker, edge_masker, graph_masker = map(_masked_first, ("node_masker", "edge_masker", "graph_masker"))
