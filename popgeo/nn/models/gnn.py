"""The common base of GCN, GIN, GINE and GraphSAGE: convolutions with norms, activations and jumping knowledge."""

import itertools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.did_you_mean import names_arguments
from popgeo.nn.norm import make_norm
from popgeo.nn.readout import READOUTS
from popgeo.ops import EdgePlan, gather, scatter
from popgeo.ops.eager import makes_plans
from popgeo.ops.kernel_arguments import check_array
from popgeo.ops.pool import max_or_nan
from popgeo.ops.refusals import check_choice, check_ends, check_least, require


@dataclass(frozen=True, kw_only=True)
class BatchIndex:
    """The edges and graphs of a batch, for the convolutions and norms of every layer.

    Attributes:
        src: Source of each edge. [num_edges]
        dst: Destination of each edge. [num_edges]
        num_nodes: Nodes of the batch, padding included.
        plan: Plans of both ends of the edges; None in code that popgeo captures.
        edge_weight: Weight of each edge; after `GCN.prepare` also of each self-loop. [num_edges (+ num_nodes)]
        edge_attr: Features of each edge. [num_edges, edge_dim]
        batch: Graph of each node. [num_nodes]
        num_graphs: Graphs in the batch, padding included.
        nodes_mask: True where the node is real. [num_nodes]
    """

    src: Tensor
    dst: Tensor
    num_nodes: int
    plan: EdgePlan | None
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None
    batch: Tensor | None = None
    num_graphs: int | None = None
    nodes_mask: Tensor | None = None

    def at_source(self, x: Tensor) -> Tensor:
        """Return x_j, the row of each edge's source: [num_nodes, channels] -> [num_edges, channels]."""
        return gather(x, self.src, plan=self.plan.src if self.plan else None)

    def at_destination(self, message: Tensor, reduce: str = "sum") -> Tensor:
        """Reduce the messages that arrive at each node: [num_edges, channels] -> [num_nodes, channels]."""
        plan = self.plan.dst if self.plan else None
        if reduce == "max":
            return max_or_nan(message, self.dst, self.num_nodes, plan)
        return scatter(message, self.dst, dim=0, dim_size=self.num_nodes, reduce=reduce, plan=plan)

    def of_destination(self, x: Tensor) -> Tensor:
        """Return x_i, the row of each edge's destination: [num_nodes, channels] -> [num_edges, channels]."""
        return gather(x, self.dst, plan=self.plan.dst if self.plan else None)

    def back_at_source(self, message: Tensor) -> Tensor:
        """Sum the rows of each node's outgoing edges: [num_edges, channels] -> [num_nodes, channels]."""
        plan = self.plan.src if self.plan else None
        return scatter(message, self.src, dim=0, dim_size=self.num_nodes, plan=plan)


Activation: TypeAlias = str | Callable[[Tensor], Tensor]
"""The name of a function of `torch.nn.functional`, or a function."""


class StackChoices(TypedDict, total=False):
    """The keyword arguments that GCN, GIN, GINE and GraphSAGE pass to `GNN`.

    Attributes:
        norm: `"batch_norm"`, `"layer_norm"`, `"graph_norm"`, `"instance_norm"` or None. Default: None.
        jk: Jumping knowledge: `"last"`, `"cat"`, `"max"` or None. Default: None.
        readout: `"add"`, `"mean"` or `"max"` for one row per graph; None for one row per node. Default: None.
    """

    norm: str | None
    jk: str | None
    readout: str | None


def enter(
    x: Tensor,
    edge_index: Tensor,
    edge_weight: Tensor | None,
    edge_attr: Tensor | None,
    batch: Tensor | None,
    num_graphs: int | None,
    nodes_mask: Tensor | None,
    edges_mask: Tensor | None,
) -> tuple[Tensor, BatchIndex]:
    """Return the features and the `BatchIndex` of a batch, with zeros in padding and padding edges at the last node.

    Raises:
        ValueError: a shape or the type of a mask does not fit, or `edges_mask` hides edges while the last node is real.
    """
    if x.dim() != 2:
        raise ValueError(f"x has shape {tuple(x.shape)}; it is [num_nodes, in_channels]. Pass x.view(-1, in_channels).")
    check_ends(edge_index)
    check_array("nodes_mask", nodes_mask, (x.size(0),), torch.bool)
    check_array("edges_mask", edges_mask, (edge_index.size(1),), torch.bool)
    if edge_weight is not None:
        if edge_weight.numel() != edge_index.size(1):
            raise ValueError(
                f"edge_weight has shape {tuple(edge_weight.shape)}; it is one number for each of the "
                f"{edge_index.size(1)} edges. Features of several numbers are edge_attr."
            )
        edge_weight = edge_weight.flatten()  # PyG also takes [num_edges, 1]
    if nodes_mask is not None:
        # Zeroed once at the door: a NaN in a padding row times a zero gradient would be NaN in the weights.
        x = torch.where(nodes_mask.unsqueeze(1), x, 0.0)
    if edges_mask is not None:
        edge_index = torch.where(edges_mask, edge_index, x.size(0) - 1)
        if nodes_mask is not None:
            reason = "edges_mask moves edges to the last node, which is real. Keep a node for padding, as loaders do."
            edge_index = require(edges_mask | ~nodes_mask[-1:], edge_index, lambda: reason)
        edge_weight = None if edge_weight is None else torch.where(edges_mask, edge_weight, 0.0)
        edge_attr = None if edge_attr is None else torch.where(edges_mask.unsqueeze(1), edge_attr, 0.0)
    plan = EdgePlan.from_edge_index(edge_index, x.size(0)) if makes_plans() else None
    return x, BatchIndex(
        src=edge_index[0] if plan is None else plan.src.index,
        dst=edge_index[1] if plan is None else plan.dst.index,
        num_nodes=x.size(0),
        plan=plan,
        edge_weight=edge_weight,
        edge_attr=edge_attr,
        batch=batch,
        num_graphs=num_graphs,
        nodes_mask=nodes_mask,
    )


@names_arguments
class GNN(nn.Module):
    """A stack of graph convolutions; each model makes its convolutions by `init_conv`.

    Args:
        in_channels: Features of a node.
        hidden_channels: Features between layers.
        num_layers: Convolutions.
        out_channels: Features of the result. Default: `hidden_channels`.
        dropout: Share of features zeroed after each hidden layer in training.
        act: Activation, by its name in `torch.nn.functional` or as a function.
        act_first: Whether the activation comes before the norm.
        norm: `"batch_norm"`, `"layer_norm"`, `"graph_norm"`, `"instance_norm"` or None. Padding enters no norm.
            `"layer_norm"` is PyG's with `norm_kwargs={"mode": "node"}`; PyG's default averages all nodes of a graph.
        jk: Jumping knowledge (arXiv:1806.03536): a final linear map of the last layer (`"last"`), of all layers side by
            side (`"cat"`) or of their maximum (`"max"`). Default: the result of the last convolution.
        readout: Reduction of each graph's nodes: `"add"`, `"mean"` or `"max"`. Default: one row per node.

    Raises:
        ValueError: the norm, the jump or the readout is unknown, or there is no layer.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        act: Activation = "relu",
        act_first: bool = False,
        norm: str | None = None,
        jk: str | None = None,
        *,
        readout: str | None = None,
    ) -> None:
        super().__init__()
        check_least(1, "Each layer is a convolution.", num_layers=num_layers)
        check_choice("jk", jk, (None, "last", "cat", "max"))
        check_choice("readout", readout, (None, *READOUTS))
        self.act = make_activation(act)
        self.act_first, self.norm, self.dropout = act_first, norm, dropout
        self.jk, self.readout, self.num_layers = jk, readout, num_layers
        last = hidden_channels if jk is not None or out_channels is None else out_channels
        channels = [in_channels, *[hidden_channels] * (num_layers - 1), last]
        self.convs = nn.ModuleList(self.init_conv(i, o) for i, o in itertools.pairwise(channels))
        num_norms = num_layers if jk is not None else num_layers - 1
        self.norms = nn.ModuleList(make_norm(norm, hidden_channels) or nn.Identity() for _ in range(num_norms))
        if jk is not None:
            width = num_layers * hidden_channels if jk == "cat" else hidden_channels
            self.lin = nn.Linear(width, hidden_channels if out_channels is None else out_channels)

    @abstractmethod
    def init_conv(self, in_channels: int, out_channels: int) -> nn.Module:
        """Return one convolution: a module that is called with `x` [num_nodes, in_channels] and a `BatchIndex`."""

    def prepare(self, x: Tensor, batched: BatchIndex) -> BatchIndex:
        """Return the batch with values that all layers share, such as GCN's edge weights. Default: the batch itself."""
        return batched

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        num_graphs: int | None = None,
        nodes_mask: Tensor | None = None,
        edges_mask: Tensor | None = None,
    ) -> Tensor:
        """Return one row per node, or one row per graph if the model has a readout.

        Args:
            x: Features. [num_nodes, in_channels]
            edge_index: Source and destination of each edge. [2, num_edges]
            edge_weight: Weight of each edge, if the model uses weights. [num_edges]
            edge_attr: Features of each edge, if the model uses them. [num_edges, edge_dim]
            batch: Graph of each node, ascending. [num_nodes]
            num_graphs: Graphs in the batch, padding included; required by a readout and by norms of graphs.
            nodes_mask: True where the node is real. [num_nodes]
            edges_mask: True where the edge is real. The model moves the other edges to the last node, which must be
                padding. [num_edges]

        Returns:
            [num_nodes, out_channels], or with a readout [num_graphs, out_channels].

        Raises:
            ValueError: a readout or a norm of graphs lacks `batch` or `num_graphs`; or `edges_mask` hides edges while
                the last node is real.
        """
        x, batched = enter(x, edge_index, edge_weight, edge_attr, batch, num_graphs, nodes_mask, edges_mask)
        x = self._layers(x, self.prepare(x, batched))
        if self.readout is None:
            return x
        if batch is None or num_graphs is None:
            raise ValueError("The model has a readout: pass batch and num_graphs=batch.num_graphs.")
        return READOUTS[self.readout](x, batch, num_graphs)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return (
            f"num_layers={self.num_layers}, act={getattr(self.act, '__name__', self.act)}, norm={self.norm!r}, "
            f"dropout={self.dropout}, jk={self.jk!r}, readout={self.readout!r}"
        )

    def _layers(self, x: Tensor, batched: BatchIndex) -> Tensor:
        layers = []
        for i, conv in enumerate(self.convs):
            x = conv(x, batched)
            if i < len(self.norms):
                x = self._between(x, self.norms[i], batched)
            layers.append(x)
        if self.jk == "cat":
            x = torch.cat(layers, dim=1)
        elif self.jk == "max":
            x = torch.stack(layers).amax(0)
        return x if self.jk is None else self.lin(x)

    def _between(self, x: Tensor, norm: nn.Module, batched: BatchIndex) -> Tensor:
        """Apply norm, activation and dropout after a hidden layer."""
        if self.act_first:
            x = self.act(x)
        if self.norm is not None:
            x = norm(x, batched.batch, batched.num_graphs, batched.nodes_mask)
        if not self.act_first:
            x = self.act(x)
        return F.dropout(x, self.dropout, self.training)


def make_activation(act: Activation) -> Callable[[Tensor], Tensor]:
    """Return the function of this name in `torch.nn.functional`, or the function itself.

    Raises:
        ValueError: torch has no function of this name.

    Example:
        >>> make_activation("relu")(torch.tensor([-1.0, 1.0]))
        tensor([0., 1.])
    """
    function = getattr(F, act, None) if isinstance(act, str) else act
    if function is None and act is not None:
        raise ValueError(f"act is {act!r}; it must be a function or a name in torch.nn.functional, such as 'relu'.")
    return function
