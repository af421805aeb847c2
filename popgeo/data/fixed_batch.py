"""The class of batches of fixed size: PyG's attributes and methods for graphs and seeds leave padding out."""

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch_geometric.data import Batch
from torch_geometric.data import batch as batches_of_pyg
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from popgeo.data.attribute_names import SPLIT_MASKS
from popgeo.data.counted_slots import warn_of_counted_slots
from popgeo.data.super_batch import split

if TYPE_CHECKING:
    from torch_geometric.data import Batch as _Words
else:
    _Words = object  # the next base of each class of batches is PyG's own class


class _CountedStore:
    """A store of attributes with the numbers of its real rows and with its seeds.

    Private attributes, each with one entry per batch of an item:
        _real: Numbers of real graphs, nodes and edges.
        _seeds: Places of the seeds among all seeds of the loader, for the type with seeds.
        _around_seeds: Whether the loader samples neighbors around the seeds.
    """

    @property
    def num_real_nodes(self) -> int:
        """The number of nodes without padding."""
        return _total(self, "nodes", "nodes_mask")

    @property
    def num_real_edges(self) -> int:
        """The number of edges without padding."""
        return _total(self, "edges", "edges_mask")

    @property
    def batch_size(self) -> int:
        """The number of seeds of this batch. Seeds of a neighbor loader are the first nodes of the batch."""
        own = vars(self)["_mapping"]
        return own["batch_size"] if "batch_size" in own else len(self.input_id)

    @property
    def input_id(self) -> Tensor:
        """The places of this batch's seeds among all seeds of the loader, int64 [batch_size].

        Raises:
            AttributeError: no rows of this store are seeds.
            ValueError: a step is captured, or the item holds several batches.
        """
        own = vars(self)
        if "input_id" in own["_mapping"]:
            return own["_mapping"]["input_id"]
        if "_seeds" not in own:
            raise AttributeError("input_id")
        _require_values(self, "batch_size and input_id", "seeds_mask, or edge_label_mask of links")
        if len(own["_seeds"]) > 1:
            raise ValueError(
                f"The item holds {len(own['_seeds'])} batches, each with its seeds, so batch_size and input_id "
                "name no rows. Use seeds_mask, or edge_label_mask of links."
            )
        return torch.from_numpy(own["_seeds"][0])


class BatchStorage(_CountedStore, GlobalStorage):
    """The attributes of a batch of graphs without types."""


class BatchNodeStorage(_CountedStore, NodeStorage):
    """The attributes of a node type of a batch."""


class BatchEdgeStorage(_CountedStore, EdgeStorage):
    """The attributes of an edge type of a batch."""


STORAGES: dict[type, type] = {
    GlobalStorage: BatchStorage,
    NodeStorage: BatchNodeStorage,
    EdgeStorage: BatchEdgeStorage,
}
"""The class of a batch's store for each class of PyG's stores."""


class FixedSizeBatch(_Words):
    """The interface of PyG's `Batch` for a batch of fixed size.

    The length, the indices and `to_data_list` cover the real graphs. `num_graphs`, `num_nodes` and `num_edges` count
    slots, because models need constant numbers.
    """

    @property
    def num_real_graphs(self) -> int:
        """The number of graphs without padding."""
        return _total(_main(self), "graphs", "graphs_mask")

    @property
    def num_real_nodes(self) -> int:
        """The number of nodes of all types without padding."""
        return sum(store.num_real_nodes for store in self.node_stores)

    @property
    def num_real_edges(self) -> int:
        """The number of edges of all types without padding."""
        return sum(store.num_real_edges for store in self.edge_stores)

    @property
    def num_graphs(self) -> int:
        """The number of slots for graphs."""
        warn_of_counted_slots("num_graphs", "num_real_graphs")
        return self._num_graphs

    @property
    def num_nodes(self) -> int | None:
        """The number of slots for nodes of all types."""
        warn_of_counted_slots("num_nodes", "num_real_nodes")
        counts = [store.num_nodes for store in self.node_stores]  # torch.compile does not trace PyG's own
        return None if None in counts else sum(counts)

    @property
    def num_edges(self) -> int:
        """The number of slots for edges of all types."""
        warn_of_counted_slots("num_edges", "num_real_edges")
        return sum(store.num_edges for store in self.edge_stores)

    @property
    def batch_size(self) -> int:
        """The number of seeds of a batch of a large graph; for other batches the number of slots for graphs."""
        seeds = _main(self) if "batch_size" in _main(self) else _store_of_seeds(self)
        if seeds is not None:
            return seeds.batch_size
        warn_of_counted_slots("batch_size", "num_real_graphs")
        return self._num_graphs

    def __len__(self) -> int:
        return self.num_real_graphs

    def get_example(self, idx: int) -> Any:
        """Return a real graph; negative numbers count from the end.

        Raises:
            IndexError: the batch has fewer real graphs.
        """
        number, count = int(idx), len(self)
        if not -count <= number < count:
            raise IndexError(
                f"Graph {number} was asked for; the batch has {count} real graphs, and the rest is padding."
            )
        if "_mini_batches" in vars(_main(self)):
            return self.to_data_list()[number]
        return super().get_example(number % count)

    def index_select(self, idx: Any) -> list[Any]:
        """Return some real graphs, as PyG's method of the same name."""
        return super().index_select(list(range(len(self))[idx]) if isinstance(idx, slice) else idx)

    def to_data_list(self) -> list[Any]:
        """Return the real graphs, without padding."""
        if "_mini_batches" in vars(_main(self)):
            return [graph for part in split(self) for graph in part.to_data_list()]
        return [self.get_example(i) for i in range(len(self))]

    def refuse_names(self, names: Collection[str], given: Collection[str]) -> None:
        """Raise if a model takes an attribute that PyG uses for seeds, but that covers other rows in this batch.

        Args:
            names: Attributes that a model takes from the batch.
            given: Arguments that the caller passes.

        Raises:
            ValueError: the model takes `batch_size`, or a mask of a split although the batch has sampled neighbors.
        """
        seeds = _store_of_seeds(self)
        if seeds is None or not {"seeds_mask", "seeds_mask_dict"}.isdisjoint([*names, *given]):
            return
        if "batch_size" in names:
            raise ValueError(
                "The model takes batch_size, the number of seeds, which is smaller in the last batch; the shapes of a "
                "compiled step never change. Take seeds_mask instead: cross_entropy(out, y, seeds_mask)."
            )
        found = sorted(name for name in names if name.removesuffix("_dict") in SPLIT_MASKS)
        if found and vars(seeds)["_around_seeds"]:
            own = "seeds_mask_dict" if found[0].endswith("_dict") else "seeds_mask"
            raise ValueError(
                f"The model takes {found[0]} of a batch with seeds. It is True for sampled neighbors, too, but their "
                f"own neighbors are missing. Pass the seeds: step(batch, {found[0]}=batch.{own}). "
                "Or read both masks in the model, and join them."
            )

    def __reduce__(self) -> Any:
        return _empty, (self.__class__.__bases__[-1],), self.__dict__.copy()  # PyG's method uses the first base


@functools.cache
def batch_class(kind: type) -> type:
    """Return the class of batches for a class of graphs; it inherits from PyG's class and has the same name."""
    batch = Batch(_base_cls=kind)
    if not isinstance(batch, kind):  # PyG caches one class per name, here of a different class with this name
        del vars(batches_of_pyg)[type(batch).__name__]
        batch = Batch(_base_cls=kind)
    of_pyg = type(batch)
    return type(of_pyg.__name__, (FixedSizeBatch, of_pyg, kind), {"__module__": __name__})


def _empty(kind: type) -> Any:
    return object.__new__(batch_class(kind))


def _main(batch: Any) -> BaseStorage:
    return batch.stores[0]


def _store_of_seeds(batch: Any) -> Any:
    return next((store for store in batch.stores if "_seeds" in vars(store)), None)


def _total(store: Any, what: str, mask: str) -> int:
    _require_values(store, f"num_real_{what}", mask)
    return sum(one.get((what, store._key), 0) for one in vars(store)["_real"])


def _require_values(store: Any, asked: str, remedy: str) -> None:
    """Raise if a step for all batches is captured, because the numbers of one batch would become constants."""
    if any(isinstance(value, FakeTensor) for value in vars(store)["_mapping"].values()):
        raise ValueError(
            f"A compiled step serves every batch, but batches differ in {asked}. Use {remedy} in the model."
        )
