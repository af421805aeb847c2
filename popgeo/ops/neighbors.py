"""Positions to a fixed number of edges and their mask: every shape follows from the arguments, never from the data."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


class Neighbors(NamedTuple):
    """Edges in fixed slots: row 0 of `edge_index` is the neighbour, row 1 the centre.

    Attributes:
        edge_index: An absent edge joins its centre to itself. [2, num_edges]
        edge_weight: Distance in the unit of the positions; the cutoff where the edge is absent. [num_edges]
        edges_mask: True where the edge is real. [num_edges]
    """

    edge_index: Tensor
    edge_weight: Tensor
    edges_mask: Tensor


def knn(
    pos: Tensor,
    batch: Tensor,
    k: int,
    cutoff: float,
    *,
    num_graphs: int,
    max_num_nodes: int | None = None,
    nodes_mask: Tensor | None = None,
) -> Neighbors:
    """Join each node to its `k` nearest neighbours within the cutoff, in the same graph: exactly `k` edges a node.

    Of neighbours at the same distance the lowest index goes first. Within a node the order of the edges is unspecified.

    Args:
        pos: Positions. [num_nodes, 3]
        batch: Graph of each node, ascending. [num_nodes]
        k: Edges of each node; may exceed the number of nodes.
        cutoff: Longest edge, in the unit of `pos`.
        num_graphs: Graphs in the batch, padding included.
        max_num_nodes: Nodes of the largest real graph. Each node then looks at that many rows from where its graph
            starts, instead of at the whole batch.
        nodes_mask: True where the node is real; padding nodes send and receive nothing. [num_nodes]

    Returns:
        The edges, `k` for the first node, then `k` for the second, and so on. [num_nodes * k]

    Raises:
        ValueError: `k` or the cutoff is not positive, or (outside capture) a real graph exceeds `max_num_nodes`.

    Example:
        >>> pos, batch = torch.tensor([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]]), torch.zeros(3, dtype=torch.long)
        >>> neighbors = knn(pos, batch, k=2, cutoff=2.5, num_graphs=1)
        >>> neighbors.edge_index[:, neighbors.edges_mask]
        tensor([[1, 0, 2, 1],
                [0, 1, 1, 2]])
        >>> neighbors.edge_weight.tolist()
        [1.0, 2.5, 1.0, 2.0, 2.5, 2.0]
    """
    if k < 1:
        raise ValueError(f"k is {k}; a node needs at least one edge slot. Pass k >= 1.")
    candidates, near = _near_pairs(pos, batch, cutoff, num_graphs, max_num_nodes, nodes_mask)
    num_candidates = candidates.size(1)
    if num_candidates > k:
        r2 = _squared_distances(pos, candidates)
        nearest = r2.masked_fill(~near, torch.inf).sort(dim=1, stable=True).indices[:, :k]
        candidates, near = candidates.gather(1, nearest), near.gather(1, nearest)
    elif num_candidates < k:
        absent = (0, k - num_candidates)
        candidates = torch.nn.functional.pad(candidates, absent)
        near = torch.nn.functional.pad(near, absent, value=False)
    centres = torch.arange(pos.size(0), device=pos.device).unsqueeze(1).expand(-1, k)
    edge_index = torch.stack([torch.where(near, candidates, centres), centres]).flatten(1)
    edges_mask = near.flatten()
    return Neighbors(edge_index, distance(pos, edge_index, edges_mask, cutoff), edges_mask)


def distance(pos: Tensor, edge_index: Tensor, edges_mask: Tensor | None, cutoff: float) -> Tensor:
    """The length of each edge; absent edges have the cutoff's.

    The gradient is 0 where two nodes coincide, and so is the gradient of the gradient.

    Args:
        pos: Positions. [num_nodes, 3]
        edge_index: Neighbour and centre of each edge. [2, num_edges]
        edges_mask: True where the edge is real; None when all are. [num_edges]
        cutoff: Length given to absent edges.

    Returns:
        Lengths in the unit of `pos`. [num_edges]

    Example:
        >>> pos = torch.tensor([[0.0, 0, 0], [3, 4, 0]])
        >>> distance(pos, torch.tensor([[1, 1], [0, 1]]), torch.tensor([True, False]), cutoff=10.0)
        tensor([ 5., 10.])
    """
    vector = pos.index_select(0, edge_index[0]) - pos.index_select(0, edge_index[1])  # [num_edges, 3]
    if edges_mask is not None:
        # Masked before squaring, so that whatever stands in a padding node has no gradient either.
        vector = torch.where(edges_mask.unsqueeze(1), vector, 0.0)
    r2 = vector.square().sum(1)
    apart = r2 > 0
    r = torch.where(apart, r2, 1.0).sqrt()
    r = torch.where(apart, r, 0.0)
    return r if edges_mask is None else torch.where(edges_mask, r, cutoff)


def _near_pairs(
    pos: Tensor,
    batch: Tensor,
    cutoff: float,
    num_graphs: int,
    max_num_nodes: int | None,
    nodes_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """For each node the rows where a neighbour can be, never its own, and whether there is one. [num_nodes, width]"""
    if cutoff <= 0:
        raise ValueError(f"The cutoff is {cutoff}; it must be positive, in the unit of pos.")
    num_nodes = pos.size(0)
    rows = torch.arange(num_nodes, device=pos.device)
    if max_num_nodes is None:
        first, width = torch.zeros_like(rows), num_nodes
    else:
        size = torch.zeros(num_graphs, dtype=torch.long, device=pos.device).index_add(0, batch, torch.ones_like(batch))
        _check_sizes(size, batch, max_num_nodes, nodes_mask)
        first = (size.cumsum(0) - size).index_select(0, batch)
        width = min(max_num_nodes, num_nodes)
    place = torch.arange(max(width - 1, 0), device=pos.device)
    own = (rows - first).unsqueeze(1)
    candidates = first.unsqueeze(1) + place + (place >= own)  # [num_nodes, width - 1]
    inside = candidates < num_nodes
    candidates = candidates.clamp(max=num_nodes - 1)
    near = inside & (batch.index_select(0, candidates.flatten()).view_as(candidates) == batch.unsqueeze(1))
    if nodes_mask is not None:
        near = near & nodes_mask.unsqueeze(1) & nodes_mask.index_select(0, candidates.flatten()).view_as(candidates)
    return candidates, near & (_squared_distances(pos, candidates) <= cutoff * cutoff)


def _squared_distances(pos: Tensor, candidates: Tensor) -> Tensor:
    """Squared distance of each node to its candidates, for choosing only: it carries no gradient. [num_nodes, width]"""
    pos = pos.detach()
    return (
        (pos.index_select(0, candidates.flatten()).view(*candidates.shape, pos.size(1)) - pos.unsqueeze(1))
        .square()
        .sum(2)
    )


def _check_sizes(size: Tensor, batch: Tensor, max_num_nodes: int, nodes_mask: Tensor | None) -> None:
    """Refuses a real graph that its window cannot hold; under capture nothing is known, so nothing is checked."""
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or size.numel() == 0:
        return
    largest = int(size.index_select(0, batch).where(nodes_mask, 0).max() if nodes_mask is not None else size.max())
    if largest > max_num_nodes:
        raise ValueError(
            f"A graph has {largest} nodes, max_num_nodes is {max_num_nodes}. "
            "Raise max_num_nodes, or pass nodes_mask if the graph is padding."
        )
