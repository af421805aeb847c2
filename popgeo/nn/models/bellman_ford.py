"""One iteration of the generalized Bellman-Ford algorithm, for many queries at once, over a fixed number of edges."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from popgeo.ops import cfconv, gather, scatter_max, scatter_min, scatter_sum
from popgeo.ops.half_precision import in_float32

_LEAST_VARIANCE = 1e-6  # the square root of a smaller number has too steep a slope
_LEAST_SCALE = 1e-2


@dataclass(frozen=True, kw_only=True)
class QueriedGraph:
    """A graph with different hidden edges for each query, and the tensors that every iteration needs.

    Attributes:
        src: Source of each edge. [num_edges]
        dst: Destination of each edge. [num_edges]
        relation: Row of each edge's factor, for each query, in a table of [num_relations + 1, num_queries]. Edges that
            are padding, or hidden from the query, have the last row. [num_edges * num_queries]
        keep: False where an edge is padding or hidden from a query. [num_edges, num_queries, 1]
        degree: Kept edges that arrive at each node. [num_nodes, num_queries, 1]
        is_reached: True where any edge slot ends at a node. [num_nodes, 1, 1]
        query: Features of each query. [num_queries, channels]
        boundary: Features of the query at its head, zero at all other nodes. [num_nodes, num_queries, channels]
        nodes_mask: True where the node is real. [num_nodes]
    """

    src: Tensor
    dst: Tensor
    relation: Tensor
    keep: Tensor
    degree: Tensor
    is_reached: Tensor
    query: Tensor
    boundary: Tensor
    nodes_mask: Tensor

    @staticmethod
    def of(
        edge_index: Tensor,
        edge_type: Tensor,
        num_relations: int,
        keep: Tensor,
        head: Tensor,
        query: Tensor,
        nodes_mask: Tensor,
    ) -> "QueriedGraph":
        """Return the graph for queries and their heads. `keep` is [num_queries, num_edges]."""
        num_nodes, num_queries = nodes_mask.size(0), query.size(0)
        at_head = torch.arange(num_nodes, device=head.device).unsqueeze(1) == head  # [num_nodes, num_queries]
        kept = keep.T.to(query.dtype)  # [num_edges, num_queries]
        row = torch.where(keep.T, edge_type.unsqueeze(1), num_relations)  # [num_edges, num_queries]
        slots = scatter_sum(torch.ones_like(kept[:, :1]), edge_index[1], dim=0, dim_size=num_nodes)
        return QueriedGraph(
            src=edge_index[0],
            dst=edge_index[1],
            relation=(row * num_queries + torch.arange(num_queries, device=head.device)).flatten(),
            keep=keep.T.unsqueeze(2),
            degree=scatter_sum(kept, edge_index[1], dim=0, dim_size=num_nodes).unsqueeze(2),
            is_reached=slots.unsqueeze(2) > 0,
            query=query,
            boundary=torch.where(at_head.unsqueeze(2), query, 0.0),
            nodes_mask=nodes_mask,
        )

    def relations(self, of_queries: Tensor) -> Tensor:
        """Return each edge's factors, zero if it is hidden: [num_queries, num_relations, channels] -> [num_edges, ...].

        The result has shape [num_edges, num_queries * channels].
        """
        num_queries, _, channels = of_queries.shape
        table = torch.cat([of_queries.transpose(0, 1), of_queries.new_zeros(1, num_queries, channels)])
        return gather(table.flatten(0, 1), self.relation).view(-1, num_queries * channels)


class BellmanFordLayer(nn.Module):
    """One iteration, h_v' = relu(norm(W [h_v, AGGREGATE({h_x * w_q(r)} and boundary_v)])), arXiv:2106.06935, eq. 5.

    Each edge (x, r, v) sends DistMult's message: the features h_x of its source, times the factors of its relation for
    the query, w_q(r) = W_r q + b_r (section 3.3 there). The boundary takes part in every aggregation, as one more edge.

    Args:
        channels: Features of a node.
        num_relations: Relations of edges, inverse relations included.
        aggregation: `"pna"` takes mean, maximum, minimum and deviation; each of them plain, multiplied and divided by
            the logarithm of the degree (arXiv:2004.05718). `"sum"` needs a tenth of the memory.
    """

    def __init__(self, channels: int, num_relations: int, aggregation: str) -> None:
        super().__init__()
        self.num_relations, self.aggregation = num_relations, aggregation
        self.relation_linear = nn.Linear(channels, num_relations * channels)
        self.linear = nn.Linear(channels * (13 if aggregation == "pna" else 2), channels)
        self.layer_norm = nn.LayerNorm(channels)

    def forward(self, h: Tensor, graph: QueriedGraph) -> Tensor:
        """Return the nodes' new features for each query: [num_nodes, num_queries, channels] -> the same shape."""
        num_queries, channels = graph.query.shape
        relation = self.relation_linear(graph.query).view(num_queries, self.num_relations, channels)
        w = graph.relations(relation)  # [num_edges, num_queries * channels]
        arrived = (pna if self.aggregation == "pna" else total)(h, w, graph)
        return torch.relu(self.layer_norm(self.linear(torch.cat([h, arrived], dim=2))))


def total(h: Tensor, w: Tensor, graph: QueriedGraph) -> Tensor:
    """Sum the messages h_x * w of the kept edges, and the boundary. [num_nodes, num_queries, channels]."""
    return cfconv(h.flatten(1), w, graph.src, graph.dst, h.size(0)).view_as(h) + graph.boundary


@in_float32
def pna(h: Tensor, w: Tensor, graph: QueriedGraph) -> Tensor:
    """Aggregate the kept messages and the boundary by principal neighborhood aggregation, arXiv:2004.05718, eq. 6 to 8.

    Args:
        h: Features at the sources. [num_nodes, num_queries, channels]
        w: Factors of each edge. [num_edges, num_queries * channels]
        graph: The edges.

    Returns:
        [num_nodes, num_queries, 12 * channels]
    """
    count = graph.degree + 1  # [num_nodes, num_queries, 1]
    mean = total(h, w, graph) / count
    of_squares = cfconv(h.flatten(1).square(), w.square(), graph.src, graph.dst, h.size(0)).view_as(h)
    mean_square = (of_squares + graph.boundary.square()) / count
    deviation = (mean_square - mean.square()).clamp(min=_LEAST_VARIANCE).sqrt()
    message = (gather(h.flatten(1), graph.src) * w).view(-1, *h.shape[1:])  # [num_edges, num_queries, channels]
    # A hidden edge sends the boundary. Each extreme includes the boundary anyway, so the edge does not change it.
    message = torch.where(graph.keep, message, gather(graph.boundary.flatten(1), graph.dst).view_as(message)).flatten(1)
    largest = scatter_max(message, graph.dst, dim=0, dim_size=h.size(0))[0].view_as(h)
    smallest = scatter_min(message, graph.dst, dim=0, dim_size=h.size(0))[0].view_as(h)
    largest = torch.where(graph.is_reached, torch.maximum(largest, graph.boundary), graph.boundary)
    smallest = torch.where(graph.is_reached, torch.minimum(smallest, graph.boundary), graph.boundary)
    found = torch.cat([mean, largest, smallest, deviation], dim=2)
    scale = count.log()
    real = graph.nodes_mask.view(-1, 1, 1)
    average = torch.where(real, scale, 0.0).sum(0) / real.sum(0)  # [num_queries, 1]
    scale = scale / average.clamp(min=_LEAST_SCALE)
    return torch.cat([found, found * scale, found / scale.clamp(min=_LEAST_SCALE)], dim=2)
