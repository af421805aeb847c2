"""GPS++: message passing with a state of each graph, combined with biased attention (arXiv:2212.02229)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.nn.graph_attention import AttentionForm, GraphAttention, SameGraph
from popgeo.nn.mlp import MLP
from popgeo.nn.models.gnn import BatchIndex, enter
from popgeo.ops import gather, global_add_pool


class GPSPlusPlus(nn.Module):
    """A stack of GPS++ layers, eq. 1 to 3 of arXiv:2212.02229, and a head on the sum of each graph's nodes.

    In the paper's letters X are features of nodes, E of edges and g of graphs, and B are biases of pairs. The caller
    concatenates encodings and other features of a node to `x`.

    Args:
        in_channels: Features of a node, encodings included.
        hidden_channels: Features of a node between layers.
        num_layers: Layers.
        out_channels: Features of the result.
        edge_dim: Features of an edge.
        edge_channels: Features of an edge between layers. Default: half of `hidden_channels`.
        graph_channels: Features of a graph between layers. Default: a quarter of `hidden_channels`.
        heads: Attention heads.
        pair_bias: Module that turns features of pairs into B, such as `popgeo.nn.PairBias`.
        max_num_nodes: Nodes of the largest real graph. With it `cheaper_form` may choose padded attention.
        attention: `"pack"` or `"padded"`. Default: the choice of `cheaper_form`.
        dropout: Share of features of nodes and graphs zeroed in training, after each part.
        attention_dropout: Share of attention weights zeroed in training.
        stochastic_depth: Share of the graphs for which the last layer's parts are left out in training. Earlier layers
            have a share in proportion to their depth.

    Raises:
        ValueError: the heads do not divide the channels, or the form is unknown.

    Example:
        >>> model = GPSPlusPlus(in_channels=3, hidden_channels=8, num_layers=2, out_channels=1, edge_dim=2, heads=2)
        >>> x, edge_index, batch = torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1, 1])
        >>> model(x, edge_index, torch.randn(2, 2), batch, num_graphs=2).shape
        torch.Size([2, 1])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        *,
        edge_dim: int,
        edge_channels: int | None = None,
        graph_channels: int | None = None,
        heads: int = 8,
        pair_bias: nn.Module | None = None,
        max_num_nodes: int | None = None,
        attention: AttentionForm | str | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
    ) -> None:
        super().__init__()
        edge_channels = hidden_channels // 2 if edge_channels is None else edge_channels
        graph_channels = hidden_channels // 4 if graph_channels is None else graph_channels
        self.max_num_nodes = max_num_nodes
        self.attention = None if attention is None else AttentionForm(attention)
        self.pair_bias = pair_bias
        self.node_encoder = nn.Linear(in_channels, hidden_channels)
        self.edge_encoder = nn.Linear(edge_dim, edge_channels)
        self.graph = nn.Parameter(0.02 * torch.randn(graph_channels))  # g^0, the same for every graph
        channels = hidden_channels, edge_channels, graph_channels
        skips = [stochastic_depth * layer / max(1, num_layers - 1) for layer in range(num_layers)]
        self.layers = nn.ModuleList(
            GPSPlusPlusLayer(channels, heads, dropout, attention_dropout, skip) for skip in skips
        )
        self.head = MLP([hidden_channels, hidden_channels, out_channels], F.gelu)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        batch: Tensor,
        *,
        num_graphs: int,
        nodes_mask: Tensor | None = None,
        edges_mask: Tensor | None = None,
        **pairs: Tensor,
    ) -> Tensor:
        """Return predictions for each graph, [num_graphs, out_channels]; `embed` explains the arguments."""
        given: dict[str, Any] = {"nodes_mask": nodes_mask, "edges_mask": edges_mask, **pairs}
        nodes, _, _ = self.embed(x, edge_index, edge_attr, batch, num_graphs=num_graphs, **given)
        return self.read_out(nodes, batch, num_graphs)

    def read_out(self, nodes: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Return MLP(sum of x_i): [num_nodes, hidden_channels] -> [num_graphs, out_channels]."""
        return self.head(global_add_pool(nodes, batch, num_graphs))

    def embed(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        batch: Tensor,
        *,
        num_graphs: int,
        nodes_mask: Tensor | None = None,
        edges_mask: Tensor | None = None,
        **pairs: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return X, E and g after the last layer, for other heads, such as a denoiser.

        Args:
            x: Features and encodings. [num_nodes, in_channels]
            edge_index: Source and destination of each edge. [2, num_edges]
            edge_attr: Features of each edge. [num_edges, edge_dim]
            batch: Graph of each node, ascending. [num_nodes]
            num_graphs: Graphs in the batch, padding included.
            nodes_mask: True where the node is real. [num_nodes]
            edges_mask: True where the edge is real. [num_edges]
            **pairs: Arguments of `pair_bias` by name, such as `hops`. Each [num_nodes, max_num_nodes]

        Returns:
            [num_nodes, hidden_channels], [num_edges, edge_channels] and [num_graphs, graph_channels].

        Raises:
            ValueError: there are pairs but no `pair_bias`, or a graph is larger than `max_num_nodes`.
        """
        x, batched = enter(x, edge_index, None, edge_attr, batch, num_graphs, nodes_mask, edges_mask)
        same_graph = SameGraph.of(batch, num_graphs, self.max_num_nodes, nodes_mask, self.attention)
        bias = same_graph.pair_bias(self.pair_bias, pairs, nodes_mask)
        state = self.node_encoder(x), self.edge_encoder(batched.edge_attr), self.graph.expand(num_graphs, -1)
        for layer in self.layers:
            state = layer(state, batched, same_graph, bias)
        return state


class GPSPlusPlusLayer(nn.Module):
    """One layer: X' = FFN(Y + Z) with Y, E', g' = MPNN(X, E, g) and Z = BiasedAttn(X, B), arXiv:2212.02229, eq. 1 to 3.

    Args:
        channels: Features of a node, an edge and a graph.
        heads: Attention heads.
        dropout: Share of features of nodes and graphs zeroed in training.
        attention_dropout: Share of attention weights zeroed in training.
        skip: Share of the graphs for which a part is left out in training.
    """

    def __init__(
        self, channels: tuple[int, int, int], heads: int, dropout: float, attention_dropout: float, skip: float
    ) -> None:
        super().__init__()
        node, edge, graph = channels
        self.dropout, self.skip = dropout, skip
        self.edge_mlp = MLP([2 * node + edge + graph, 2 * edge, edge], F.gelu)
        self.node_mlp = MLP([node + 2 * (edge + node) + graph, 2 * node, node], F.gelu)
        self.graph_mlp = MLP([graph + node + edge, 2 * graph, graph], F.gelu)
        self.attn = GraphAttention(node, heads, attention_dropout)
        self.ffn = MLP([node, 4 * node, node], F.gelu)
        self.norm_y, self.norm_z, self.norm_x = (nn.LayerNorm(node) for _ in range(3))

    def forward(
        self, state: tuple[Tensor, Tensor, Tensor], batched: BatchIndex, same_graph: SameGraph, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the new X [num_nodes, node], E [num_edges, edge] and g [num_graphs, graph].

        `GraphAttention` explains `bias`.
        """
        x, e, g = state
        batch, num_graphs = batched.batch, g.size(0)
        assert batch is not None, "GPSPlusPlus requires it"
        y, e, g = self._pass_messages(x, e, g, batched, batch)
        h = F.dropout(self.attn(x, same_graph, bias), self.dropout, self.training)
        z = self.norm_z(self._kept(h, batch, num_graphs) + x)
        both = y + z
        x = self.norm_x(self._kept(self.ffn(both), batch, num_graphs) + both)
        return x, e, g

    def _pass_messages(
        self, x: Tensor, e: Tensor, g: Tensor, batched: BatchIndex, batch: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Update edges from their ends, nodes from edges and neighbors of both directions, and graphs from both.

        This is the MPNN of eq. 4 to 10.
        """
        num_graphs = g.size(0)
        of_edge = batch.index_select(0, batched.dst)  # [num_edges]
        x_u, x_v = batched.at_source(x), batched.of_destination(x)
        e_new = self.edge_mlp(torch.cat([x_u, x_v, e, gather(g, of_edge)], 1))
        received = batched.at_destination(torch.cat([e_new, x_u], 1))
        sent = batched.back_at_source(torch.cat([e_new, x_v], 1))
        x_new = self.node_mlp(torch.cat([x, received, sent, gather(g, batch)], 1))
        sums = [global_add_pool(x_new, batch, num_graphs), global_add_pool(e_new, of_edge, num_graphs)]
        g_new = self.graph_mlp(torch.cat([g, *sums], 1))
        x_new = F.dropout(self._kept(x_new, batch, num_graphs), self.dropout, self.training)
        g_new = F.dropout(g_new, self.dropout, self.training)
        return self.norm_y(x_new + x), e + self._kept(e_new, of_edge, num_graphs), g + g_new

    def _kept(self, rows: Tensor, graph: Tensor, num_graphs: int) -> Tensor:
        """Apply stochastic depth (arXiv:1603.09382): in training zero some graphs and scale up the others."""
        if not self.training or self.skip == 0:
            return rows
        kept = torch.rand(num_graphs, 1, dtype=rows.dtype, device=rows.device) >= self.skip
        return rows * gather(kept.to(rows.dtype) / (1 - self.skip), graph)
