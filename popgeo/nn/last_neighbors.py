"""The last neighbours of each node in a stream of events, as tables of fixed shape."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from popgeo.nn.event_ends import EventEnds


@dataclass(frozen=True, kw_only=True)
class LastMet:
    """The last neighbours of some nodes, in no particular order.

    Attributes:
        node: The neighbours. [num_rows, size]
        t: When each was met. int64 [num_rows, size]
        msg: What that event carried. [num_rows, size, msg_channels]
        mask: True where there is one. [num_rows, size]
    """

    node: Tensor
    t: Tensor
    msg: Tensor
    mask: Tensor


class LastNeighbors(nn.Module):
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
        if size < 1:
            raise ValueError(f"size is {size}; a node needs at least one slot for a neighbour.")
        self.size = size
        self.register_buffer("neighbor", torch.zeros(num_nodes, size, dtype=torch.int64))
        self.register_buffer("time", torch.zeros(num_nodes, size, dtype=torch.int64))
        self.register_buffer("msg", torch.zeros(num_nodes, size, msg_channels))
        self.register_buffer("num_events", torch.zeros(num_nodes, dtype=torch.int64))

    def forward(self, node: Tensor) -> LastMet:
        """The last neighbours of each of the nodes [num_rows]."""
        filled = torch.arange(self.size, device=node.device) < self.num_events[node].unsqueeze(1)
        return LastMet(node=self.neighbor[node], t=self.time[node], msg=self.msg[node], mask=filled)

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

    @torch.no_grad()
    def reset_state(self) -> None:
        """Forgets all events."""
        for state in self.buffers():
            state.zero_()
