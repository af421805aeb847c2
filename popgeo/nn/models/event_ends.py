"""What a batch of events brings to each node that takes part in it, and the tables of fixed size that keep it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from popgeo.ops.refusals import check_least


@dataclass(frozen=True, kw_only=True)
class EventEnds:
    """Both ends of each event of a batch in the order of time: the source of the first, its destination, and so on.

    The ends of padding events represent the last of the first node's, so that they repeat what that one writes; a table
    needs no spare row for them.

    Attributes:
        node: The node at each end. [2 * num_events]
        other: The node at the other end. [2 * num_events]
        t: When. int64 [2 * num_events]
        msg: What the event carries. [2 * num_events, msg_channels]
        earlier: Earlier ends of the same node in this batch. [2 * num_events]
        later: Later ends of the same node in this batch. [2 * num_events]
        last: Which end is the last of the same node. [2 * num_events]
        is_real: False at the ends of padding. [2 * num_events]
        any_real: Whether there is any event at all. []
    """

    node: Tensor
    other: Tensor
    t: Tensor
    msg: Tensor
    earlier: Tensor
    later: Tensor
    last: Tensor
    is_real: Tensor
    any_real: Tensor

    @staticmethod
    def of(src: Tensor, dst: Tensor, t: Tensor, msg: Tensor, events_mask: Tensor) -> "EventEnds":
        """The ends of a batch of events, padding last.

        Args:
            src: Sources. [num_events]
            dst: Destinations. [num_events]
            t: Times, ascending. [num_events]
            msg: What each carries. [num_events, msg_channels]
            events_mask: True where the event is real. [num_events]

        Example:
            >>> src, dst, t = torch.tensor([3, 3, 0]), torch.tensor([1, 2, 0]), torch.tensor([5, 6, 0])
            >>> ends = EventEnds.of(src, dst, t, torch.zeros(3, 0), torch.tensor([True, True, False]))
            >>> ends.node.tolist(), ends.last.tolist()
            ([3, 1, 3, 2, 3, 3], [2, 1, 2, 3, 2, 2])
        """
        real = _twice(events_mask)
        node = torch.stack([src, dst], dim=1).flatten()
        node = torch.where(real, node, torch.where(real[0], node[0], 0))
        place = torch.arange(node.size(0), device=node.device)
        same = (node.unsqueeze(1) == node) & real  # [end, any real end of the same node]
        return EventEnds(
            node=node,
            other=torch.stack([dst, src], dim=1).flatten(),
            t=_twice(t),
            msg=_twice(msg),
            earlier=(same & (place < place.unsqueeze(1))).sum(1),
            later=(same & (place > place.unsqueeze(1))).sum(1),
            last=torch.where(same, place, 0).amax(1),
            is_real=real,
            any_real=events_mask.any(),
        )

    def write(self, table: Tensor, row: Tensor, value: Tensor) -> None:
        """Writes one row of a table for each end, in place; ends with the same row must bring the same value.

        Args:
            table: The table to write to. [num_rows, ...]
            row: Where. [2 * num_events]
            value: What. [2 * num_events, ...]
        """
        kept = self.any_real.view(*[1] * value.dim())
        table.index_copy_(0, row, torch.where(kept, value, table[row]))


def _twice(values: Tensor) -> Tensor:
    """Each row twice. [num_events, ...] -> [2 * num_events, ...]"""
    return values.unsqueeze(1).expand(-1, 2, *values.shape[1:]).flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class RecentNeighbors:
    """The last neighbors of some nodes, in no particular order.

    Attributes:
        node: The neighbors. [num_rows, size]
        t: When each was met. int64 [num_rows, size]
        msg: What that event carried. [num_rows, size, msg_channels]
        mask: True if there is one. [num_rows, size]
    """

    node: Tensor
    t: Tensor
    msg: Tensor
    mask: Tensor


class EventState(nn.Module):
    """What a module knows of past events: its buffers."""

    @torch.no_grad()
    def reset_state(self) -> None:
        """Forgets all events."""
        for state in self.buffers():
            state.zero_()


class LastNeighbors(EventState):
    """Who each node met in its last events, and what they carried: PyG's `LastNeighborLoader` as state of a module.

    Each node has a row of `size` slots that are written in turn. Of a node with more than `size` events in one batch
    the last stay, where PyG's loader keeps any. State is buffers of fixed shape, which compiled steps write back.

    Args:
        num_nodes: Nodes that there are or will be.
        size: How many events of each node are remembered.
        msg_channels: What an event carries; may be 0.

    Example:
        >>> last = LastNeighbors(num_nodes=4, size=2, msg_channels=0)
        >>> src, dst, t = torch.tensor([0, 0, 0]), torch.tensor([1, 2, 3]), torch.tensor([7, 8, 9])
        >>> last.insert(EventEnds.of(src, dst, t, torch.zeros(3, 0), torch.ones(3, dtype=torch.bool)))
        >>> found = last(torch.tensor([0, 3]))
        >>> found.node[found.mask].sort().values, found.mask
        (tensor([0, 2, 3]), tensor([[ True,  True], [ True, False]]))
    """

    neighbor: Tensor
    time: Tensor
    msg: Tensor
    num_events: Tensor

    def __init__(self, num_nodes: int, size: int, msg_channels: int) -> None:
        super().__init__()
        check_least(1, "A node needs a slot for a neighbor.", size=size)
        self.size = size
        self.register_buffer("neighbor", torch.zeros(num_nodes, size, dtype=torch.int64))
        self.register_buffer("time", torch.zeros(num_nodes, size, dtype=torch.int64))
        self.register_buffer("msg", torch.zeros(num_nodes, size, msg_channels))
        self.register_buffer("num_events", torch.zeros(num_nodes, dtype=torch.int64))

    def forward(self, node: Tensor) -> RecentNeighbors:
        """The last neighbors of each of the nodes [num_rows]."""
        filled = torch.arange(self.size, device=node.device) < self.num_events[node].unsqueeze(1)
        return RecentNeighbors(node=self.neighbor[node], t=self.time[node], msg=self.msg[node], mask=filled)

    @torch.no_grad()
    def insert(self, ends: EventEnds) -> None:
        """Learns of a batch of events; of a node with more than `size` the last ones stay."""
        count = self.num_events[ends.node]
        # What is padding or overwritten within the batch repeats what the last end of the same node writes.
        place = torch.arange(ends.last.size(0), device=ends.last.device)
        chosen = torch.where(ends.is_real & (ends.later < self.size), place, ends.last)
        slot = ((count + ends.earlier) % self.size)[chosen]
        row = ends.node * self.size + slot
        ends.write(self.neighbor.view(-1), row, ends.other[chosen])
        ends.write(self.time.view(-1), row, ends.t[chosen])
        ends.write(self.msg.flatten(0, 1), row, ends.msg[chosen])
        ends.write(self.num_events, ends.node, (count + ends.earlier + 1)[ends.last])
