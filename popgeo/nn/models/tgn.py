"""TGN: predictions of the next events of a stream (arXiv:2006.10637)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.nn.models.event_ends import EventEnds, EventState, LastNeighbors, RecentNeighbors
from popgeo.nn.models.node_memory import NodeMemory, TimeEncoder
from popgeo.ops import gather
from popgeo.ops.exp_or_zero import exp_or_zero
from popgeo.ops.refusals import check_choice, check_shapes

SINCE = ("now", "last update")


class GraphAttentionEmbedding(nn.Module):
    """The embedding of a node from its memory and from attention to its last neighbors, eq. 5 of arXiv:2006.10637.

    It is one layer of PyG's `TransformerConv` (arXiv:2009.09430) over a fixed number of slots. Checkpoints of the
    module of this name in PyG's example of TGN load without changes.

    Args:
        in_channels: Channels of a node's memory.
        out_channels: Channels of the result, divided among the heads.
        msg_channels: Numbers in the message of an event.
        time_enc: Time encoder, usually that of the memory.
        heads: Attention heads.
        dropout: Share of attention weights zeroed in training.

    Raises:
        ValueError: the heads do not divide the channels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        msg_channels: int,
        time_enc: TimeEncoder,
        heads: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if out_channels % heads:
            raise ValueError(f"out_channels is {out_channels}; {heads} heads do not divide it.")
        self.time_enc = time_enc
        edge_channels = msg_channels + time_enc.lin.out_features
        self.conv = SlotAttention(in_channels, out_channels, edge_channels, heads=heads, dropout=dropout)

    def forward(self, x: Tensor, since: Tensor, root: Tensor, place: Tensor, neighbors: RecentNeighbors) -> Tensor:
        """Return the embeddings of some of the nodes in `x`.

        Args:
            x: Memory of nodes. [num_rows, in_channels]
            since: Time since the event with each neighbor. int64 [num_roots, size]
            root: Rows of the nodes to embed. [num_roots]
            place: Rows of their neighbors. [num_roots, size]
            neighbors: Events with these neighbors. [num_roots, size]

        Returns:
            [num_roots, out_channels]
        """
        attributes = torch.cat([self.time_enc(since), neighbors.msg], dim=2)  # [num_roots, size, edge_channels]
        return self.conv(x, root, place, attributes, neighbors.mask)


class SlotAttention(nn.Module):
    """PyG's `TransformerConv`, eq. 3 and 4 of arXiv:2009.09430, with the same number of neighbor slots for each node.

    Args:
        in_channels: Features of a node.
        out_channels: Features of the result.
        edge_channels: Features of an edge.
        heads: Attention heads, which divide `out_channels`.
        dropout: Share of attention weights zeroed in training.
    """

    def __init__(self, in_channels: int, out_channels: int, edge_channels: int, *, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.lin_key = nn.Linear(in_channels, out_channels)
        self.lin_query = nn.Linear(in_channels, out_channels)
        self.lin_value = nn.Linear(in_channels, out_channels)
        self.lin_edge = nn.Linear(edge_channels, out_channels, bias=False)
        self.lin_skip = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, root: Tensor, place: Tensor, attributes: Tensor, mask: Tensor) -> Tensor:
        """Return the attended features of some rows. [num_roots, out_channels].

        Args:
            x: Features of nodes. [num_rows, in_channels]
            root: Rows of the nodes that attend. [num_roots]
            place: Rows of their neighbors. [num_roots, size]
            attributes: Features of each edge. [num_roots, size, edge_channels]
            mask: True where a slot is filled. [num_roots, size]
        """
        roots, size = place.shape
        parts = roots, size, self.heads, -1
        of_root = gather(x, root)
        edge = self.lin_edge(attributes).view(parts)  # [num_roots, size, heads, out_channels / heads]
        both = gather(torch.cat([self.lin_key(x), self.lin_value(x)], dim=1), place.flatten())
        key, value = (part.reshape(parts) + edge for part in both.chunk(2, dim=1))
        query = self.lin_query(of_root).view(roots, 1, self.heads, -1)
        score = (query * key).sum(3) / math.sqrt(key.size(3))  # [num_roots, size, heads]
        filled = mask.unsqueeze(2)
        weight = torch.where(filled, score, -torch.inf)
        # A node without neighbors has no largest score; all its weights are zero.
        has_met = filled.any(1, keepdim=True)
        weight = weight - torch.where(has_met, weight, 0.0).amax(1, keepdim=True).detach()
        weight = exp_or_zero(torch.where(filled, weight, -torch.inf))
        weight = weight / torch.where(has_met, weight.sum(1, keepdim=True), 1.0)
        weight = F.dropout(weight, self.dropout, self.training)
        found = (weight.unsqueeze(3) * value).sum(1).flatten(1)  # [num_roots, out_channels]
        return found + self.lin_skip(of_root)


class LinkPredictor(nn.Module):
    """The logit of an event between two nodes; checkpoints of this module in PyG's example of TGN load.

    Args:
        channels: Channels of a node's embedding.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.lin_src = nn.Linear(channels, channels)
        self.lin_dst = nn.Linear(channels, channels)
        self.lin_final = nn.Linear(channels, 1)

    def forward(self, z_src: Tensor, z_dst: Tensor) -> Tensor:
        """Return the logits: [num_events, channels], [num_events, channels] -> [num_events]."""
        return self.lin_final(torch.relu(self.lin_src(z_src) + self.lin_dst(z_dst))).squeeze(1)


class TGN(EventState):
    """A model that predicts the events of a stream from earlier events, batch by batch (arXiv:2006.10637).

    `forward` predicts a batch's events first and takes them in afterwards. Memories, messages and last neighbors are in
    buffers of fixed shape. So a training step compiles once and writes them back; the empty slots of a last, smaller
    batch are masked. `NodeMemory` explains how training and evaluation differ.

    Args:
        num_nodes: Nodes of the whole stream.
        msg_channels: Numbers in the message of an event; may be 0.
        channels: Channels of memories, times and embeddings.
        num_neighbors: Last events of a node that attention sees.
        heads: Attention heads.
        dropout: Share of attention weights zeroed in training.
        since: Point in time up to which attention measures the age of an event: `"now"`, the time of the prediction, as
            in eq. 9, or the neighbor's `"last update"`, as in PyG's example.
        learn_nodes: Whether to learn features v_i of each node and add its memory, s_i + v_i of section 3.1. Without
            these features nodes differ only in the messages and times of their events.

    Raises:
        ValueError: `since` is unknown, the heads do not divide the channels, or there is no slot for a neighbor.

    Example:
        >>> model = TGN(num_nodes=5, msg_channels=1, channels=8, num_neighbors=2)
        >>> src, dst, wrong = torch.tensor([0, 1]), torch.tensor([3, 4]), torch.tensor([4, 3])
        >>> t, msg, mask = torch.tensor([10, 20]), torch.ones(2, 1), torch.tensor([True, True])
        >>> met, not_met = model(src, dst, t, msg, neg_dst=wrong, events_mask=mask)
        >>> met.shape, model.memory.has_message.tolist()
        (torch.Size([2]), [True, True, False, True, True])
    """

    def __init__(
        self,
        num_nodes: int,
        msg_channels: int,
        channels: int = 100,
        num_neighbors: int = 10,
        *,
        heads: int = 2,
        dropout: float = 0.1,
        since: str = "now",
        learn_nodes: bool = False,
    ) -> None:
        super().__init__()
        check_choice("since", since, SINCE)
        self.since = since
        self.num_nodes, self.msg_channels = num_nodes, msg_channels
        self.memory = NodeMemory(num_nodes, msg_channels, channels, channels)
        self.neighbors = LastNeighbors(num_nodes, num_neighbors, msg_channels)
        self.embedding = GraphAttentionEmbedding(
            channels, channels, msg_channels, self.memory.time_enc, heads=heads, dropout=dropout
        )
        self.predictor = LinkPredictor(channels)
        self.node_features = nn.Embedding(num_nodes, channels) if learn_nodes else None

    def forward(
        self,
        src: Tensor,
        dst: Tensor,
        t: Tensor,
        msg: Tensor,
        *,
        neg_dst: Tensor | None = None,
        events_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits of a batch of events from the state before the batch, and then take the events in.

        Args:
            src: Sources. [num_events]
            dst: Destinations. [num_events]
            t: Times, ascending within and across batches. int64 [num_events]
            msg: Messages. [num_events, msg_channels]
            neg_dst: For each event a node that its source did not meet. [num_events]
            events_mask: True where the event is real; padding is last. [num_events]

        Returns:
            Logits of the events, and of the sources with `neg_dst`, or None. [num_events] each; 0 for padding.

        Raises:
            ValueError: shapes do not fit.
        """
        same = {"dst": dst, "t": t, "neg_dst": neg_dst, "events_mask": events_mask}
        shapes = {name: (tensor, src.shape) for name, tensor in same.items()}
        check_shapes("Each event of src has an entry.", **shapes, msg=(msg, (*src.shape, self.msg_channels)))
        real = torch.ones_like(src, dtype=torch.bool) if events_mask is None else events_mask
        src, dst, t = (torch.where(real, one, 0) for one in (src, dst, t))
        msg = torch.where(real.unsqueeze(1), msg, 0.0)
        ends = [src, dst] if neg_dst is None else [src, dst, torch.where(real, neg_dst, 0)]
        z_src, z_dst, *z_neg = self.embed(torch.cat(ends), t.repeat(len(ends))).chunk(len(ends))
        met = torch.where(real, self.predictor(z_src, z_dst), 0.0)
        not_met = torch.where(real, self.predictor(z_src, z_neg[0]), 0.0) if z_neg else None
        events = EventEnds.of(src, dst, t, msg, real)
        self.memory.update(events)
        self.neighbors.insert(events)
        return met, not_met

    def embed(self, node: Tensor, t: Tensor) -> Tensor:
        """Return the embeddings of nodes at given times, from all events so far.

        Args:
            node: Nodes. [num_roots]
            t: Time of each embedding. int64 [num_roots]

        Returns:
            [num_roots, channels]
        """
        neighbors = self.neighbors(node)
        rows = node.numel() + neighbors.node.numel()
        if rows < self.num_nodes:
            touched = torch.cat([node, neighbors.node.flatten()])
            place = torch.arange(rows, device=node.device)
            root, place = place[: node.numel()], place[node.numel() :].view_as(neighbors.node)
        else:  # more rows than nodes: it is less work to take each node once
            touched, root, place = torch.arange(self.num_nodes, device=node.device), node, neighbors.node
        memory, last_update = self.memory(touched)
        if self.node_features is not None:
            memory = memory + gather(self.node_features.weight, touched)
        until = t.unsqueeze(1) if self.since == "now" else last_update[place]
        return self.embedding(memory, until - neighbors.t, root, place, neighbors)
