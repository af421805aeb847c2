"""`MFConv` without a look at the degrees."""

from typing import Any

from torch import Tensor
from torch_geometric import nn

from popgeo.capture.static_layers import mf_conv


class MFConv(nn.MFConv):
    """PyG's layer; each node is taken through the weights of all degrees, and those of its own are kept.

    Example:
        >>> import torch
        >>> MFConv(2, 3)(torch.ones(2, 2), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 3])
    """

    def forward(self, x: Any, edge_index: Any, size: Any = None) -> Tensor:
        """Features of nodes. [num_nodes, out_channels]"""
        # PyG reads what is propagated from the source of the class, in these words:
        # propagate_type: (x: OptPairTensor)
        return mf_conv(nn.MFConv.forward, self, x, edge_index, size)
