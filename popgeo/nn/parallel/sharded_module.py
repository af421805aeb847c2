"""What every layer in shards has: how many shards there are, and which of its weights are cut."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class ShardedModule(nn.Module):
    """A layer whose weights have a first dimension of shards.

    It computes with as many shards as its weights hold, so the same code runs all of them in one process, some of them
    in each of several processes (`popgeo.nn.parallel.shard_model.keep_shards`), and one of them in the program that
    `popgeo.ipu` plans for one of several IPUs.

    Args:
        num_shards: Into how many parts the layer is cut.
    """

    weight: Tensor

    def __init__(self, num_shards: int) -> None:
        super().__init__()
        self.num_shards, self.first_shard = num_shards, 0

    @property
    def num_local(self) -> int:
        """How many of the shards it holds."""
        return self.weight.shape[0]

    @abstractmethod
    def local_parts(self, num_local: int) -> Mapping[str, tuple[int, ...]]:
        """How many shards of each cut parameter, by name, `num_local` shards of the layer have.

        Raises:
            ValueError: the layer has no such part.
        """

    @abstractmethod
    def to_plain(self) -> nn.Module:
        """The plain layer with the same weights."""


def as_parameter(cut: Tensor, like: Tensor) -> nn.Parameter:
    """A tensor as a parameter of its own memory, trained if the one that it was cut from is."""
    return nn.Parameter(cut.detach().contiguous().clone(), requires_grad=like.requires_grad)


def products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Each shard's product: [shards, n, in] and [shards, out, in] -> [shards, n, out]"""
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


def plain_linear(weight: Tensor, bias: Tensor | None, like: Tensor | None) -> nn.Linear:
    """A plain layer with copies of these weights, trained where those that they are of are."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = as_parameter(weight, weight)
    if bias is not None:
        linear.bias = as_parameter(bias, bias)
    return linear
