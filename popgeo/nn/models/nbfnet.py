"""NBFNet: link prediction from all paths that start at the query's head (arXiv:2106.06935), also for new entities."""

import torch
from torch import Tensor, nn

from popgeo.nn.models.bellman_ford import BellmanFordLayer, QueriedGraph
from popgeo.ops import gather_coo
from popgeo.ops.refusals import check_choice, check_least, check_shapes, require


class NBFNet(nn.Module):
    """A model that scores tails of queries (head, relation, ?) by Bellman-Ford iterations (arXiv:2106.06935).

    It learns about relations and not about single entities, so it answers queries on graphs of new entities. To find a
    head, (?, relation, tail), ask with the inverse relation: (tail, inverse, ?).

    Each query sees the graph without the edges that `hidden` names, so that a link to predict cannot be read from the
    graph. These edges stay in their slots, and a query's scores depend on no other query of the batch.

    Args:
        num_relations: Relations of edges, inverse relations included.
        channels: Features of a node.
        num_layers: Number of iterations, which is the length of the longest paths.
        aggregation: `"pna"` or `"sum"`; see `BellmanFordLayer`.

    Raises:
        ValueError: the aggregation is unknown, or there is no layer.

    Example:
        >>> model = NBFNet(num_relations=4, channels=8, num_layers=2)
        >>> edge_index, edge_type = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.tensor([0, 2, 1, 3])
        >>> model(torch.tensor([0, 2]), torch.tensor([0, 3]), edge_index, edge_type, num_nodes=3).shape
        torch.Size([2, 3])
    """

    def __init__(
        self, num_relations: int, channels: int = 32, num_layers: int = 6, *, aggregation: str = "pna"
    ) -> None:
        super().__init__()
        check_choice("aggregation", aggregation, ("sum", "pna"))
        check_least(1, "It takes an iteration to leave the head.", num_layers=num_layers)
        self.query = nn.Embedding(num_relations, channels)
        self.layers = nn.ModuleList(BellmanFordLayer(channels, num_relations, aggregation) for _ in range(num_layers))
        self.mlp = nn.Sequential(nn.Linear(2 * channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, 1))

    def forward(
        self,
        head: Tensor,
        relation: Tensor,
        edge_index: Tensor,
        edge_type: Tensor,
        *,
        num_nodes: int,
        tails: Tensor | None = None,
        hidden: Tensor | None = None,
        nodes_mask: Tensor | None = None,
        edges_mask: Tensor | None = None,
    ) -> Tensor:
        """Return a logit for each query and each tail.

        Args:
            head: Head of each query. [num_queries]
            relation: Relation of each query. [num_queries]
            edge_index: Source and destination of each edge, inverse edges included. [2, num_edges]
            edge_type: Relation of each edge. [num_edges]
            num_nodes: Nodes of the graph, padding included.
            tails: Tails to score. Default: all nodes. [num_queries, num_tails]
            hidden: True where an edge is hidden from a query; see `own_links`. [num_queries, num_edges]
            nodes_mask: True where the node is real. [num_nodes]
            edges_mask: True where the edge is real. [num_edges]

        Returns:
            [num_queries, num_tails], or without `tails` [num_queries, num_nodes] with -inf for padding.

        Raises:
            ValueError: shapes do not fit, a mask is not boolean, or a head or the relation of a real edge is out of
                range. Compiled code returns NaN for numbers out of range.
        """
        queries, edges = head.shape, edge_type.shape
        check_shapes(
            f"It goes with head {tuple(queries)}, edge_type {tuple(edges)} and num_nodes={num_nodes}.",
            relation=(relation, queries),
            edge_index=(edge_index, (2, *edges)),
            tails=(tails, (*queries, None)),
            hidden=(hidden, (*queries, *edges)),
            nodes_mask=(nodes_mask, (num_nodes,)),
            edges_mask=(edges_mask, edges),
        )
        masks = {"hidden": hidden, "nodes_mask": nodes_mask, "edges_mask": edges_mask}
        for name, mask in masks.items():
            if mask is not None and mask.dtype != torch.bool:
                raise ValueError(f"{name} is {mask.dtype}; it is boolean. Call {name}.bool().")
        if edges_mask is None:
            edges_mask = torch.ones_like(edge_type, dtype=torch.bool)
        if nodes_mask is None:
            nodes_mask = torch.ones(num_nodes, dtype=torch.bool, device=head.device)
        keep = edges_mask.expand(head.size(0), -1) if hidden is None else edges_mask & ~hidden
        edge_index = torch.where(edges_mask, edge_index, num_nodes - 1)
        edge_type = torch.where(edges_mask, edge_type, 0)
        num_relations = self.query.num_embeddings
        query = _require_below(num_nodes, self.query(relation), "head", head)
        query = _require_below(num_relations, query, "edge_type", edge_type)
        graph = QueriedGraph.of(edge_index, edge_type, num_relations, keep, head, query, nodes_mask)
        h = graph.boundary  # [num_nodes, num_queries, channels], eq. 2
        for layer in self.layers:
            h = h + layer(h, graph)
        h = h.transpose(0, 1)  # [num_queries, num_nodes, channels]
        if tails is not None:
            h = gather_coo(h, tails)  # [num_queries, num_tails, channels]
        score = self.mlp(torch.cat([h, graph.query.unsqueeze(1).expand_as(h)], dim=2)).squeeze(2)
        return score if tails is not None else torch.where(nodes_mask, score, -torch.inf)


def _require_below(limit: int, query: Tensor, name: str, index: Tensor) -> Tensor:
    """Return `query` after a check that an index is in range."""
    inside = (index >= 0) & (index < limit)
    return require(inside.all(), query, lambda: f"{name} holds {int(index[~inside][0])}; it is 0 to {limit - 1}.")


def own_links(
    head: Tensor, relation: Tensor, tail: Tensor, edge_index: Tensor, edge_type: Tensor, num_relations: int
) -> Tensor:
    """Return the mask of edges that contain a query's own answer or its inverse, to hide these edges in training.

    Args:
        head: Head of each query. [num_queries]
        relation: Relation of each query. [num_queries]
        tail: Answer of each query. [num_queries]
        edge_index: Source and destination of each edge. [2, num_edges]
        edge_type: Relation of each edge. [num_edges]
        num_relations: Relations, inverse relations included. The inverse of r is r + num_relations / 2, modulo
            num_relations.

    Returns:
        [num_queries, num_edges]

    Raises:
        ValueError: `num_relations` is odd, so that a relation has no inverse.

    Example:
        >>> edge_index, edge_type = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.tensor([0, 2, 1, 3])
        >>> one = torch.tensor([0]), torch.tensor([0]), torch.tensor([1])
        >>> own_links(*one, edge_index, edge_type, num_relations=4)
        tensor([[ True,  True, False, False]])
    """
    half, odd = divmod(num_relations, 2)
    if odd:
        raise ValueError(f"num_relations is {num_relations}; it counts each relation and its inverse, an even number.")
    inverse = torch.where(relation < half, relation + half, relation - half)
    (src, dst), (head, tail) = edge_index, (head.unsqueeze(1), tail.unsqueeze(1))
    forwards = (src == head) & (dst == tail) & (edge_type == relation.unsqueeze(1))
    return forwards | ((src == tail) & (dst == head) & (edge_type == inverse.unsqueeze(1)))
