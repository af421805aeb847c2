"""Neighbor lists of fixed shape: functions from positions to a fixed number of edges and a mask."""

from typing import NamedTuple

import torch
from torch import Tensor

from popgeo.ops.gather_scatter import rows_of_ends
from popgeo.ops.neighbor_candidates import fit_windows
from popgeo.ops.neighbor_search import Search, SearchKind, near_nodes
from popgeo.ops.refusals import check_ends, check_least, require


class Neighbors(NamedTuple):
    """A list of edges in fixed slots. Row 0 of `edge_index` is the neighbor, and row 1 is the center.

    Attributes:
        edge_index: Neighbor and center of each edge; an absent edge joins its center to itself. [2, num_edges]
        edge_weight: Distance in the unit of the positions; the cutoff for absent edges. [num_edges]
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
    """Join each node to its `k` nearest neighbors within the cutoff, in the same graph: exactly `k` edges per node.

    Among neighbors at the same distance the lowest index comes first. The order of a node's edges is unspecified.

    Args:
        pos: Positions. [num_nodes, 3]
        batch: Graph of each node, ascending. [num_nodes]
        k: Edges of each node; may exceed the number of nodes.
        cutoff: Longest edge, in the unit of `pos`.
        num_graphs: Graphs in the batch, padding included.
        max_num_nodes: Nodes of the largest real graph. With it the search compares a node with this number of rows of
            its graph instead of the whole batch.
        nodes_mask: True where the node is real; padding nodes send and receive nothing. [num_nodes]

    Returns:
        The edges, `k` for the first node, then `k` for the second, and so on. [num_nodes * k]

    Raises:
        ValueError: `k` or the cutoff is not positive, a real graph exceeds `max_num_nodes`, or `batch` does not ascend.
            Captured code cannot raise; there every length is NaN.

    Example:
        >>> pos, batch = torch.tensor([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]]), torch.zeros(3, dtype=torch.long)
        >>> neighbors = knn(pos, batch, k=2, cutoff=2.5, num_graphs=1)
        >>> neighbors.edge_index[:, neighbors.edges_mask]
        tensor([[1, 0, 2, 1],
                [0, 1, 1, 2]])
        >>> neighbors.edge_weight.tolist()
        [1.0, 2.5, 1.0, 2.0, 2.5, 2.0]
    """
    check_least(1, "A node needs an edge slot.", k=k)
    search = _search(pos, batch, cutoff, num_graphs, max_num_nodes, nodes_mask)
    return _in_slots(SearchKind.KNN, k, search, max_num_nodes)


def pairs(
    pos: Tensor,
    batch: Tensor,
    cutoff: float,
    *,
    num_graphs: int,
    max_num_nodes: int | None = None,
    nodes_mask: Tensor | None = None,
) -> Neighbors:
    """List each pair of nodes of the same graph within the cutoff once: a half neighbor list in fixed slots.

    The node at place l of a graph of n nodes is the center of its pairs with the places l + 1 to l + n // 2 (mod n). So
    the pairs are spread evenly over the nodes, and each node needs half as many slots as it has possible neighbors.

    Args:
        pos: Positions. [num_nodes, 3]
        batch: Graph of each node, ascending. [num_nodes]
        cutoff: Longest pair, in the unit of `pos`.
        num_graphs: Graphs in the batch, padding included.
        max_num_nodes: Nodes of the largest real graph. Default: all nodes of the batch.
        nodes_mask: True where the node is real; padding nodes are in no pair. [num_nodes]

    Returns:
        The pairs. [num_nodes * (max_num_nodes // 2)]

    Raises:
        ValueError: the cutoff is not positive, a real graph exceeds `max_num_nodes`, or `batch` does not ascend.
            Captured code cannot raise; there every length is NaN.

    Example:
        >>> pos, batch = torch.tensor([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]]), torch.zeros(3, dtype=torch.long)
        >>> half = pairs(pos, batch, cutoff=2.5, num_graphs=1)
        >>> half.edge_index[:, half.edges_mask]
        tensor([[1, 2],
                [0, 1]])
    """
    search = _search(pos, batch, cutoff, num_graphs, max_num_nodes, nodes_mask)
    return _in_slots(SearchKind.PAIRS, search.width // 2, search, max_num_nodes)


def radius(
    pos: Tensor,
    batch: Tensor,
    cutoff: float,
    num_edges: int,
    *,
    num_graphs: int,
    max_num_nodes: int | None = None,
    nodes_mask: Tensor | None = None,
) -> tuple[Neighbors, Tensor]:
    """Join all nodes of the same graph within the cutoff, in a fixed number of slots for the whole batch.

    `knn` reserves the same number of slots for each node; here nodes with many neighbors take more slots.

    Args:
        pos: Positions. [num_nodes, 3]
        batch: Graph of each node, ascending. [num_nodes]
        cutoff: Longest edge, in the unit of `pos`.
        num_edges: Number of slots. Real edges come first, sorted by center; absent edges join the last node to itself.
        num_graphs: Graphs in the batch, padding included.
        max_num_nodes: Nodes of the largest real graph. Default: all nodes of the batch.
        nodes_mask: True where the node is real; padding nodes send and receive nothing. [num_nodes]

    Returns:
        The edges, and the number of edges without a slot, which is 0 if the list is complete. Integer []

    Raises:
        ValueError: the cutoff is not positive, a real graph exceeds `max_num_nodes`, or `batch` does not ascend.
            Captured code cannot raise; there every length is NaN.

    Example:
        >>> pos, batch = torch.tensor([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]]), torch.zeros(3, dtype=torch.long)
        >>> neighbors, num_missing = radius(pos, batch, cutoff=1.5, num_edges=3, num_graphs=1)
        >>> neighbors.edge_index.tolist(), int(num_missing)
        ([[1, 0, 2], [0, 1, 2]], 0)
    """
    search = _search(pos, batch, cutoff, num_graphs, max_num_nodes, nodes_mask)
    edge_index, num_found = near_nodes(SearchKind.RADIUS, num_edges, search)
    edges_mask = torch.arange(num_edges, device=pos.device) < num_found
    neighbors = Neighbors(edge_index, distance(pos, edge_index, edges_mask, cutoff), edges_mask)
    neighbors = _in_windows(neighbors, search, max_num_nodes)
    return neighbors, (num_found - num_edges).clamp(min=0)


def distance(
    pos: Tensor, edge_index: Tensor, edges_mask: Tensor | None, cutoff: float, edge_shift: Tensor | None = None
) -> Tensor:
    """Compute the length of each edge; absent edges have the length of the cutoff.

    If two nodes coincide, the gradient is 0, and so is the gradient of the gradient.

    Args:
        pos: Positions. [num_nodes, 3]
        edge_index: Neighbor and center of each edge. [2, num_edges]
        edges_mask: True where the edge is real; None if all edges are. [num_edges]
        cutoff: Length of absent edges.
        edge_shift: Vector from the neighbor to its periodic image that interacts. [num_edges, 3]

    Returns:
        Lengths in the unit of `pos`. [num_edges]

    Example:
        >>> pos = torch.tensor([[0.0, 0, 0], [3, 4, 0]])
        >>> distance(pos, torch.tensor([[1, 1], [0, 1]]), torch.tensor([True, False]), cutoff=10.0)
        tensor([ 5., 10.])
    """
    check_ends(edge_index)
    vector = rows_of_ends(pos, edge_index[0]) - rows_of_ends(pos, edge_index[1])  # [num_edges, 3]
    vector = vector if edge_shift is None else vector + edge_shift
    if edges_mask is not None:
        # Masked before squaring, so that padding nodes have no gradient, whatever their values.
        vector = torch.where(edges_mask.unsqueeze(1), vector, 0.0)
    r2 = vector.square().sum(1)
    apart = r2 != 0  # also true for NaN, which stays NaN
    r = torch.where(apart, r2, 1.0).sqrt()
    r = torch.where(apart, r, 0.0)
    return r if edges_mask is None else torch.where(edges_mask, r, cutoff)


def _search(
    pos: Tensor, batch: Tensor, cutoff: float, num_graphs: int, max_num_nodes: int | None, nodes_mask: Tensor | None
) -> Search:
    if not cutoff > 0:
        raise ValueError(f"The cutoff is {cutoff}; it must be positive, in the unit of pos.")
    width = len(pos) if max_num_nodes is None else min(max_num_nodes, len(pos))
    return Search(pos, batch, cutoff, num_graphs, width, nodes_mask)


def _in_slots(form: SearchKind, slots: int, search: Search, max_num_nodes: int | None) -> Neighbors:
    """Return the edges of each node in the node's slots, sorted by node. [num_nodes * slots]."""
    others, near = near_nodes(form, slots, search)
    centres = torch.arange(len(others), device=others.device).unsqueeze(1).expand_as(others)
    edge_index = torch.stack([torch.where(near, others, centres), centres]).flatten(1)
    edges_mask = near.flatten()
    lengths = distance(search.pos, edge_index, edges_mask, search.cutoff)
    return _in_windows(Neighbors(edge_index, lengths, edges_mask), search, max_num_nodes)


def _in_windows(edges: Neighbors, search: Search, max_num_nodes: int | None) -> Neighbors:
    """Return the edges after the check that every graph fits its window and every real node has a finite position."""
    fits, reason = fit_windows(search.batch, search.num_graphs, max_num_nodes, search.nodes_mask)
    lengths = require(fits.all(), edges.edge_weight, reason)
    placed = search.pos.detach().sum(1).isfinite()
    placed = placed if search.nodes_mask is None else placed | ~search.nodes_mask
    lost = "pos of node {} is not finite. Correct the positions."
    lengths = require(placed.all(), lengths, lambda: lost.format(int((~placed).nonzero()[0])))
    return Neighbors(edges.edge_index, lengths, edges.edges_mask)
