"""The candidates for a node's neighbors: the rows of its graph, in a window of fixed width."""

from collections.abc import Callable

import torch
from torch import Tensor


def first_and_size(batch: Tensor, num_graphs: int) -> tuple[Tensor, Tensor]:
    """Return the first row and the number of rows of each node's graph. [num_nodes] twice."""
    num_nodes = graph_sizes(batch, num_graphs)
    return (num_nodes.cumsum(0) - num_nodes).index_select(0, batch), num_nodes.index_select(0, batch)


def graph_sizes(batch: Tensor, num_graphs: int) -> Tensor:
    """Count the rows of each graph. int64 [num_graphs]."""
    num_nodes = torch.zeros(num_graphs, dtype=torch.long, device=batch.device)
    return num_nodes.index_add(0, batch, num_nodes.new_ones(()).expand_as(batch))


def real_sizes(batch: Tensor, num_graphs: int, nodes_mask: Tensor | None) -> Tensor:
    """Return the number of rows of each node's graph; 0 for padding nodes. int64 [num_nodes]."""
    size = graph_sizes(batch, num_graphs).index_select(0, batch)
    return size if nodes_mask is None else size.where(nodes_mask, 0)


def both_real(others: Tensor, nodes_mask: Tensor | None) -> Tensor:
    """Return the mask of pairs with two real ends. [num_nodes, width]."""
    if nodes_mask is None:
        return torch.ones_like(others, dtype=torch.bool)
    return nodes_mask.unsqueeze(1) & nodes_mask.index_select(0, others.flatten()).view_as(others)


def squared_distances(pos: Tensor, candidates: Tensor) -> Tensor:
    """Compute the squared distance of each node to its candidates, without a gradient. [num_nodes, width]."""
    pos = pos.detach()
    others = pos.index_select(0, candidates.flatten()).view(*candidates.shape, pos.size(1))
    return (others - pos.unsqueeze(1)).square().sum(2)


def fit_windows(
    batch: Tensor, num_graphs: int, max_num_nodes: int | None, nodes_mask: Tensor | None
) -> tuple[Tensor, Callable[[], str]]:
    """Check for each node whether its graph, if real, fits the window, and return a message for `require`.

    If nodes are not sorted by graph, no node fits. [num_nodes]
    """
    size = real_sizes(batch, num_graphs, nodes_mask)
    ascends = (batch.diff() >= 0).all()
    fits = ascends & (size <= (batch.size(0) if max_num_nodes is None else max_num_nodes))

    def reason() -> str:
        if not ascends:
            return "batch does not ascend: nodes of one graph must stand together. Sort the nodes by batch."
        return (
            f"A graph has {int(size.max())} nodes, max_num_nodes is {max_num_nodes}. "
            "Raise max_num_nodes, or pass nodes_mask if the graph is padding."
        )

    return fits, reason
