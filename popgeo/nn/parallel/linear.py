"""Sharded linear layers, cut by outputs (columns), by inputs (rows), or by both in a grid of shards."""

from collections.abc import Mapping

from torch import Tensor
from typing_extensions import Unpack

from popgeo.nn.parallel.sharded_module import LinearChoices, ShardedLinear, products
from popgeo.ops.refusals import check_shapes
from popgeo.ops.shard_exchange import all_gather, all_reduce, replicate, shard


class ColumnParallelLinear(ShardedLinear):
    """A sharded linear layer in which each shard computes some outputs: X [A1, A2, ...] of arXiv:1909.08053.

    The forward pass exchanges nothing, unless the outputs are joined; the gradient of the input is summed over shards.
    With the same seed the layer has the same weights as the plain layer.

    Args:
        in_features: Inputs.
        out_features: Outputs; a multiple of `num_shards`.
        num_shards: Number of shards.
        gather_output: Whether outputs are joined again. Default: they stay cut for `RowParallelLinear`.
        **kwargs: `bias`, which is cut like the outputs, `device` and `dtype`, as in `nn.Linear`.

    Raises:
        ValueError: the shards cannot share the outputs evenly; the message names the nearest possible sizes.

    Example:
        >>> import torch
        >>> up, down = ColumnParallelLinear(8, 32, num_shards=4), RowParallelLinear(32, 8, num_shards=4)
        >>> hidden = up(torch.ones(3, 8)).relu()
        >>> hidden.shape, down(hidden).shape
        (torch.Size([4, 3, 8]), torch.Size([3, 8]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_shards: int,
        *,
        gather_output: bool = False,
        **kwargs: Unpack[LinearChoices],
    ) -> None:
        super().__init__(in_features, out_features, (num_shards, 1), **kwargs)
        self.gather_output = gather_output

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs [num_local, ..., out_features / num_shards], or gathered outputs [..., out_features]."""
        rows = replicate(self._rows(x), self.num_shards, num_local=self.num_local)
        out = products(rows, self.weight, self.bias)  # [num_local, rows, out_features / num_shards]
        out = out.reshape(self.num_local, *x.shape[:-1], -1)
        return all_gather(out, -1, self.num_shards) if self.gather_output else out

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{super().extra_repr()}, gather_output={self.gather_output}"


class RowParallelLinear(ShardedLinear):
    """A sharded linear layer in which each shard reads some inputs: the row-parallel layer of arXiv:1909.08053.

    Outputs are summed over shards; the backward pass exchanges nothing.

    Args:
        in_features: Inputs; a multiple of `num_shards`.
        out_features: Outputs.
        num_shards: Number of shards.
        input_is_cut: Whether the input arrives in shards, as `ColumnParallelLinear` leaves it. If not, the layer cuts
            it.
        **kwargs: `bias`, which all shards have, `device` and `dtype`, as in `nn.Linear`.

    Raises:
        ValueError: the shards cannot share the inputs evenly; the message names the nearest possible sizes.

    Example:
        >>> import torch
        >>> RowParallelLinear(12, 5, num_shards=3, input_is_cut=False)(torch.ones(2, 12)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_shards: int,
        *,
        input_is_cut: bool = True,
        **kwargs: Unpack[LinearChoices],
    ) -> None:
        super().__init__(in_features, out_features, (1, num_shards), **kwargs)
        self.input_is_cut = input_is_cut

    def _cut_bias(self, bias: Tensor) -> Tensor:
        return bias  # all shards have it

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs [..., out_features] of [num_local, ..., in_features / num_shards] or uncut [..., in_features].

        Raises:
            ValueError: the input is not cut as the layer expects.
        """
        if self.input_is_cut:
            expected = self.num_local, *x.shape[1:-1], self.in_features // self.num_shards
            check_shapes("Cut the layer before by columns, or this one with input_is_cut=False.", x=(x, expected))
            shape, rows = x.shape[1:-1], x.reshape(self.num_local, -1, x.shape[-1])
        else:
            shape, rows = x.shape[:-1], shard(self._rows(x), self.num_shards, -1, num_local=self.num_local)
        out = all_reduce(products(rows, self.weight, None), self.num_shards).reshape(*shape, self.out_features)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{super().extra_repr()}, input_is_cut={self.input_is_cut}"


class ParallelLinear2D(ShardedLinear):
    """A linear layer whose weight is cut into a grid of shards: grid rows cut outputs, grid columns cut inputs.

    Each shard reads a part of the input and has 1 / (rows x columns) of the weights. Partial outputs are summed over
    the columns, where neighboring IPUs exchange them, and joined over the rows.

    Args:
        in_features: Inputs; a multiple of the columns of the grid.
        out_features: Outputs; a multiple of the rows of the grid.
        grid: Rows and columns.
        **kwargs: `bias`, which is cut like the outputs, `device` and `dtype`, as in `nn.Linear`.

    Raises:
        ValueError: a side cannot be shared evenly; the message names the nearest possible sizes.

    Example:
        >>> import torch
        >>> ParallelLinear2D(12, 6, grid=(2, 3))(torch.ones(4, 12)).shape
        torch.Size([4, 6])
    """

    def _laid_out(self, weight: Tensor) -> Tensor:
        return weight

    @property
    def num_local(self) -> int:
        """The number of shards in this process."""
        return self.weight.shape[0] * self.weight.shape[1]

    def local_parts(self, num_local: int) -> Mapping[str, tuple[int, ...]]:
        """Return the leading dimensions of each cut parameter, by name, for `num_local` shards of the layer.

        Raises:
            ValueError: the shards are neither a part of one grid row nor whole grid rows.
        """
        columns = self.grid[1]
        if max(num_local, columns) % min(num_local, columns):
            raise ValueError(f"{num_local} shards of the grid {self.grid} are neither a part of a row nor whole rows.")
        wide = min(num_local, columns)
        high = num_local // wide
        return {"weight": (high, wide)} | ({} if self.bias is None else {"bias": (high,)})

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's outputs: [..., in_features] -> [..., out_features]."""
        rows, columns = self.grid
        high, wide = self.weight.shape[:2]
        stride = columns // wide  # IPUs of a row of the grid
        mine = shard(self._rows(x), columns, -1, num_local=wide)  # [wide, n, in / columns]
        each = replicate(mine, rows, num_local=high, stride=stride)  # [high, wide, n, in / columns]
        partial = products(each.flatten(0, 1), self.weight.flatten(0, 1), None).unflatten(0, (high, wide))
        sums = all_reduce(partial.transpose(0, 1), columns)  # [high, n, out / rows]
        if self.bias is not None:
            sums = sums + self.bias.unsqueeze(1)
        return all_gather(sums, -1, rows, stride=stride).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, grid={self.grid}"
