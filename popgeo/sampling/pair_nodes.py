"""Pairs of neighboring nodes with large edge weights: the greedy step of Graclus (doi 10.1109/TPAMI.2007.1115)."""

import torch
from torch import Tensor


def pair_nodes(rowptr: Tensor, col: Tensor, weight: Tensor | None = None) -> Tensor:
    """Join each node to at most one neighbor, in random order: the free neighbor with the largest weight.

    The order follows from torch's global generator.

    Args:
        rowptr: Start of the neighbors of each node in `col`, and the end. [num_nodes + 1]
        col: Neighbors. [num_edges]
        weight: Weight of each edge. Default: random weights. [num_edges]

    Returns:
        The smaller number of each pair for both of its nodes, or the node's own number. [num_nodes]

    Example:
        >>> pair_nodes(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0]))
        tensor([0, 0, 2])
    """
    starts, neighbors = rowptr.tolist(), col.tolist()
    weights = (torch.rand(len(col)) if weight is None else weight).tolist()
    pairs = [-1] * (len(starts) - 1)
    for node in torch.randperm(len(pairs)).tolist():
        if pairs[node] < 0:
            places = range(starts[node], starts[node + 1])
            free = [at for at in places if pairs[neighbors[at]] < 0 and neighbors[at] != node]
            partner = neighbors[max(free, key=weights.__getitem__)] if free else node
            pairs[node] = pairs[partner] = min(node, partner)
    return torch.tensor(pairs, dtype=rowptr.dtype, device=rowptr.device)
