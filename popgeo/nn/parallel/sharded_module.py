"""The base classes of sharded layers."""

from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from popgeo.ops.refusals import check_shapes
from popgeo.ops.shard_exchange import part_of


class Cut(Enum):
    """The ways to cut a layer into shards.

    Attributes:
        COLUMN: Cut a linear layer by its outputs, which stay cut for the next layer.
        ROW: Cut a linear layer by its inputs, which the previous layer leaves cut.
        GATHERED_COLUMN: Cut a linear layer by its outputs, and join them again.
        WHOLE_ROW: Cut a linear layer by its inputs, which arrive whole.
        VOCABULARY: Cut an embedding by its rows.
        WIDTH: Cut an embedding by its columns.
    """

    COLUMN = "column"
    ROW = "row"
    GATHERED_COLUMN = "gathered column"
    WHOLE_ROW = "whole row"
    VOCABULARY = "vocabulary"
    WIDTH = "width"


class LinearChoices(TypedDict, total=False):
    """The keyword arguments of `nn.Linear` that sharded layers pass on.

    Attributes:
        bias: Whether the layer adds a learned bias. Default: True.
        device: Where the weights are made. Default: torch's default device.
        dtype: Type of the weights. Default: torch's default type.
    """

    bias: bool
    device: torch.device | str | None
    dtype: torch.dtype | None


class ShardedModule(nn.Module):
    """A sharded layer. The first dimension of its weights is the shards of this process.

    The layer computes with all shards in its weights. So the same code runs all shards in one process, some of
    them in each of several processes (`popgeo.nn.parallel.shard_model.keep_shards`), and one shard in the program that
    `popgeo.ipu` plans for one of several IPUs.

    Args:
        num_shards: Number of shards, in all processes.
    """

    weight: Tensor

    def __init__(self, num_shards: int) -> None:
        super().__init__()
        self.num_shards, self.first_shard = num_shards, 0

    @property
    def num_local(self) -> int:
        """The number of shards in this process."""
        return self.weight.shape[0]

    def local_parts(self, num_local: int) -> Mapping[str, tuple[int, ...]]:
        """Return the leading dimensions of each cut parameter, by name, for `num_local` shards of the layer.

        Raises:
            ValueError: the layer cannot be divided into parts of this number of shards.
        """
        return {"weight": (num_local,)}

    @abstractmethod
    def to_plain(self) -> nn.Module:
        """Return the plain layer with the same weights.

        Raises:
            ValueError: this process holds only some of the shards, or the layer has hooks.
        """


class ShardedLinear(ShardedModule):
    """A linear layer in a grid of shards: its outputs are cut over the rows of the grid, its inputs over the columns.

    With the same seed the layer has the same weights as the plain layer.

    Args:
        in_features: Inputs; a multiple of the columns.
        out_features: Outputs; a multiple of the rows.
        grid: Rows and columns.
        **kwargs: `bias`, `device` and `dtype`, as in `nn.Linear`.

    Raises:
        ValueError: a side cannot be shared evenly; the message names the nearest possible sizes.
    """

    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, grid: tuple[int, int], **kwargs: Unpack[LinearChoices]
    ) -> None:
        super().__init__(grid[0] * grid[1])
        part_of(out_features, grid[0], "out_features")
        part_of(in_features, grid[1], "in_features")
        self.in_features, self.out_features, self.grid = in_features, out_features, grid
        self._take(nn.Linear(in_features, out_features, **kwargs))

    @classmethod
    def from_linear(cls, linear: nn.Linear, shards: Any, **choices: Any) -> Any:
        """Return the same layer in shards, with copies of the weights.

        Args:
            linear: The plain layer.
            shards: `num_shards`, or `grid`, of the constructor.
            **choices: Other choices of the constructor, such as `gather_output` or `input_is_cut`.

        Raises:
            ValueError: the shards cannot share a side evenly, or the layer has hooks or computed weights.
        """
        refuse_hooks(linear)
        sharded = cls(linear.in_features, linear.out_features, shards, **choices, device="meta")
        sharded._take(linear)
        return sharded

    def _take(self, linear: nn.Linear) -> None:
        weight, bias, (rows, columns) = linear.weight, linear.bias, self.grid
        cut = weight.unflatten(1, (columns, -1)).unflatten(0, (rows, -1)).movedim(2, 1)
        self.weight = as_parameter(self._laid_out(cut), weight)
        self.bias = None if bias is None else as_parameter(self._cut_bias(bias), bias)

    def _rows(self, x: Tensor) -> Tensor:
        """Return the rows of an input that is not cut: [..., in_features] -> [rows, in_features]."""
        check_shapes("The last dimension is in_features.", x=(x, (*x.shape[:-1], self.in_features)))
        return x.reshape(-1, self.in_features)

    def _laid_out(self, weight: Tensor) -> Tensor:
        """Return the layer's own layout: [rows, columns, out / rows, in / columns] -> [shards, out / rows, ...]."""
        return weight.flatten(0, 1)

    def _cut_bias(self, bias: Tensor) -> Tensor:
        """Return the bias of each row of the grid: [out] -> [rows, out / rows]."""
        return bias.unflatten(0, (self.grid[0], -1))

    def to_plain(self) -> nn.Linear:
        """Return the plain layer with the same weights."""
        refuse_hooks(self)
        require_all_shards(self)
        cut = self.weight.reshape(*self.grid, *self.weight.shape[-2:])
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        linear.weight = as_parameter(cut.movedim(1, 2).flatten(2).flatten(0, 1), self.weight)
        if self.bias is not None:
            linear.bias = as_parameter(self.bias.flatten(), self.bias)
        return linear

    to_linear = to_plain

    def local_parts(self, num_local: int) -> Mapping[str, tuple[int, ...]]:
        """Return the leading dimension of each cut parameter, by name, for `num_local` shards of the layer."""
        is_cut = self.bias is not None and self.bias.dim() > 1
        return {"weight": (num_local,)} | ({"bias": (num_local,)} if is_cut else {})

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, num_shards={self.num_shards}"


def as_parameter(cut: Tensor, like: Tensor) -> nn.Parameter:
    """Return a copy of a tensor as a parameter, which is trained if the original parameter is."""
    return nn.Parameter(cut.detach().contiguous().clone(), requires_grad=like.requires_grad)


def require_all_shards(layer: ShardedModule) -> None:
    """Raise a ValueError if this process holds only some of a layer's shards."""
    if layer.num_local != layer.num_shards:
        held = f"{layer} holds {layer.num_local} of its {layer.num_shards} shards"
        raise ValueError(f"{held}. Use a model with all of them: keep_shards drops the shards of other processes.")


def refuse_hooks(layer: nn.Module) -> None:
    """Raise a ValueError if a layer computes with more than its weights, which a copy of its weights would lose."""
    computed = any(getattr(layer, name, None) is not layer._parameters.get(name) for name in ("weight", "bias"))
    if computed or any(hooks for name, hooks in vars(layer).items() if name.endswith("_hooks")):
        why = "which a copy of its weights would lose. Remove them first, and add them to the new layer"
        raise ValueError(f"{layer} has hooks or computed weights, {why}.")


def products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias of each shard: [shards, n, in] and [shards, out, in] -> [shards, n, out]."""
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
