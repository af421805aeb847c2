"""MLP: the small network inside a graph convolution."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from popgeo.nn.norm import make_norm


class MLP(nn.Module):
    """A stack of linear layers with a norm and an activation between them; parameters are named as in PyG's `MLP`.

    Args:
        channels: Channels before the first layer and after each layer.
        act: Activation.
        act_first: Whether the activation comes before the norm.
        norm: `"batch_norm"`, `"layer_norm"`, `"graph_norm"`, `"instance_norm"` or None.

    Example:
        >>> MLP([8, 16, 2])(torch.ones(3, 8)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        channels: Sequence[int],
        act: Callable[[Tensor], Tensor] = torch.relu,
        act_first: bool = False,
        norm: str | None = None,
    ) -> None:
        super().__init__()
        self.act, self.act_first = act, act_first
        self.lins = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(channels))
        self.norms = nn.ModuleList(make_norm(norm, hidden) or nn.Identity() for hidden in channels[1:-1])
        self.has_norm = norm is not None

    def forward(
        self, x: Tensor, batch: Tensor | None = None, num_graphs: int | None = None, nodes_mask: Tensor | None = None
    ) -> Tensor:
        """Return the last layer's features: [num_nodes, channels[0]] -> [num_nodes, channels[-1]].

        Args:
            x: Features. [num_nodes, channels[0]]
            batch: Graph of each node, for the norms. [num_nodes]
            num_graphs: Graphs in the batch, padding included, for the norms.
            nodes_mask: True where the node is real, for the norms. [num_nodes]
        """
        for lin, norm in zip(self.lins, self.norms, strict=False):
            x = lin(x)
            if self.act_first:
                x = self.act(x)
            if self.has_norm:
                x = norm(x, batch, num_graphs, nodes_mask)
            if not self.act_first:
                x = self.act(x)
        return self.lins[-1](x)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"act={getattr(self.act, '__name__', self.act)}"
