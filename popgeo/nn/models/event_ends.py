"""The ends of a batch of events, and tables of fixed size that store the last events of each node."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from popgeo.ops.refusals import check_least


@dataclass(frozen=True, kw_only=True)
class EventEnds:
    """The ends of a batch's events in the order of time: the first event's source, its destination, and so on.

    The ends of padding events repeat the last end of the first node. They write the same values again, so a table needs
    no spare row for padding.

    Attributes:
        node: Node at each end. [2 * num_events]
        other: Node at the other end of the event. [2 * num_events]
        t: Time of the event. int64 [2 * num_events]
        msg: Message of the event. [2 * num_events, msg_channels]
        earlier: Number of earlier ends of the same node in this batch. [2 * num_events]
        later: Number of later ends of the same node in this batch. [2 * num_events]
        last: Number of the last end of the same node. [2 * num_events]
        is_real: False at the ends of padding events. [2 * num_events]
        any_real: True if the batch has a real event. []
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
        """Return the ends of a batch of events with padding at its end.

        Args:
            src: Sources. [num_events]
            dst: Destinations. [num_events]
            t: Times, ascending. [num_events]
            msg: Messages. [num_events, msg_channels]
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
        """Write each end's value to its row of a table, in place. Ends with the same row must have equal values.

        Args:
            table: Table to write to. [num_rows, ...]
            row: Row of each end. [2 * num_events]
            value: Value of each end. [2 * num_events, ...]
        """
        kept = self.any_real.view(*[1] * value.dim())
        table.index_copy_(0, row, torch.where(kept, value, table[row]))


def _twice(values: Tensor) -> Tensor:
    """Return each row twice: [num_events, ...] -> [2 * num_events, ...]."""
    return values.unsqueeze(1).expand(-1, 2, *values.shape[1:]).flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class RecentNeighbors:
    """The last neighbors of some nodes, in no particular order.

    Attributes:
        node: Neighbors. [num_rows, size]
        t: Time of the event with each neighbor. int64 [num_rows, size]
        msg: Message of that event. [num_rows, size, msg_channels]
        mask: True if the slot contains a neighbor. [num_rows, size]
    """

    node: Tensor
    t: Tensor
    msg: Tensor
    mask: Tensor


class EventState(nn.Module):
    """A module that remembers past events in its buffers."""

    @torch.no_grad()
    def reset_state(self) -> None:
        """Forget all events, as before the first event of an epoch."""
        for state in self.buffers():
            state.zero_()


class LastNeighbors(EventState):
    """The neighbors and messages of each node's last events: PyG's `LastNeighborLoader` as the state of a module.

    Each node has a row of `size` slots that are written in turn. If a node has more than `size` events in one batch,
    the last events stay; PyG's loader keeps arbitrary ones. The state is in buffers of fixed shape, which compiled
    steps write back.

    Args:
        num_nodes: Nodes of the whole stream.
        size: Number of events that each node remembers.
        msg_channels: Numbers in the message of an event; may be 0.

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
        """Return the last neighbors of the given nodes [num_rows]."""
        filled = torch.arange(self.size, device=node.device) < self.num_events[node].unsqueeze(1)
        return RecentNeighbors(node=self.neighbor[node], t=self.time[node], msg=self.msg[node], mask=filled)

    @torch.no_grad()
    def insert(self, ends: EventEnds) -> None:
        """Insert a batch of events. If a node has more than `size` events, keep the last events."""
        count = self.num_events[ends.node]
        # Ends of padding, and ends that this batch overwrites, write the same values as the last end of their node.
        place = torch.arange(ends.last.size(0), device=ends.last.device)
        chosen = torch.where(ends.is_real & (ends.later < self.size), place, ends.last)
        slot = ((count + ends.earlier) % self.size)[chosen]
        row = ends.node * self.size + slot
        ends.write(self.neighbor.view(-1), row, ends.other[chosen])
        ends.write(self.time.view(-1), row, ends.t[chosen])
        ends.write(self.msg.flatten(0, 1), row, ends.msg[chosen])
        ends.write(self.num_events, ends.node, (count + ends.earlier + 1)[ends.last])
