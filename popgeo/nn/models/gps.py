"""GPS: layers that combine message passing with attention within each graph (arXiv:2205.12454)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.did_you_mean import names_arguments
from popgeo.nn.graph_attention import AttentionForm, GraphAttention, SameGraph
from popgeo.nn.mlp import MLP
from popgeo.nn.models.gcn import GCNConv, normalized
from popgeo.nn.models.gin import GINConv, GINEConv
from popgeo.nn.models.gnn import BatchIndex, enter, make_activation
from popgeo.nn.norm import make_norm
from popgeo.nn.readout import READOUTS
from popgeo.ops.refusals import check_choice


class GPSConv(nn.Module):
    """One layer of GPS: MLP(MPNN(X, E, A) + GlobalAttn(X)), eq. 2 to 5 of arXiv:2205.12454.

    Each of the three parts is followed by a residual connection and a norm. Checkpoints of PyG's `GPSConv` load without
    changes if those of its convolution do.

    Args:
        channels: Features of a node.
        conv: Message passing, such as `GINEConv`, which is called with `x` and the `BatchIndex`; None for attention
            alone.
        heads: Attention heads.
        dropout: Share of features zeroed after each part in training.
        act: Activation of the MLP, by its name in `torch.nn.functional` or as a function.
        norm: `"batch_norm"`, `"layer_norm"`, `"graph_norm"`, `"instance_norm"` or None. Padding enters no norm.
        attention_dropout: Share of attention weights zeroed in training.

    Raises:
        ValueError: the heads do not divide the channels, or the norm or the activation is unknown.
    """

    def __init__(
        self,
        channels: int,
        conv: nn.Module | None,
        heads: int = 1,
        dropout: float = 0.0,
        act: str | Callable[[Tensor], Tensor] = "relu",
        norm: str | None = "batch_norm",
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.conv = conv
        self.attn = GraphAttention(channels, heads, attention_dropout)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            _Activation(act),
            nn.Dropout(dropout),
            nn.Linear(2 * channels, channels),
            nn.Dropout(dropout),
        )
        self.norm1, self.norm2, self.norm3 = (make_norm(norm, channels) for _ in range(3))
        self.dropout = dropout

    def forward(self, x: Tensor, batched: BatchIndex, same_graph: SameGraph, bias: Tensor | None = None) -> Tensor:
        """Return the nodes' new features, [num_nodes, channels]; `GraphAttention` explains `bias`."""

        def normed(norm: nn.Module | None, h: Tensor) -> Tensor:
            return h if norm is None else norm(h, batched.batch, batched.num_graphs, batched.nodes_mask)

        h = self.attn(x, same_graph, bias)
        out = normed(self.norm2, F.dropout(h, self.dropout, self.training) + x)  # eq. 4
        if self.conv is not None:
            h = self.conv(x, batched)
            out = normed(self.norm1, F.dropout(h, self.dropout, self.training) + x) + out  # eq. 3
        return normed(self.norm3, out + self.mlp(out))  # eq. 5


@names_arguments
class GPS(nn.Module):
    """A stack of `GPSConv` with a readout and a head; each node attends to all nodes of its graph.

    Positional and structural encodings are features: `popgeo.nn.RandomWalkEncoding` and `LaplacianEncoding` compute
    them once, and the caller concatenates them to `x`. Features of pairs are a bias of the attention.

    Args:
        in_channels: Features of a node, encodings included.
        hidden_channels: Features between layers.
        num_layers: Layers.
        out_channels: Features of the result. Default: `hidden_channels`, without a head.
        edge_dim: Features of an edge; required by `conv="gine"`.
        conv: `"gine"`, `"gin"`, `"gcn"`, or None for attention alone.
        heads: Attention heads.
        dropout: Share of features zeroed in training.
        attention_dropout: Share of attention weights zeroed in training.
        act: Activation, by its name in `torch.nn.functional` or as a function.
        norm: Norm after each part: `"batch_norm"`, `"layer_norm"`, `"graph_norm"`, `"instance_norm"` or None.
        readout: Reduction of each graph's nodes: `"add"`, `"mean"` or `"max"`. Default: one row per node.
        max_num_nodes: Nodes of the largest real graph. With it `cheaper_form` may choose padded attention.
        attention: `"pack"` or `"padded"`. Default: the choice of `cheaper_form`.
        pair_bias: Module that turns features of pairs into a bias, such as `popgeo.nn.PairBias`.

    Raises:
        ValueError: the convolution, norm, readout or form is unknown, or `conv="gine"` has no `edge_dim`.

    Example:
        >>> model = GPS(in_channels=3, hidden_channels=8, num_layers=2, out_channels=1, conv="gin", readout="add")
        >>> x, edge_index, batch = torch.randn(4, 3), torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 0, 1, 1])
        >>> model(x, edge_index, batch=batch, num_graphs=2).shape
        torch.Size([2, 1])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        *,
        edge_dim: int | None = None,
        conv: str | None = "gine",
        heads: int = 4,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        act: str | Callable[[Tensor], Tensor] = "relu",
        norm: str | None = "batch_norm",
        readout: str | None = None,
        max_num_nodes: int | None = None,
        attention: AttentionForm | str | None = None,
        pair_bias: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_choice("conv", conv, ("gine", "gin", "gcn", None))
        if conv == "gine" and edge_dim is None:
            raise ValueError("conv is 'gine', which needs features on edges: pass edge_dim, or conv='gin'.")
        check_choice("readout", readout, (None, *READOUTS))
        self.conv, self.readout, self.max_num_nodes = conv, readout, max_num_nodes
        self.attention = None if attention is None else AttentionForm(attention)
        self.lin = nn.Linear(in_channels, hidden_channels)
        of_layer = heads, dropout, act, norm, attention_dropout
        self.layers = nn.ModuleList(
            GPSConv(hidden_channels, self._conv(hidden_channels, edge_dim, make_activation(act)), *of_layer)
            for _ in range(num_layers)
        )
        self.pair_bias = pair_bias
        self.head = None
        if out_channels is not None:
            channels = [hidden_channels, hidden_channels // 2, hidden_channels // 4, out_channels]
            self.head = MLP(channels, make_activation(act))

    def _conv(self, channels: int, edge_dim: int | None, act: Callable[[Tensor], Tensor]) -> nn.Module | None:
        if self.conv is None:
            return None
        if self.conv == "gcn":
            return GCNConv(channels, channels)
        mlp = MLP([channels, channels, channels], act)
        if self.conv == "gin":
            return GINConv(mlp)
        assert edge_dim is not None, "checked by __init__"
        return GINEConv(mlp, channels, edge_dim)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        num_graphs: int | None = None,
        nodes_mask: Tensor | None = None,
        edges_mask: Tensor | None = None,
        **pairs: Tensor,
    ) -> Tensor:
        """Return one row per node, or one row per graph if the model has a readout.

        Args:
            x: Features and encodings. [num_nodes, in_channels]
            edge_index: Source and destination of each edge. [2, num_edges]
            edge_attr: Features of each edge, if the model uses them. [num_edges, edge_dim]
            batch: Graph of each node, ascending. Default: one graph. [num_nodes]
            num_graphs: Graphs in the batch, padding included; required with `batch`.
            nodes_mask: True where the node is real. [num_nodes]
            edges_mask: True where the edge is real. [num_edges]
            **pairs: Arguments of `pair_bias` by name, such as `hops`. Each [num_nodes, max_num_nodes]

        Returns:
            [num_nodes, out_channels], or with a readout [num_graphs, out_channels].

        Raises:
            ValueError: `batch` has no `num_graphs`, there are pairs but no `pair_bias`, or a graph is larger than
                `max_num_nodes`.
        """
        if batch is None:
            batch, num_graphs = torch.zeros(x.size(0), dtype=torch.long, device=x.device), 1
        if num_graphs is None:
            raise ValueError("batch is given without num_graphs, which fixes the shapes. Pass num_graphs.")
        x, batched = enter(x, edge_index, None, edge_attr, batch, num_graphs, nodes_mask, edges_mask)
        same_graph = SameGraph.of(batch, num_graphs, self.max_num_nodes, nodes_mask, self.attention)
        bias = same_graph.pair_bias(self.pair_bias, pairs, nodes_mask)
        if self.conv == "gcn":
            batched = normalized(batched, add_self_loops=True, dtype=x.dtype)
        x = self.lin(x)  # [num_nodes, hidden_channels]
        for layer in self.layers:
            x = layer(x, batched, same_graph, bias)
        if self.readout is not None:
            x = READOUTS[self.readout](x, batch, num_graphs)
        return x if self.head is None else self.head(x)


class _Activation(nn.Module):
    """An activation as a module, so that the layers around it have PyG's numbers in a checkpoint."""

    def __init__(self, act: str | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = make_activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated features."""
        return self.act(x)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return getattr(self.act, "__name__", str(self.act))
