"""`InstanceNorm` without a look at the number of graphs."""

from torch import Tensor
from torch_geometric import nn

from popgeo.capture.static_layers import instance_norm


class InstanceNorm(nn.InstanceNorm):
    """PyG's layer; without a number of graphs there are as many slots for them as nodes.

    Example:
        >>> import torch
        >>> InstanceNorm(1)(torch.tensor([[1.0], [3.0]]), torch.zeros(2, dtype=torch.long)).round()
        tensor([[-1.],
                [ 1.]])
    """

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Features of nodes. [num_nodes, channels]"""
        return instance_norm(nn.InstanceNorm.forward, self, x, batch, batch_size)
