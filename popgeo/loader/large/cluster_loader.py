"""The loader of clusters of a large graph, with all edges inside and between the clusters, as in Cluster-GCN."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.loader import ClusterData
from typing_extensions import Unpack

from popgeo.data.axes import Axis, Level
from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.data.trim import OverSizeStrategy
from popgeo.loader.epoch_choices import EpochChoices, LoaderArguments, choices_from
from popgeo.loader.epoch_loader import loader_class
from popgeo.loader.large.pack_clusters import ClusterSizes, pack_clusters
from popgeo.loader.large.subgraph import PartSampler, Subgraph
from popgeo.loader.large.subgraph_loader import SubgraphLoader, versions_of
from popgeo.loader.large.whole_graph import edge_indices, num_rows, open_graph
from popgeo.packing import Packs
from popgeo.sampling import CompressedGraph, partition, sample_neighbors

_NODES, _EDGES = Axis(Level.NODE, None), Axis(Level.EDGE, None)
_DRAWS, _ROOM = 200, 1.02


class ClusterSampler(PartSampler):
    """A sampler of clusters, with the edges inside and between them.

    Args:
        graph: The whole graph.
        parts: Cluster of each node. int64 [num_nodes]
        num_parts: Number of clusters.
    """

    around_seeds = False

    def __init__(self, graph: CompressedGraph, parts: Tensor, num_parts: int) -> None:
        self.graph, self.num_items = graph, num_parts
        self.nodes = parts.argsort(stable=True)
        self.ptr = np.concatenate([[0], torch.bincount(parts, minlength=num_parts).cumsum(0).numpy()])

    def sample(self, ids: np.ndarray, seed: int) -> Subgraph:
        """Return all nodes of some clusters and all edges between them."""
        own = [self.nodes[self.ptr[i] : self.ptr[i + 1]] for i in ids.tolist()]
        nodes = torch.cat([*own, self.nodes[:0]])
        sample = sample_neighbors(self.graph, nodes, [], subgraph_type="induced", seed=seed)
        # No node is a seed: trimming may remove any node, and all have the same distance.
        rows = {_NODES: sample.node, _EDGES: sample.edge}
        return Subgraph(rows=rows, edge_index={_EDGES: sample.edge_index}, hops={_NODES: (0, len(nodes))})


@loader_class
class FixedSizeClusterLoader(SubgraphLoader):
    """A loader of clusters of a large graph, with the edges inside and between them, in batches with constant shapes.

    Clusters are shuffled in every epoch, and each batch is filled with clusters (arXiv:1905.07953). `n_id` and `e_id`
    are the numbers of nodes and edges in the whole graph.

    Args:
        cluster_data: PyG's `ClusterData`; or the graph, or PyG's `(feature_store, graph_store)`, with `num_parts` or
            `parts`.
        fixed_size_options: Sizes of a batch. Default: sizes for about `batch_size` clusters.
        batch_size: Approximate number of clusters in a batch. It has no effect next to `fixed_size_options`.
        over_size_strategy: Treatment of a cluster that is larger than a batch.
        add_pad_masks: Whether batches carry masks.
        options: Number of batches in one item, or an object that has it; see `EpochChoices`.
        num_parts: Number of clusters to make of a graph; see `popgeo.sampling.partition`.
        parts: Cluster of each node, in place of `num_parts`. [num_nodes]
        shuffle: Whether each epoch has a random order. Default: True, unless `sampler` decides the order.
        seed: Number that decides every order and every draw; see `EpochChoices`.
        follow_batch: Attributes to add an assignment vector for.
        exclude_keys: Attributes to leave out.
        kwargs: Further arguments; `EpochChoices` and `LayoutChoices` explain those that are not torch's.

    Raises:
        ValueError: arguments contradict each other or the graph, or a cluster does not fit.

    Example:
        >>> from torch_geometric.data import Data
        >>> path = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
        >>> data = Data(x=torch.arange(6.0)[:, None], edge_index=path)
        >>> parts = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> loader = FixedSizeClusterLoader(data, parts=parts, batch_size=2, shuffle=False, seed=0)
        >>> [batch.n_id[batch.nodes_mask].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
        >>> loader
        FixedSizeClusterLoader(3 clusters -> 2 batches of 5 nodes, 3 edges; 60.0% full)
    """

    _unit = "clusters"

    def __init__(
        self,
        cluster_data: Any,
        fixed_size_options: FixedSizeOptions | None = None,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy | str = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool = True,
        options: Any = None,
        *,
        num_parts: int | None = None,
        parts: Tensor | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        **kwargs: Unpack[LoaderArguments],
    ) -> None:
        shuffle = shuffle and "sampler" not in kwargs
        choices = choices_from(EpochChoices, kwargs, shuffle=shuffle, seed=seed, options=options)
        layout = choices_from(
            LayoutChoices, kwargs, add_pad_masks=add_pad_masks, follow_batch=follow_batch, exclude_keys=exclude_keys
        )
        data, parts = _graph_and_parts(cluster_data, num_parts, parts)
        store = open_graph(data, layout.exclude_keys, layout.levels)
        if store.is_hetero:
            raise ValueError("Clusters need a graph with one node type. For HeteroData use FixedSizeNeighborLoader.")
        edge_index = edge_indices(store)[None]
        if parts is None and num_parts is not None:
            parts = partition(edge_index, num_parts, num_nodes=num_rows(store, _NODES), seed=seed or 0)
        assert parts is not None  # one of the two is given
        parts, num_parts = _checked(store, parts)
        self.cluster_sizes = ClusterSizes.count(edge_index, parts, num_parts)
        graph = CompressedGraph.from_edge_index(edge_index, num_rows(store, _NODES))
        self.cluster_data, sampler = cluster_data, ClusterSampler(graph, parts, num_parts)
        sizes = {"fixed_size_options": fixed_size_options, "over_size_strategy": over_size_strategy}
        seen = versions_of(cluster_data.data if isinstance(cluster_data, ClusterData) else data, store)
        super().__init__(data, store, sampler, layout, choices, batch_size, {**kwargs, **sizes}, seen)

    def _together(self, order: np.ndarray) -> Packs:
        limits = self.fixed_size_options.limits((_NODES, _EDGES)).tolist()
        return pack_clusters(order, self.cluster_sizes, (limits[0], limits[1]), self.over_size_strategy)

    def _measured(self, store: FlatStore, seed: int) -> FixedSizeOptions:
        """Return sizes that fit the largest cluster, and `batch_size` random clusters in nine of ten draws."""
        sizes, rng = self.cluster_sizes, np.random.default_rng(seed)
        count = min(self._batch_size, self.part_sampler.num_items)
        draws = [sizes.of(rng.choice(self.part_sampler.num_items, count, replace=False)) for _ in range(_DRAWS)]
        nodes, edges = (_ROOM * np.quantile(draws, 0.9, axis=0)).astype(int).tolist()
        nodes, edges = max(nodes, int(sizes.num_nodes.max())), max(edges, int(sizes.num_edges.max()))
        everything = sizes.of(np.arange(self.part_sampler.num_items))
        return FixedSizeOptions(min(nodes, everything[0]) + 1, min(edges, everything[1]), 2)

    @property
    def num_skipped(self) -> int:
        """Number of clusters that `OverSizeStrategy.Skip` leaves out of the current or next epoch."""
        return len(self.plan().skipped)


def _graph_and_parts(data: Any, num_parts: int | None, parts: Tensor | None) -> tuple[Any, Tensor | None]:
    """Return the graph, and the cluster of each node if clusters are given."""
    if not isinstance(data, ClusterData):
        if (num_parts is None) == (parts is None):
            raise ValueError("Pass either num_parts, the number of clusters, or parts, the cluster of each node.")
        return data, parts
    if num_parts is not None or parts is not None:
        raise ValueError("ClusterData has its clusters already; leave num_parts and parts out.")
    # PyG has sorted the nodes by cluster; `n_id` has the original number of each node.
    own, graph = data.partition, data.data.__copy__()
    outer = torch.repeat_interleave(own.indptr.diff())
    graph.edge_index = torch.stack([outer, own.index] if data.sparse_format == "csr" else [own.index, outer])
    graph.n_id, graph.e_id = own.node_perm, own.edge_perm
    return graph, torch.repeat_interleave(own.partptr.diff())


def _checked(store: FlatStore, parts: Tensor) -> tuple[Tensor, int]:
    """Return the cluster of each node, numbered without empty clusters, and the number of clusters."""
    num_nodes = num_rows(store, _NODES)
    if not num_nodes:
        raise ValueError("The graph has no nodes; clusters need at least one.")
    if parts.shape != (num_nodes,) or parts.is_floating_point() or int(parts.min()) < 0:
        raise ValueError(f"parts is {parts.dtype} {[*parts.shape]}; pass {num_nodes} numbers of 0 or more.")
    # A partition may leave parts empty; an empty batch would train nothing.
    return torch.unique(parts, return_inverse=True)[1], len(torch.unique(parts))
