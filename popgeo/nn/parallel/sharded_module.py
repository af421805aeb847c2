"""What every layer in shards has: how many shards there are, and which of its weights are cut."""

from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.ops.shard_exchange import part_of


class Cut(Enum):
    """How a layer is cut.

    Attributes:
        COLUMN: A linear layer by its outputs, which stay cut for what follows.
        ROW: A linear layer by its inputs, which come cut from what precedes.
        GATHERED_COLUMN: A linear layer by its outputs, which are joined again.
        WHOLE_ROW: A linear layer by its inputs, which come whole.
        VOCABULARY: An embedding by its rows.
        WIDTH: An embedding by its columns.
    """

    COLUMN = "column"
    ROW = "row"
    GATHERED_COLUMN = "gathered column"
    WHOLE_ROW = "whole row"
    VOCABULARY = "vocabulary"
    WIDTH = "width"


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

    def local_parts(self, num_local: int) -> Mapping[str, tuple[int, ...]]:
        """How many shards of each cut parameter, by name, `num_local` shards of the layer have.

        Raises:
            ValueError: the layer has no such part.
        """
        return {"weight": (num_local,)}

    @abstractmethod
    def to_plain(self) -> nn.Module:
        """The plain layer with the same weights."""


class ShardedLinear(ShardedModule):
    """A linear layer in a grid of shards: its outputs are cut over the rows of the grid, its inputs over the columns.

    A layer that is made with some seed has the weights of the plain layer made with that seed.

    Args:
        in_features: Inputs; a multiple of the columns.
        out_features: Outputs; a multiple of the rows.
        grid: Rows and columns.
        **kwargs: As in `nn.Linear`.

    Raises:
        ValueError: a side cannot be shared evenly; the message names the nearest numbers that can.
    """

    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, grid: tuple[int, int], **kwargs: Any) -> None:
        super().__init__(grid[0] * grid[1])
        part_of(out_features, grid[0], "out_features")
        part_of(in_features, grid[1], "in_features")
        self.in_features, self.out_features, self.grid = in_features, out_features, grid
        self._take(nn.Linear(in_features, out_features, **kwargs))

    @classmethod
    def from_linear(cls, linear: nn.Linear, shards: Any, **choices: Any) -> Any:
        """The same layer in shards, as the constructor takes them and its other choices; the weights are copied."""
        made = cls(linear.in_features, linear.out_features, shards, **choices, device="meta")
        made._take(linear)
        return made

    def _take(self, linear: nn.Linear) -> None:
        weight, bias, (rows, columns) = linear.weight, linear.bias, self.grid
        cut = weight.unflatten(1, (columns, -1)).unflatten(0, (rows, -1)).movedim(2, 1)
        self.weight = as_parameter(self._laid_out(cut), weight)
        self.bias = None if bias is None else as_parameter(self._cut_bias(bias), bias)

    def _laid_out(self, weight: Tensor) -> Tensor:
        """[rows, columns, out / rows, in / columns] as the layer keeps it: [shards, out / rows, in / columns]"""
        return weight.flatten(0, 1)

    def _cut_bias(self, bias: Tensor) -> Tensor:
        """[out] -> [rows, out / rows]"""
        return bias.unflatten(0, (self.grid[0], -1))

    def to_plain(self) -> nn.Linear:
        """The plain layer with the same weights."""
        cut = self.weight.reshape(*self.grid, *self.weight.shape[-2:])
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        linear.weight = as_parameter(cut.movedim(1, 2).flatten(2).flatten(0, 1), self.weight)
        if self.bias is not None:
            linear.bias = as_parameter(self.bias.flatten(), self.bias)
        return linear

    to_linear = to_plain

    def local_parts(self, num_local: int) -> Mapping[str, tuple[int, ...]]:
        """How many shards of each cut parameter that many shards of the layer have."""
        is_cut = self.bias is not None and self.bias.dim() > 1
        return {"weight": (num_local,)} | ({"bias": (num_local,)} if is_cut else {})

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, num_shards={self.num_shards}"


def as_parameter(cut: Tensor, like: Tensor) -> nn.Parameter:
    """A tensor as a parameter of its own memory, trained if the one that it was cut from is."""
    return nn.Parameter(cut.detach().contiguous().clone(), requires_grad=like.requires_grad)


def products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Each shard's product: [shards, n, in] and [shards, out, in] -> [shards, n, out]"""
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
