"""Readouts: modules at the end of a model that map nodes to graphs or to edges."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from popgeo.ops import gather, global_add_pool, global_max_pool, global_mean_pool, global_softmax
from popgeo.ops.refusals import check_ends

READOUTS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "add": global_add_pool,
    "sum": global_add_pool,
    "mean": global_mean_pool,
    "max": global_max_pool,
}


class AttentionalAggregation(nn.Module):
    """The average of each graph's nodes, weighted by a learned softmax score (arXiv:1904.12787, eq. 3).

    Args:
        gate_nn: Module that scores the nodes: [num_nodes, channels] -> [num_nodes, 1], or one score per channel.
        nn: Module that maps the nodes before they are averaged. Default: the nodes themselves.

    Example:
        >>> pool = AttentionalAggregation(nn.Linear(4, 1))
        >>> pool(torch.ones(3, 4), torch.tensor([0, 0, 2]), num_graphs=3).detach().sum(1)
        tensor([4., 0., 4.])
    """

    def __init__(self, gate_nn: nn.Module, nn: nn.Module | None = None) -> None:
        super().__init__()
        self.gate_nn, self.nn = gate_nn, nn

    def forward(self, x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Return a row per graph: [num_nodes, channels], graph of each node [num_nodes] -> [num_graphs, channels]."""
        weight = global_softmax(self.gate_nn(x), batch, num_graphs)
        return global_add_pool(weight * (x if self.nn is None else self.nn(x)), batch, num_graphs)


class InnerProductDecoder(nn.Module):
    """A decoder that scores an edge by the inner product of its ends (arXiv:1611.07308).

    Example:
        >>> InnerProductDecoder()(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0], [1]]))
        tensor([11.])
    """

    def forward(self, z: Tensor, edge_index: Tensor, edges_mask: Tensor | None = None) -> Tensor:
        """Return a logit per edge, 0 for absent edges: [num_nodes, channels], [2, num_edges] -> [num_edges]."""
        check_ends(edge_index)
        score = (gather(z, edge_index[0]) * gather(z, edge_index[1])).sum(1)
        return score if edges_mask is None else torch.where(edges_mask, score, 0.0)
