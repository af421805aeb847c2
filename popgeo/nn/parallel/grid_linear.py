"""A linear layer in a grid of shards, cut by outputs and by inputs."""

from collections.abc import Mapping

from torch import Tensor

from popgeo.nn.parallel.sharded_module import ShardedLinear, products
from popgeo.ops.shard_exchange import all_gather, all_reduce, replicate, shard


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
        """How many shards of each cut parameter so many shards of the layer have.

        Raises:
            ValueError: they are neither a part of a row of the grid nor whole rows.
        """
        columns = self.grid[1]
        if max(num_local, columns) % min(num_local, columns):
            raise ValueError(
                f"{num_local} shards of a grid of {self.grid[0]} x {columns} are neither a part of a row nor whole "
                "rows."
            )
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
