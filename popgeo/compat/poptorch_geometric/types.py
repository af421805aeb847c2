"""How PyG's graphs and batches are taken apart into tensors, and put together again."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import BaseData

from popgeo.compat.poptorch.call_arguments import ICustomArgParser


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
