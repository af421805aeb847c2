"""Grouping clusters into batches that also contain the edges between the clusters."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from popgeo.data.trim import OverSizeStrategy
from popgeo.packing import Packs

_WINDOW = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterSizes:
    """Nodes and edges of clusters, and the edges between them.

    Args:
        num_nodes: Nodes of each cluster. int64 [num_clusters]
        num_edges: Edges inside each cluster. int64 [num_clusters]
        between: Edges between two clusters, in either direction; symmetric. int64 [num_clusters, num_clusters]
    """

    num_nodes: np.ndarray
    num_edges: np.ndarray
    between: csr_array

    @classmethod
    def count(cls, edge_index: Tensor, parts: Tensor, num_parts: int) -> "ClusterSizes":
        """Count the sizes of clusters. `parts` [num_nodes] is the cluster of each node.

        Example:
            >>> import torch
            >>> edges = torch.tensor([[0, 1, 2, 2], [1, 2, 3, 1]])
            >>> sizes = ClusterSizes.count(edges, torch.tensor([0, 0, 1, 1]), 2)
            >>> sizes.num_nodes.tolist(), sizes.num_edges.tolist(), sizes.between.toarray().tolist()
            ([2, 2], [1, 1], [[0, 2], [2, 0]])
        """
        source, destination = (parts.index_select(0, row.long()).numpy() for row in edge_index)
        ones = np.ones(len(source), np.int64)
        counts = coo_array((ones, (source, destination)), shape=(num_parts, num_parts)).tocsr()
        inside = counts.diagonal()
        both = csr_array(counts + counts.T)
        both.setdiag(0)
        both.eliminate_zeros()
        return cls(num_nodes=np.bincount(parts.numpy(), minlength=num_parts), num_edges=inside, between=both)

    def of(self, clusters: np.ndarray) -> tuple[int, int]:
        """Return the nodes and edges of some clusters together."""
        between = int(self.between[clusters][:, clusters].sum()) // 2
        return int(self.num_nodes[clusters].sum()), int(self.num_edges[clusters].sum()) + between


def pack_clusters(
    order: np.ndarray, sizes: ClusterSizes, limits: tuple[int, int], over_size_strategy: OverSizeStrategy
) -> Packs:
    """Group clusters into batches. Each batch is filled with the next clusters that still fit.

    Args:
        order: Clusters of an epoch. int64 [number of clusters]
        sizes: Their nodes and edges.
        limits: Largest number of nodes and of edges in a batch.
        over_size_strategy: Treatment of a cluster that fits no batch. A cluster to be trimmed has a batch to itself.

    Raises:
        ValueError: a cluster fits no batch.
    """
    large = (sizes.num_nodes[order] > limits[0]) | (sizes.num_edges[order] > limits[1])
    trims = over_size_strategy.trims_nodes or over_size_strategy.trims_edges
    if large.any() and not trims and over_size_strategy is not OverSizeStrategy.Skip:
        worst = order[large.argmax()]
        raise ValueError(
            f"Cluster {worst} has {sizes.num_nodes[worst]} nodes and {sizes.num_edges[worst]} edges, a batch holds "
            f"{limits[0]} and {limits[1]} real ones; {large.sum()} clusters do not fit. Raise num_nodes or "
            f"num_edges of FixedSizeOptions, make more clusters, or pass OverSizeStrategy.Skip or one that trims."
        )
    packs = [[cluster] for cluster in order[large]] if trims else []
    pending = order[~large].tolist()
    while pending:
        pack, pending = _one_pack(pending, sizes, limits)
        packs.append(pack)
    return Packs.from_lists(packs, order[:0] if trims else order[large])


def _one_pack(pending: list[int], sizes: ClusterSizes, limits: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Return the clusters of one batch, and the clusters that remain."""
    between, joined = sizes.between, np.zeros(len(sizes.num_nodes), np.int64)
    window, pack, nodes, edges = np.array(pending[:_WINDOW]), [], 0, 0
    left = np.ones(len(window), bool)
    while left.any():
        more_edges = sizes.num_edges[window] + joined[window]
        fits = left & (nodes + sizes.num_nodes[window] <= limits[0]) & (edges + more_edges <= limits[1])
        if not fits.any():
            break
        at = int(fits.argmax())
        cluster = int(window[at])
        pack.append(cluster)
        left[at] = False
        nodes, edges = nodes + int(sizes.num_nodes[cluster]), edges + int(more_edges[at])
        span = slice(between.indptr[cluster], between.indptr[cluster + 1])
        joined[between.indices[span]] += between.data[span]
    return pack, [*window[left].tolist(), *pending[_WINDOW:]]
