"""The loader of seeds with sampled neighbors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Unpack

from popgeo.data.axes import Axis, Level, StoreKey, ends_of
from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.flat_store import FlatStore
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.epoch_choices import EpochChoices, GraphLoaderArguments, choices_from
from popgeo.loader.epoch_loader import loader_class
from popgeo.loader.large.subgraph import ONLY_EDGES, PartSampler, Subgraph
from popgeo.loader.large.subgraph_loader import SubgraphLoader, versions_of
from popgeo.loader.large.whole_graph import edge_indices, num_ends, open_graph, seeds_of
from popgeo.sampling import CompressedGraph, sample_neighbors

_REFUSED = {
    "transform": "batches of one shape cannot be transformed at will; transform the graph, or the batch in your loop",
    "transform_sampler_output": "the sample has the loader's own form",
    "neighbor_sampler": "popgeo samples by itself",
}


class NeighborArguments(GraphLoaderArguments, total=False):
    """Keyword arguments of seed loaders: `GraphLoaderArguments` and arguments of PyG's `NeighborLoader`.

    By default `fixed_size_options` are measured on sampled batches. `over_size_strategy` is Error or a strategy that
    trims. Of PyG's arguments, `is_sorted` and `filter_per_worker` change nothing; the last three are refused with a
    reason.
    """

    is_sorted: bool
    filter_per_worker: bool | None
    transform: None
    transform_sampler_output: None
    neighbor_sampler: None


class Neighborhood:
    """A compressed graph for each edge type, and the rules for sampling neighbors from it.

    Args:
        store: The graph, from `open_graph`.
        num_neighbors: Number of neighbors that each hop takes.
        time_attr: Name of the attribute with the times of nodes or of edges.
        weight_attr: Name of the edge attribute with sampling weights.
        how: Arguments of `FixedSizeNeighborLoader` with these names: `subgraph_type`, `directed`, `disjoint`, `replace`
            and `temporal_strategy`.

    Raises:
        ValueError: an index is out of range, or an attribute is missing.
    """

    def __init__(
        self, store: FlatStore, num_neighbors: Any, time_attr: str | None, weight_attr: str | None, **how: Any
    ) -> None:
        num_neighbors = num_neighbors.tolist() if hasattr(num_neighbors, "tolist") else num_neighbors
        if not isinstance(num_neighbors, list | tuple | Mapping):
            raise ValueError(f"num_neighbors is {num_neighbors!r}; pass a list with a number per hop, as [15, 10].")
        graphs: dict[Any, CompressedGraph] = {}
        self.time_of, weights = _attributes(store, time_attr), _attributes(store, weight_attr)
        for key, edge_index in edge_indices(store).items():
            edges = Axis(Level.EDGE, key)
            node_time = self.time_of.get(ends_of(edges)[0])
            edge_time = None if node_time is not None else self.time_of.get(edges)
            known: Any = {"edge_weight": weights.get(edges), "node_time": node_time, "edge_time": edge_time}
            graphs[key or ONLY_EDGES] = CompressedGraph.from_edge_index(edge_index, num_ends(store, key), **known)
        if not how.pop("directed"):
            how["subgraph_type"] = "induced"
        self.graphs, self.axes, self.num_neighbors, self.how = graphs, store.size_axes, num_neighbors, how
        self.repeats = how["disjoint"] or how["replace"] or str(how["subgraph_type"]).endswith("bidirectional")

    def around(
        self, seeds: Mapping[StoreKey, Tensor], times: Mapping[StoreKey, Tensor] | None, labels: Any, seed: int
    ) -> Subgraph:
        """Return the subgraph of the seeds and their sampled neighbors."""
        of_types: Any = {key or "": nodes for key, nodes in seeds.items()}
        seed_time: Any = None if times is None else {key or "": time for key, time in times.items()}
        sample = sample_neighbors(self.graphs, of_types, self.num_neighbors, seed_time=seed_time, seed=seed, **self.how)
        return Subgraph.from_sample(sample, self.axes, labels)


class NeighborSampler(PartSampler):
    """A sampler of the neighbors of seeds of one node type.

    Args:
        store: The graph, from `open_graph`.
        num_neighbors: Number of neighbors that each hop takes.
        seeds: The seeds, as `FixedSizeNeighborLoader` takes them.
        times: Time of each seed. [num_seeds]
        how: Further arguments of `Neighborhood`.

    Raises:
        ValueError: arguments contradict each other or the graph.
    """

    def __init__(self, store: FlatStore, num_neighbors: Any, seeds: Any, times: Tensor | None, **how: Any) -> None:
        self.neighborhood, self.times = Neighborhood(store, num_neighbors, **how), times
        self.node_type, self.seeds = seeds_of(store, seeds)
        self.seed_type = self.node_type
        self.num_items = len(self.seeds)
        # A seed that is listed twice becomes two nodes of a batch.
        self.repeats = self.neighborhood.repeats or len(self.seeds.unique()) < self.num_items
        if times is not None and times.shape != self.seeds.shape:
            raise ValueError(
                f"input_time has shape {tuple(times.shape)} for {self.num_items} seeds; give one time per seed."
            )

    def sample(self, ids: np.ndarray, seed: int) -> Subgraph:
        """Return the subgraph of the seeds `ids` and their sampled neighbors."""
        chosen = torch.from_numpy(ids)
        times = None if self.times is None else {self.node_type: self.times[chosen]}
        return self.neighborhood.around({self.node_type: self.seeds[chosen]}, times, {}, seed)


@loader_class
class FixedSizeNeighborLoader(SubgraphLoader):
    """A loader of nodes of a large graph with sampled neighbors, in batches with constant shapes.

    The seeds are the first `batch.batch_size` nodes of a batch; `batch.input_id` is their positions among all seeds. A
    last batch may have fewer, so a step should use `seeds_mask` [num_nodes], which is True for seeds. `n_id` and `e_id`
    are the numbers of nodes and edges in the whole graph. The samples are those of PyG's `NeighborLoader`, without an
    extension of PyG.

    Features stay in their place, in memory or in a memory map, in any precision: a batch reads only its own rows.

    Args:
        data: The graph, `Data` or `HeteroData`. Its attributes may be numpy arrays, such as a `numpy.memmap`. Or PyG's
            `(feature_store, graph_store)`: a batch then requests its own rows, ahead of the step.
        num_neighbors: Number of neighbors of each node that each hop takes, -1 for all, as `[15, 10]`; for a
            heterogeneous graph also a dictionary by edge type.
        input_nodes: The seeds: node numbers, a boolean mask, or None for all nodes; for a heterogeneous graph a node
            type, or a pair of the type and the seeds.
        input_time: Time of each seed, with `time_attr`: nothing newer is sampled for it. [num_seeds]
        replace: Whether neighbors are drawn with replacement.
        subgraph_type: `"directional"` keeps the sampled edges, `"bidirectional"` adds their reverses, `"induced"` takes
            all edges between sampled nodes.
        disjoint: Whether seeds share no nodes; `tree` [num_nodes] then is the seed of each node. Default: False, but
            True for seeds with times.
        temporal_strategy: `"uniform"` takes random neighbors that are not too new, `"last"` the latest of them.
        time_attr: Name of the attribute with the times of nodes or of edges.
        weight_attr: Name of the edge attribute with sampling weights.
        batch_size: Seeds of a batch.
        directed: False means `subgraph_type="induced"`, as in older versions of PyG.
        kwargs: Further arguments, such as `fixed_size_options`, `shuffle` and `num_workers`; see `NeighborArguments`.

    Raises:
        ValueError: arguments contradict each other or the graph, or the seeds do not fit the sizes.

    Example:
        >>> from torch_geometric.data import Data
        >>> ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
        >>> data = Data(x=torch.arange(6.0)[:, None], edge_index=ring)
        >>> loader = FixedSizeNeighborLoader(data, [1, 1], batch_size=2, seed=0)
        >>> batch = next(iter(loader))
        >>> batch.n_id.tolist(), batch.seeds_mask.tolist()
        ([0, 1, 5, 4, 0, 0, 0], [True, True, False, False, False, False, False])
        >>> loader
        FixedSizeNeighborLoader(6 seeds -> 3 batches of 7 nodes, 6 edges; 57.1% full)
    """

    _unit = "seeds"

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        batch_size: int = 1,
        *,
        directed: bool = True,
        **kwargs: Unpack[NeighborArguments],
    ) -> None:
        check_arguments(kwargs)
        layout = choices_from(LayoutChoices, kwargs)
        store = open_graph(data, layout.exclude_keys, layout.levels, (time_attr, weight_attr))
        how: dict[str, Any] = {"subgraph_type": subgraph_type, "directed": directed, "replace": replace}
        how |= {"disjoint": disjoint or input_time is not None, "temporal_strategy": temporal_strategy}
        how |= {"time_attr": time_attr, "weight_attr": weight_attr}
        sampler = NeighborSampler(store, num_neighbors, input_nodes, input_time, **how)
        self.node_type, self.num_neighbors = sampler.node_type, num_neighbors
        self._most_seeds = {sampler.node_type: min(batch_size, sampler.num_items)}
        choices, seen = choices_from(EpochChoices, kwargs), versions_of(data, store, time_attr, weight_attr)
        super().__init__(data, store, sampler, layout, choices, batch_size, kwargs, seen)


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise if a loader of seeds was given an argument that it cannot use.

    Raises:
        ValueError: there is such an argument; the message says why.
    """
    for name, why in _REFUSED.items():
        if arguments.get(name) is not None:
            raise ValueError(f"{name} is not taken: {why}.")
    if arguments.get("over_size_strategy") in (OverSizeStrategy.Skip, OverSizeStrategy.Skip.name):
        raise ValueError(
            "OverSizeStrategy.Skip cannot leave a batch of seeds out, since its size is known only once it is sampled. "
            "Pass OverSizeStrategy.TrimNodesAndEdges, which keeps all seeds, or Error."
        )


def _attributes(store: FlatStore, name: str | None) -> dict[Axis, Tensor]:
    """Return the attribute with a name for each node type or edge type that has it."""
    found = {a.axis: a.tensor for a in store.attributes if a.name == name and a.is_tensor}
    if name is not None and not any(axis.level is not Level.GRAPH for axis in found):
        known = sorted({f"{a.name} of {a.axis.label}" for a in store.attributes})
        raise ValueError(f"No attribute {name!r} has a row for each node, or for each edge; there are {known}.")
    return found
