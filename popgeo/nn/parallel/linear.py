"""Linear layers in shards, cut by outputs (columns), by inputs (rows), or by both in a grid of shards."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from popgeo.nn.parallel.sharded_module import ShardedLinear, products
from popgeo.ops.refusals import check_shapes
from popgeo.ops.shard_exchange import all_gather, all_reduce, replicate, shard


class ColumnParallelLinear(ShardedLinear):
    """A linear layer of which each shard has some of the outputs: X [A1, A2, ...] of arXiv:1909.08053.

    Nothing is exchanged on the way forward, unless the outputs are joined; the gradient of the input is summed over
    shards. A layer that is made with some seed has the weights of the plain layer made with that seed.

    Args:
        in_features: Inputs.
        out_features: Outputs; a multiple of `num_shards`.
        num_shards: Into how many parts the outputs are cut.
        gather_output: Whether outputs are joined again. Left out, they stay cut for `RowParallelLinear`.
        **kwargs: `bias`, cut like the outputs, `device` and `dtype`, as in `nn.Linear`.

    Raises:
        ValueError: the outputs cannot be shared evenly; the message names the nearest numbers that can.

    Example:
        >>> import torch
        >>> up, down = ColumnParallelLinear(8, 32, num_shards=4), RowParallelLinear(32, 8, num_shards=4)
        >>> hidden = up(torch.ones(3, 8)).relu()
        >>> hidden.shape, down(hidden).shape
        (torch.Size([4, 3, 8]), torch.Size([3, 8]))
    """

    def __init__(
        self, in_features: int, out_features: int, num_shards: int, *, gather_output: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(in_features, out_features, (num_shards, 1), **kwargs)
        self.gather_output = gather_output

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [num_local, ..., out_features / num_shards], or joined [..., out_features]"""
        rows = replicate(x.reshape(-1, self.in_features), self.num_shards, num_local=self.num_local)
        out = products(rows, self.weight, self.bias)  # [num_local, rows, out_features / num_shards]
        out = out.reshape(self.num_local, *x.shape[:-1], -1)
        return all_gather(out, -1, self.num_shards) if self.gather_output else out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, gather_output={self.gather_output}"


class RowParallelLinear(ShardedLinear):
    """A linear layer of which each shard has some of the inputs: the other half of arXiv:1909.08053.

    Outputs are summed over shards; the way back exchanges nothing.

    Args:
        in_features: Inputs; a multiple of `num_shards`.
        out_features: Outputs.
        num_shards: Into how many parts the inputs are cut.
        input_is_cut: Whether the input comes in shards, as `ColumnParallelLinear` leaves it; else it is cut here.
        **kwargs: `bias`, which all shards have, `device` and `dtype`, as in `nn.Linear`.

    Raises:
        ValueError: the inputs cannot be shared evenly; the message names the nearest numbers that can.

    Example:
        >>> import torch
        >>> RowParallelLinear(12, 5, num_shards=3, input_is_cut=False)(torch.ones(2, 12)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self, in_features: int, out_features: int, num_shards: int, *, input_is_cut: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(in_features, out_features, (1, num_shards), **kwargs)
        self.input_is_cut = input_is_cut

    def _cut_bias(self, bias: Tensor) -> Tensor:
        return bias  # all shards have it

    def forward(self, x: Tensor) -> Tensor:
        """[num_local, ..., in_features / num_shards], or [..., in_features] to be cut, -> [..., out_features]"""
        if self.input_is_cut:
            expected = self.num_local, *x.shape[1:-1], self.in_features // self.num_shards
            check_shapes("Cut the layer before by columns, or this one with input_is_cut=False.", x=(x, expected))
        else:
            x = shard(x, self.num_shards, -1, num_local=self.num_local)
        partial = products(x.reshape(self.num_local, -1, x.shape[-1]), self.weight, None)
        out = all_reduce(partial, self.num_shards).reshape(*x.shape[1:-1], self.out_features)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, input_is_cut={self.input_is_cut}"


class ParallelLinear2D(ShardedLinear):
    """A linear layer of which each shard has a block: outputs are cut over rows of a grid, inputs over its columns.

    Each shard sees a part of the input and holds 1 / (rows x columns) of the weights; partial outputs are summed over
    the columns, whose IPUs stand next to each other, and joined over the rows.

    Args:
        in_features: Inputs; a multiple of the columns of the grid.
        out_features: Outputs; a multiple of the rows of the grid.
        grid: Rows and columns.
        **kwargs: `bias`, cut like the outputs, `device` and `dtype`, as in `nn.Linear`.

    Raises:
        ValueError: a side cannot be shared evenly; the message names the nearest numbers that can.

    Example:
        >>> import torch
        >>> ParallelLinear2D(12, 6, grid=(2, 3))(torch.ones(4, 12)).shape
        torch.Size([4, 6])
    """

    def _laid_out(self, weight: Tensor) -> Tensor:
        return weight

    @property
    def num_local(self) -> int:
        """How many of the shards it holds."""
        return self.weight.shape[0] * self.weight.shape[1]

    def local_parts(self, num_local: int) -> Mapping[str, tuple[int, ...]]:
        """How many shards of each cut parameter that many shards of the layer have.

        Raises:
            ValueError: they are neither a part of a row of the grid nor whole rows.
        """
        columns = self.grid[1]
        if max(num_local, columns) % min(num_local, columns):
            raise ValueError(f"{num_local} shards of the grid {self.grid} are neither a part of a row nor whole rows.")
        wide = min(num_local, columns)
        high = num_local // wide
        return {"weight": (high, wide)} | ({} if self.bias is None else {"bias": (high,)})

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]"""
        rows, columns = self.grid
        high, wide = self.weight.shape[:2]
        stride = columns // wide  # IPUs of a row of the grid
        mine = shard(x.reshape(-1, self.in_features), columns, -1, num_local=wide)  # [wide, n, in / columns]
        each = replicate(mine, rows, num_local=high, stride=stride)  # [high, wide, n, in / columns]
        partial = products(each.flatten(0, 1), self.weight.flatten(0, 1), None).unflatten(0, (high, wide))
        sums = all_reduce(partial.transpose(0, 1), columns)  # [high, n, out / rows]
        if self.bias is not None:
            sums = sums + self.bias.unsqueeze(1)
        return all_gather(sums, -1, rows, stride=stride).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, grid={self.grid}"
