"""What a batch of events brings to each node that takes part in it, and how tables of fixed size keep it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EventEnds:
    """Both ends of each event of a batch in the order of time: the source of the first, its destination, and so on.

    The ends of padding events stand for the last of the first node's, so that they repeat what that one writes; a table
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
            table: What is written to. [num_rows, ...]
            row: Where. [2 * num_events]
            value: What. [2 * num_events, ...]
        """
        kept = self.any_real.view(*[1] * value.dim())
        table.index_copy_(0, row, torch.where(kept, value, table[row]))


def _twice(values: Tensor) -> Tensor:
    """Each row twice. [num_events, ...] -> [2 * num_events, ...]"""
    return values.unsqueeze(1).expand(-1, 2, *values.shape[1:]).flatten(0, 1)
