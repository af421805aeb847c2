"""Division of the nodes of a large graph into parts of nearly equal size with few edges between them."""

from enum import Enum
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from popgeo.sampling.compressed_graph import check_range
from popgeo.sampling.multilevel import Graph, multilevel


class PartitionMethod(Enum):
    """The method that divides a graph.

    Example:
        >>> PartitionMethod["Multilevel"]
        <PartitionMethod.Multilevel: 1>
    """

    Metis = 0
    """METIS, from the package `pymetis` (`pip install pymetis`)."""
    Multilevel = 1
    """popgeo's method: the graph is made coarser, divided and refined; see `popgeo.sampling.multilevel`."""


def partition(
    edge_index: Tensor,
    num_parts: int,
    *,
    num_nodes: int | None = None,
    method: PartitionMethod | str | None = None,
    seed: int = 0,
) -> Tensor:
    """Divide the nodes of a graph into parts of nearly equal size with few edges between them.

    Directions, loops and repeated edges do not count.

    Args:
        edge_index: Edges of the whole graph. [2, num_edges]
        num_parts: The number of parts.
        num_nodes: Nodes of the graph. Default: the largest index plus one.
        method: A `PartitionMethod` or its name. Default: METIS if it is installed, otherwise `Multilevel`, which keeps
            parts at most 5 % above the mean, or at the mean rounded up if that is more. METIS mostly keeps 3 %.
        seed: Seed of the random numbers.

    Returns:
        The part of each node. int64 [num_nodes]

    Raises:
        ValueError: the edges have a wrong shape, an index is out of range, there are more parts than nodes, or METIS is
            requested and not installed.

    Example:
        >>> two_triangles = torch.tensor([[0, 1, 2, 3, 4, 5, 2], [1, 2, 0, 4, 5, 3, 3]])
        >>> parts = partition(two_triangles, 2, method="Multilevel")
        >>> parts.bincount().tolist(), edge_cut(two_triangles, parts)
        ([3, 3], 1)
    """
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.is_floating_point():
        raise ValueError(f"edge_index is {edge_index.dtype} {list(edge_index.shape)}; pass integers [2, num_edges].")
    if num_nodes is None:
        num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
    check_range("edge_index", edge_index, num_nodes)
    if not 1 <= num_parts <= max(1, num_nodes):
        raise ValueError(f"num_parts is {num_parts} for {num_nodes} nodes; pass 1 to {max(1, num_nodes)}.")
    chosen = _chosen(method)
    if num_parts == 1:
        return torch.zeros(num_nodes, dtype=torch.int64)
    graph = Graph.from_edges(edge_index.numpy(), num_nodes)
    if chosen is PartitionMethod.Metis:
        import pymetis

        neighbors = pymetis.CSRAdjacency(graph.rowptr, graph.col)
        _, parts = pymetis.part_graph(num_parts, neighbors, options=pymetis.Options(seed=seed))
        return torch.from_numpy(np.asarray(parts, dtype=np.int64))
    return torch.from_numpy(multilevel(graph, num_parts, seed))


def edge_cut(edge_index: Tensor, parts: Tensor) -> int:
    """Return the number of edges between different parts; repeated edges count each time.

    Args:
        edge_index: Edges of the whole graph. [2, num_edges]
        parts: The part of each node. [num_nodes]

    Example:
        >>> edge_cut(torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 0, 1]))
        2
    """
    return int((parts[edge_index[0].long()] != parts[edge_index[1].long()]).sum())


def _chosen(method: PartitionMethod | str | None) -> PartitionMethod:
    if isinstance(method, str):
        if method not in PartitionMethod.__members__:
            raise ValueError(f"{method!r} is not a PartitionMethod; pass one of {list(PartitionMethod.__members__)}.")
        method = PartitionMethod[method]
    has_metis = find_spec("pymetis") is not None
    if method is PartitionMethod.Metis and not has_metis:
        raise ValueError("METIS needs the package pymetis: pip install pymetis. Or pass method='Multilevel'.")
    return method or (PartitionMethod.Metis if has_metis else PartitionMethod.Multilevel)
