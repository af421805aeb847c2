"""`HeteroLinear` without a look at the types."""

from torch import Tensor
from torch_geometric import nn

from popgeo.capture.static_layers import hetero_linear


class HeteroLinear(nn.HeteroLinear):
    """PyG's layer; each row is taken through the weights of all types, and that of its own is kept.

    Example:
        >>> import torch
        >>> HeteroLinear(2, 3, num_types=2)(torch.ones(4, 2), torch.tensor([0, 1, 1, 0])).shape
        torch.Size([4, 3])
    """

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        """Features. [num_rows, out_channels]"""
        return hetero_linear(nn.HeteroLinear.forward, self, x, type_vec)
