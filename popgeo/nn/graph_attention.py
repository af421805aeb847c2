"""Attention of each node to all nodes of the same graph, in a batch of fixed size."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.filter_choice import is_one_form_of_any_shape
from popgeo.ops import gather
from popgeo.ops.eager import is_plain
from popgeo.ops.exp_or_zero import least_exponent
from popgeo.ops.gather_scatter import rows_of_ends
from popgeo.ops.neighbor_candidates import fit_windows, graph_sizes
from popgeo.ops.refusals import check_shapes, require


class AttentionForm(str, Enum):
    """The layouts of the pairs of nodes in attention.

    Attributes:
        PACK: One matrix over all nodes of the batch [num_nodes, num_nodes], with a mask for pairs of different graphs.
        PADDED: One matrix per graph [num_graphs, max_num_nodes, max_num_nodes], with a mask for absent nodes.
    """

    PACK = "pack"
    PADDED = "padded"


_PAIRS_PER_ROW = 32  # measured cost of moving a node's row to a padded slot and back, in pairs; see `cheaper_form`


def cheaper_form(num_nodes: int, num_graphs: int, max_num_nodes: int | None) -> AttentionForm:
    """Return the cheaper form. Padding computes fewer pairs, but each node's row is moved to a slot and back.

    A batch of few graphs, such as GPS++'s 8 graphs in 60 nodes, is cheaper as one matrix; a batch of many graphs is
    cheaper with padding. Between these cases the choice is right for one thread of a processor. On the modelled IPU
    moving rows costs more, and batches of up to about 800 nodes take fewer cycles as one matrix; a report shows the
    cycles of each form.

    Args:
        num_nodes: Node slots of the batch.
        num_graphs: Graph slots of the batch.
        max_num_nodes: Nodes of the largest real graph. Without this number the result is always the pack.

    Example:
        >>> cheaper_form(num_nodes=60, num_graphs=9, max_num_nodes=20).value
        'pack'
        >>> cheaper_form(num_nodes=768, num_graphs=33, max_num_nodes=38).value
        'padded'
    """
    if max_num_nodes is None:
        return AttentionForm.PACK
    slots = num_graphs * max_num_nodes
    padded = slots * max_num_nodes + _PAIRS_PER_ROW * (num_nodes + slots)
    return AttentionForm.PACK if num_nodes * num_nodes <= padded else AttentionForm.PADDED


@dataclass(frozen=True, kw_only=True)
class SameGraph:
    """The pairs of nodes in the same graph, computed once per batch and used by the attention of every layer.

    Attributes:
        form: Layout of the pairs.
        may_see: True where a query may see a key. [num_nodes, num_nodes] in a pack, else [num_graphs, 1, 1, width]
        place: Place of each node within its graph. [num_nodes]
        valid: 0; in captured code NaN for the nodes of a graph that does not fit its slots. [num_nodes, 1]
        node_at: Node in each padded slot; None in a pack. [num_graphs * width]
        slot_of: Padded slot of each node; None in a pack. [num_nodes]
        width: Padded slots per graph; 0 in a pack.
    """

    form: AttentionForm
    may_see: Tensor
    place: Tensor
    valid: Tensor
    node_at: Tensor | None = None
    slot_of: Tensor | None = None
    width: int = 0

    @classmethod
    def of(
        cls,
        batch: Tensor,
        num_graphs: int,
        max_num_nodes: int | None = None,
        nodes_mask: Tensor | None = None,
        form: AttentionForm | str | None = None,
    ) -> "SameGraph":
        """Return the pairs of a batch.

        Args:
            batch: Graph of each node, ascending. [num_nodes]
            num_graphs: Graphs in the batch, padding included.
            max_num_nodes: Nodes of the largest real graph. The padding graph may have more nodes, because its attention
                does not matter.
            nodes_mask: True where the node is real. [num_nodes]
            form: Layout of the pairs. Default: the choice of `cheaper_form`.

        Raises:
            ValueError: the padded form has no `max_num_nodes`, a real graph is larger than this, or `batch` does not
                ascend. Captured code cannot raise; there attention returns NaN for such a graph.

        Example:
            >>> SameGraph.of(torch.tensor([0, 0, 1]), num_graphs=2).may_see.int()
            tensor([[1, 1, 0],
                    [1, 1, 0],
                    [0, 0, 1]], dtype=torch.int32)
        """
        num_nodes = batch.size(0)
        if form is None and max_num_nodes is not None and is_one_form_of_any_shape():
            form = AttentionForm.PADDED
        form = cheaper_form(num_nodes, num_graphs, max_num_nodes) if form is None else AttentionForm(form)
        sizes = graph_sizes(batch, num_graphs)
        first = sizes.cumsum(0) - sizes  # [num_graphs]
        place = torch.arange(num_nodes, device=batch.device) - first.index_select(0, batch)
        if form is AttentionForm.PADDED and (max_num_nodes is None or max_num_nodes < 1):
            raise ValueError(
                f"max_num_nodes is {max_num_nodes}; padded attention needs the nodes of the largest graph. Pass it, or "
                "form='pack'."
            )
        width = 0 if form is AttentionForm.PACK or max_num_nodes is None else max_num_nodes
        fits, reason = fit_windows(batch, num_graphs, width or None, nodes_mask)
        valid = require(fits.unsqueeze(1), torch.zeros(num_nodes, 1, device=batch.device), reason)
        if form is AttentionForm.PACK:
            return cls(form=form, may_see=batch.unsqueeze(1) == batch, place=place, valid=valid)
        slots = torch.arange(width, device=batch.device)
        return cls(
            form=form,
            may_see=(slots < sizes.unsqueeze(1)).view(num_graphs, 1, 1, width),
            place=place,
            valid=valid,
            node_at=(first.unsqueeze(1) + slots).clamp(max=num_nodes - 1).flatten(),
            slot_of=batch * width + place.clamp(max=width - 1),
            width=width,
        )

    def lay_out(self, x: Tensor) -> Tensor:
        """Lay out rows of nodes for attention: [num_nodes, ...] -> [1, num_nodes, ...] or [num_graphs, width, ...]."""
        if self.node_at is None:
            return x.unsqueeze(0)
        rows = gather(x.flatten(1), self.node_at)  # [num_graphs * width, channels]
        return rows.view(-1, self.width, *x.shape[1:])

    def take_back(self, rows: Tensor) -> Tensor:
        """Undo `lay_out`: [groups, width, channels] -> [num_nodes, channels]."""
        out = rows.squeeze(0) if self.slot_of is None else gather(rows.flatten(0, 1), self.slot_of)
        return out if is_plain() else torch.where(self.valid.isnan(), torch.nan, out)

    def pair_bias(
        self, bias: nn.Module | None, pairs: Mapping[str, Tensor], nodes_mask: Tensor | None
    ) -> Tensor | None:
        """Return the bias that a module computes from pair features, in the layout of `bias_of`; None without a module.

        Raises:
            ValueError: there are features of pairs but no module.
        """
        if pairs and bias is None:
            raise ValueError(
                f"The model has no pair_bias for {sorted(pairs)}. Make the model with pair_bias=PairBias(...)."
            )
        return None if bias is None else self.bias_of(bias(**pairs, nodes_mask=nodes_mask))

    def bias_of(self, pairs: Tensor) -> Tensor:
        """Arrange values of pairs so that attention can add them to its scores.

        Args:
            pairs: A number per head for each node and each place in its graph. [num_nodes, places, heads]

        Returns:
            [1, heads, num_nodes, num_nodes] or [num_graphs, heads, width, width]

        Raises:
            ValueError: the number of places differs from that of the padded form.
        """
        if self.form is AttentionForm.PACK:
            place = self.place.clamp(max=pairs.size(1) - 1)
            return rows_of_ends(pairs, place, 1).permute(2, 0, 1).unsqueeze(0).contiguous()
        check_shapes("Make max_num_nodes of bias and model the same.", pairs=(pairs, (None, self.width, None)))
        return self.lay_out(pairs).permute(0, 3, 1, 2).contiguous()


class GraphAttention(nn.Module):
    """Multi-head attention within each graph: softmax(Q K^T / sqrt(d) + B) V (arXiv:1706.03762, eq. 1, with a bias).

    Parameters have the names of `torch.nn.MultiheadAttention`, so that checkpoints of PyG's `GPSConv` load.

    Args:
        channels: Features of a node.
        heads: Number of heads, with `channels / heads` features each.
        dropout: Share of the weights zeroed in training.

    Raises:
        ValueError: the heads do not divide the channels.

    Example:
        >>> batch = torch.tensor([0, 0, 1])
        >>> GraphAttention(8, heads=2)(torch.randn(3, 8), SameGraph.of(batch, num_graphs=2)).shape
        torch.Size([3, 8])
    """

    def __init__(self, channels: int, heads: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or channels % heads:
            raise ValueError(f"heads is {heads}, channels is {channels}; the heads must divide the channels.")
        self.heads, self.dropout = heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * channels, channels))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * channels))
        self.out_proj = nn.Linear(channels, channels)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor, same_graph: SameGraph, bias: Tensor | None = None) -> Tensor:
        """Return the attended features, [num_nodes, channels].

        Args:
            x: Features. [num_nodes, channels]
            same_graph: Pairs of nodes that may see each other.
            bias: B, as `SameGraph.bias_of` lays it out.
        """
        qkv = F.linear(x, self.in_proj_weight, self.in_proj_bias).view(x.size(0), 3, self.heads, -1)
        q, k, v = same_graph.lay_out(qkv).permute(2, 0, 3, 1, 4).unbind(0)  # each [groups, heads, width, d]
        score = (q / math.sqrt(q.size(3))) @ k.transpose(2, 3)  # [groups, heads, width, width]
        if bias is not None:
            score = score + bias
        weight = F.dropout(_softmax_of_seen(score, same_graph.may_see), self.dropout, self.training)
        out = (weight @ v).transpose(1, 2).flatten(2)  # [groups, width, channels]
        return self.out_proj(same_graph.take_back(out))

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.out_proj.in_features}, heads={self.heads}, dropout={self.dropout}"


def _softmax_of_seen(score: Tensor, may_see: Tensor) -> Tensor:
    """Return the softmax over visible keys. Hidden keys and weights near denormal numbers get exactly 0."""
    least = torch.finfo(score.dtype).min / 4  # finite, so that a row without visible keys is not NaN
    seen = torch.where(may_see, score.detach(), least)
    threshold = seen.amax(-1, keepdim=True) + least_exponent(score.dtype)
    # An addition instead of torch.where: a weight of 0 has no gradient, so the backward pass needs no mask.
    return (score + torch.where(seen > threshold, score.new_zeros(()), least)).softmax(-1)
