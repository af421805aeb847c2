"""Partitions of large graphs with pyg-lib's arguments, over popgeo's partitions."""

import torch
from torch import Tensor

from popgeo.sampling import partition

__all__ = ["metis"]


def metis(
    rowptr: Tensor,
    col: Tensor,
    num_partitions: int,
    node_weight: Tensor | None = None,
    edge_weight: Tensor | None = None,
    recursive: bool = False,
) -> Tensor:
    """Divide the nodes of a graph into parts of nearly equal size with few edges between them.

    METIS divides the graph if the package `pymetis` is installed, otherwise popgeo's method.

    Args:
        rowptr: The start of the neighbors of each node in `col`, and the end. [num_nodes + 1]
        col: Neighbors. [num_edges]
        num_partitions: The number of parts.
        node_weight: Weights of nodes; popgeo's parts have equal numbers of nodes.
        edge_weight: Weights of edges; popgeo counts edges.
        recursive: Unused; it chooses between two methods of METIS.

    Returns:
        The part of each node. [num_nodes]

    Raises:
        ValueError: weights are given, an index is out of range, or there are more parts than nodes.

    Example:
        >>> rowptr, col = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 0, 3, 2])
        >>> parts = metis(rowptr, col, 2)
        >>> parts[0] == parts[1], parts[2] == parts[3], parts[0] != parts[2]
        (tensor(True), tensor(True), tensor(True))
    """
    if node_weight is not None or edge_weight is not None:
        raise ValueError("metis got weights; popgeo's partition counts nodes and edges. Leave the weights out.")
    num_nodes = len(rowptr) - 1
    row = torch.repeat_interleave(torch.arange(num_nodes), rowptr.diff())
    return partition(torch.stack([row, col.long()]), num_partitions, num_nodes=num_nodes).to(rowptr.dtype)
