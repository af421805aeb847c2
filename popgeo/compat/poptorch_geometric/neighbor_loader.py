"""Loaders of seeds and their sampled neighbors over torch's and PopTorch's `DataLoader`."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from popgeo.compat.poptorch_geometric.collate import FixedSizeCollater
from popgeo.compat.poptorch_geometric.dataloader import WholeCallLoader
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.data.axes import Axis, Level
from popgeo.data.flat_store import FlatStore
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.large.neighbor_loader import NeighborSampler
from popgeo.loader.large.subgraph import Subgraph
from popgeo.loader.large.whole_graph import open_graph

_HOW: dict[str, Any] = {"replace": False, "disjoint": False, "subgraph_type": "directional", "directed": True}
_HOW |= {"temporal_strategy": "uniform", "time_attr": None, "weight_attr": None}
_NOT_TAKEN = ("transform_sampler_output", "neighbor_sampler")
_IGNORED = ("is_sorted", "filter_per_worker")  # arguments of PyG without an effect
_SEEDS = "seeds_to_keep"  # node attribute during padding; PyG would increment a name with "batch"


class PyGFixedSizeNeighborLoader(torch.utils.data.DataLoader[Any]):
    """Loader of nodes of a large graph with sampled neighbors, in batches of one shape.

    The seeds are the first nodes of a batch, and trimming keeps them. It needs no extension of PyG.

    Args:
        data: Graph, `Data` or `HeteroData`.
        num_neighbors: Neighbors per node and hop, or a dictionary with them per edge type. -1 takes all neighbors.
        input_nodes: Seeds, as in PyG's `NeighborLoader`.
        input_time: Time of each seed, for `time_attr`.
        transform: Function that changes each sample before padding.
        batch_size: Seeds of a batch.
        over_size_strategy: Treatment of a sample that does not fit.
        fixed_size_options: Sizes of a batch. Default: measured on up to 1000 samples.
        add_pad_masks: Whether batches have masks.
        follow_batch: Attributes that get an assignment vector.
        exclude_keys: Attributes to omit.
        kwargs: Choices of `popgeo.loader.FixedSizeNeighborLoader`: `replace`, `disjoint`, `subgraph_type`, `directed`,
            `temporal_strategy`, `time_attr`, `weight_attr`; and arguments of torch's `DataLoader`, such as `shuffle`.

    Raises:
        ValueError: Arguments contradict each other or the graph.

    Example:
        >>> ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
        >>> data = Data(x=torch.arange(6.0)[:, None], edge_index=ring)
        >>> options = FixedSizeOptions(num_nodes=8, num_edges=6)
        >>> loader = PyGFixedSizeNeighborLoader(data, [1, 1], batch_size=2, fixed_size_options=options)
        >>> batch = next(iter(loader))
        >>> batch.n_id.tolist(), batch.batch_size, batch.input_id.tolist()
        ([0, 1, 5, 4, 0, 0, 0, 0], 2, [0, 1])
    """

    def __init__(
        self, data: Data | HeteroData, num_neighbors: Any, input_nodes: Any = None, input_time: Tensor | None = None,
        *, transform: Callable[[Any], Any] | None = None, batch_size: int = 1,
        fixed_size_options: FixedSizeOptions | None = None,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges, add_pad_masks: bool | None = False,
        follow_batch: Sequence[str] | None = None, exclude_keys: Sequence[str] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        for name in _NOT_TAKEN:
            if kwargs.pop(name, None) is not None:
                raise ValueError(f"{name} is not supported, since popgeo samples itself. Leave it out.")
        how = {name: kwargs.pop(name, default) for name, default in _HOW.items()}
        how["disjoint"] = how["disjoint"] or input_time is not None
        kwargs = {name: given for name, given in kwargs.items() if name not in _IGNORED}
        self._whole = open_graph(data, exclude_keys, None)
        self._neighbors = NeighborSampler(self._whole, num_neighbors, input_nodes, input_time, **how)
        self.input_type, num_seeds = self._neighbors.node_type, self._neighbors.num_items
        self._transform, self._mini_batch_size = transform, batch_size
        self.fixed_size_options = fixed_size_options or self._measured(num_seeds)
        chosen = {"follow_batch": follow_batch, "exclude_keys": exclude_keys, "protect": _SEEDS}
        self.fixed_size_collater = FixedSizeCollater.of_loader(
            self.fixed_size_options, over_size_strategy, add_pad_masks, **chosen
        )
        super().__init__(dataset=range(num_seeds), batch_size=batch_size, collate_fn=self._collate, **kwargs)  # type: ignore[arg-type]

    def nativeCollate(self, index: Any) -> Any:
        """Sample the neighbors of some seeds, without padding.

        Args:
            index: Indices of seeds in the loader's dataset.

        Returns:
            A graph with `n_id`, `e_id`, `input_id` and `batch_size`.
        """
        ids = torch.as_tensor(index, dtype=torch.int64).flatten()
        seed = int(torch.randint(2**62, ()))  # follows torch.manual_seed
        sample = _as_graph(self._whole, self._neighbors.sample(ids.numpy(), seed))
        place = self._of_seeds(sample)
        place.input_id, place.batch_size = ids, len(ids)
        return sample if self._transform is None else self._transform(sample)

    def fixedSizeCollate(self, sample: Any) -> Batch:
        """Pad a sample to a batch of fixed size. `batch_size` and `input_id` stay unchanged.

        Raises:
            FixedSizeError: The sample does not fit.
        """
        sample = copy.copy(sample)
        place = self._of_seeds(sample)
        kept = {name: place[name] for name in ("batch_size", "input_id") if name in place}
        for name in kept:
            del place[name]
        for store in sample.node_stores:
            seeds = kept.get("batch_size", 0) if store._key == self.input_type else 0
            store[_SEEDS] = torch.arange(store.num_nodes) < seeds
        batch = self.fixed_size_collater([sample])
        for store in batch.node_stores:
            del store[_SEEDS]
        self._of_seeds(batch).update(kept)
        return batch

    def _of_seeds(self, graph: Any) -> Any:
        """Return the graph, or its store of the seeds' type."""
        return graph if self.input_type is None else graph[self.input_type]

    def _collate(self, index: Any) -> Batch:
        return self.fixedSizeCollate(self.nativeCollate(index))

    def _measured(self, num_seeds: int) -> FixedSizeOptions:
        starts = range(0, num_seeds, self._mini_batch_size)
        ids = (range(start, min(start + self._mini_batch_size, num_seeds)) for start in starts)
        return FixedSizeOptions.from_loader(self.nativeCollate(list(part)) for part in ids)


class FixedSizeNeighborLoader(PyGFixedSizeNeighborLoader, WholeCallLoader):
    """Loader of seeds with sampled neighbors and masks; see `PyGFixedSizeNeighborLoader` and `WholeCallLoader`."""

    def __init__(self, *args: Any, add_pad_masks: bool | None = True, **kwargs: Any) -> None:
        super().__init__(*args, add_pad_masks=add_pad_masks, **kwargs)


def _as_graph(whole: FlatStore, part: Subgraph) -> Any:
    """Return a part of a large graph as an object of PyG."""
    graph = whole.graph_class()
    stores: dict[Any, Any] = {key: graph[key] for key in (*whole.node_types, *whole.edge_types) if key is not None}
    for attribute in whole.attributes:
        place = stores.get(attribute.store, graph)
        if attribute.name == "edge_index" and attribute.axis in part.edge_index:
            place.edge_index = part.edge_index[attribute.axis]
        elif attribute.axis in part.rows and attribute.is_tensor:
            place[attribute.name] = attribute.tensor.index_select(attribute.dim, part.rows[attribute.axis])
        else:
            place[attribute.name] = attribute.tensor if attribute.is_tensor else attribute.values[0]
    for axis, rows in part.rows.items():
        stores.get(axis.store, graph)["n_id" if axis.level is Level.NODE else "e_id"] = rows
    for key in whole.states_num_nodes:
        stores.get(key, graph).num_nodes = len(part.rows[Axis(Level.NODE, key)])
    for axis, trees in part.trees.items():
        stores.get(axis.store, graph)["batch"] = trees
    return graph
