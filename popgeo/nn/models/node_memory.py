"""The memory of TGN: a state for each node, and the node's last message, which will update the state."""

import torch
from torch import Tensor, nn

from popgeo.nn.models.event_ends import EventEnds, EventState
from popgeo.ops import gather

_SLOWEST = 9.0  # powers of ten between the highest and the lowest frequency, as in the paper's code


class TimeEncoder(nn.Module):
    """An encoder of times as cos(w t + b), with initial frequencies from 1 down to 1e-9 (arXiv:2002.07962).

    Parameters have the names of PyG's `TimeEncoder`.

    Example:
        >>> TimeEncoder(3)(torch.tensor([0, 7])).shape
        torch.Size([2, 3])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(1, channels)
        with torch.no_grad():
            self.lin.weight.copy_(10 ** -torch.linspace(0, _SLOWEST, channels).unsqueeze(1))
            self.lin.bias.zero_()

    def forward(self, t: Tensor) -> Tensor:
        """Return the encoding of times: [...] -> [..., channels]."""
        return self.lin(t.to(self.lin.weight.dtype).unsqueeze(-1)).cos()


class NodeMemory(EventState):
    """The memory of nodes in a stream of events, and the waiting message of each node (arXiv:2006.10637).

    A message is [s_i, s_j, e_ij, time since the last update], eq. 1 with the identity. Only a node's last message in a
    batch counts, eq. 2. A GRU updates the memory with it, eq. 3. A message is computed when the memory is updated, so
    that in training the loss has a gradient for the modules that compute messages. A batch's own messages are stored
    after its prediction, so the prediction does not know them. The state is in buffers of fixed shape, which compiled
    steps write back.

    In training a node's message updates its memory at its next event, and in evaluation at once. So `eval()` after
    training applies all waiting messages. Call `reset_state()` before training starts again at the
    first event.

    The module equals `torch_geometric.nn.TGNMemory` with `IdentityMessage`, `LastAggregator` and torch_scatter, for
    events of ascending times; among a node's events at the same time the later event counts. (Without torch_scatter,
    PyG gives a node without a message the message of another node.) PyG's checkpoints load, but contain no messages.

    Args:
        num_nodes: Nodes of the whole stream.
        msg_channels: Numbers in the message of an event; may be 0.
        memory_channels: Channels of a node's memory.
        time_channels: Channels of a time.

    Example:
        >>> memory = NodeMemory(num_nodes=3, msg_channels=1, memory_channels=4, time_channels=2)
        >>> event = (torch.tensor([0]), torch.tensor([2]), torch.tensor([5]), torch.ones(1, 1), torch.tensor([True]))
        >>> memory.update(EventEnds.of(*event))
        >>> memory(torch.tensor([0, 1]))[1]  # the time of each node's last update
        tensor([5, 0])
    """

    memory: Tensor
    last_update: Tensor
    message_other: Tensor
    message_time: Tensor
    message: Tensor
    has_message: Tensor

    def __init__(self, num_nodes: int, msg_channels: int, memory_channels: int, time_channels: int) -> None:
        super().__init__()
        self.num_nodes = num_nodes
        self.time_enc = TimeEncoder(time_channels)
        self.gru = nn.GRUCell(2 * memory_channels + msg_channels + time_channels, memory_channels)
        self.register_buffer("memory", torch.zeros(num_nodes, memory_channels))
        self.register_buffer("last_update", torch.zeros(num_nodes, dtype=torch.int64))
        self.register_buffer("message_other", torch.zeros(num_nodes, dtype=torch.int64))
        self.register_buffer("message_time", torch.zeros(num_nodes, dtype=torch.int64))
        self.register_buffer("message", torch.zeros(num_nodes, msg_channels))
        self.register_buffer("has_message", torch.zeros(num_nodes, dtype=torch.bool))
        self.register_load_state_dict_pre_hook(_without_messages)

    def forward(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return the memory of nodes and the time of its last update; in training it includes the waiting message.

        Args:
            node: Nodes. [num_rows]

        Returns:
            [num_rows, memory_channels] and int64 [num_rows]
        """
        if self.training:
            return self._taken_in(node)
        return gather(self.memory, node), self.last_update[node]

    @torch.no_grad()
    def update(self, ends: EventEnds) -> None:
        """Store a batch of events. Call this after the predictions for the batch."""
        if not self.training:
            self._store(ends)
        memory, last_update = self._taken_in(ends.node)
        ends.write(self.memory, ends.node, memory[ends.last])
        ends.write(self.last_update, ends.node, last_update)
        if self.training:
            self._store(ends)

    def train(self, mode: bool = True) -> "NodeMemory":
        """Set the mode. A change from training to evaluation updates all nodes with their waiting messages."""
        if self.training and not mode:
            with torch.no_grad():
                memory, last_update = self._taken_in(torch.arange(self.num_nodes, device=self.memory.device))
                self.memory.copy_(memory)
                self.last_update.copy_(last_update)
                self.has_message.zero_()
        return super().train(mode)

    def _taken_in(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return the memory updated by the waiting message, eq. 3, and the time of that message."""
        waits, t, before = self.has_message[node], self.message_time[node], self.last_update[node]
        own, other = gather(self.memory, node), gather(self.memory, self.message_other[node])
        parts = [own, other, gather(self.message, node), self.time_enc(t - before)]
        message = torch.where(waits.unsqueeze(1), torch.cat(parts, dim=1), 0.0)  # eq. 1
        return self.gru(message, own), torch.where(waits, t, before)

    def _store(self, ends: EventEnds) -> None:
        """Store the parts of each node's last message, eq. 2."""
        ends.write(self.message_other, ends.node, ends.other[ends.last])
        ends.write(self.message_time, ends.node, ends.t[ends.last])
        ends.write(self.message, ends.node, ends.msg[ends.last])
        ends.write(self.has_message, ends.node, torch.ones_like(ends.is_real))


def _without_messages(module: nn.Module, state: dict, prefix: str, *of_loading: object) -> None:
    """Adapt a PyG checkpoint, which has an additional table and no messages, to this module without messages."""
    if state.pop(f"{prefix}_assoc", None) is not None:
        for name in ("message_other", "message_time", "message", "has_message"):
            state[f"{prefix}{name}"] = torch.zeros_like(module.get_buffer(name))
