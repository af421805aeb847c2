"""PyG's graphs as PopTorch takes them apart, PyG while a model is compiled, and interfaces of masks."""

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
    """A function of which only the first call does anything; later ones return None.

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
    """Takes graphs and batches of PyG apart: `Data` by name, `HeteroData` whole graph first, then nodes, then edges.

    Example:
        >>> import torch
        >>> parser, graph = PyGArgsParser(), Data(y=torch.ones(1), x=torch.zeros(2, 1), name="water")
        >>> [tuple(tensor.shape) for tensor in parser.yieldTensors(graph)]
        [(2, 1), (1,)]
        >>> parser.reconstruct(graph, iter([torch.ones(2, 1), torch.zeros(1)])).y
        tensor([0.])
    """

    def yieldTensors(self, struct: BaseData) -> Iterator[Tensor]:
        """The tensors, in an order that `reconstruct` knows.

        Raises:
            ValueError: not a graph or batch of PyG.
        """
        for store, name in _places(struct):
            yield store[name]

    def reconstruct(self, original_structure: BaseData, tensor_iterator: Iterable[Tensor]) -> Any:
        """The same with other tensors, in the order of `yieldTensors`; all else stays as it is.

        Raises:
            ValueError: not a graph or batch of PyG.
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
    """Lets PyG refuse what has no fixed shape, with the argument that it needs, while the block runs.

    Without a block, `replace` begins and `restore` ends.

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
        """Begins."""
        torch_geometric.experimental.set_experimental_mode(True, "disable_dynamic_shapes")

    def restore(self) -> None:
        """Ends."""
        torch_geometric.experimental.set_experimental_mode(False, "disable_dynamic_shapes")

    def __enter__(self) -> "SubstitutionManager":
        self.replace()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.restore()


@call_once
def register() -> None:
    """Has executors of PopTorch compile models in the block above."""
    manager = SubstitutionManager()
    registerPreCompileHook(manager.replace)
    registerPostCompileHook(manager.restore)


Entries = Tensor | tuple[Tensor, ...]
Mask = Tensor | None
Layer = Callable[..., Any]


class Masker(ABC):
    """What a model calls to mask the entries that padding has added."""

    @abstractmethod
    def node_masker(self, node_entries: Entries, mask: Mask = None) -> Entries:
        """Masks entries of nodes. [num_nodes, ...]"""

    @abstractmethod
    def edge_masker(self, edge_entries: Entries, mask: Mask = None) -> Entries:
        """Masks entries of edges. [num_edges, ...]"""

    @abstractmethod
    def graph_masker(self, graph_entries: Entries, mask: Mask = None) -> Entries:
        """Masks entries of graphs. [num_graphs, ...]"""


class NoMasker(Masker):
    """Masks nothing.

    Example:
        >>> NoMasker().node_masker("entries")
        'entries'
    """

    def _as_they_are(self, entries: Entries, mask: Mask = None) -> Entries:
        """The entries as they are."""
        return entries

    node_masker = edge_masker = graph_masker = _as_they_are  # type: ignore[assignment]  # their words differ


def _masked_first(name: str) -> Callable[["PreLayerMasker", Layer], Layer]:
    def of_layer(self: "PreLayerMasker", layer: Layer) -> Layer:
        """The layer, whose arguments are masked first; it takes `mask=`."""
        return lambda *args, mask=None: layer(*getattr(self.masker, name)(args, mask=mask))

    return of_layer


class LayerMasker:
    """What turns a layer into one whose arguments are masked first, by methods named as the masker's.

    Args:
        masker: Masks the arguments of a layer, given as a tuple.
    """

    def __init__(self, masker: Masker) -> None:
        self.masker = masker


class PreLayerMasker(LayerMasker):
    """Masks the arguments of layers with a `Masker`.

    Example:
        >>> PreLayerMasker(NoMasker()).node_masker(max)(1, 2, mask=None)
        2
    """

    node_masker, edge_masker, graph_masker = map(_masked_first, ("node_masker", "edge_masker", "graph_masker"))
