"""Attention whose heads are sharded."""

import math

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from popgeo.nn.parallel.linear import ColumnParallelLinear, RowParallelLinear
from popgeo.nn.parallel.sharded_module import LinearChoices, as_parameter
from popgeo.ops.refusals import check_shapes
from popgeo.ops.shard_exchange import part_of


class ParallelAttention(nn.Module):
    """A self-attention layer whose heads are sharded (arXiv:1909.08053), with one sum over shards per pass.

    Args:
        width: Features of a position; a multiple of `num_heads`.
        num_heads: Heads; a multiple of `num_shards`.
        num_shards: Number of shards.
        causal: Whether a position sees only itself and earlier positions.
        **kwargs: `bias`, `device` and `dtype` of the four linear layers, as in `nn.Linear`.

    Raises:
        ValueError: heads or width cannot be shared evenly; the message names the nearest possible sizes.

    Example:
        >>> ParallelAttention(12, num_heads=6, num_shards=3)(torch.ones(2, 5, 12)).shape
        torch.Size([2, 5, 12])
    """

    def __init__(
        self, width: int, num_heads: int, num_shards: int, *, causal: bool = True, **kwargs: Unpack[LinearChoices]
    ) -> None:
        super().__init__()
        part_of(width, num_heads, "width")
        part_of(num_heads, num_shards, "num_heads")
        self.num_heads, self.num_shards, self.causal = num_heads, num_shards, causal
        self.qkv = ColumnParallelLinear(width, 3 * width, num_shards, **kwargs)
        self.out = RowParallelLinear(width, width, num_shards, **kwargs)

    @classmethod
    def from_linears(
        cls,
        query: nn.Linear,
        key: nn.Linear,
        value: nn.Linear,
        out: nn.Linear,
        *,
        num_heads: int,
        num_shards: int,
        causal: bool = True,
    ) -> "ParallelAttention":
        """Return a sharded attention layer with copies of the weights of four linear layers.

        Raises:
            ValueError: a layer has another width, or only some of query, key and value have a bias, or train theirs.
        """
        width = out.in_features
        made = cls(width, num_heads, num_shards, causal=causal, device="meta")
        square = {"query": query, "key": key, "value": value, "out": out}
        check_shapes("All keep the width.", **{name: (part.weight, (width, width)) for name, part in square.items()})
        for name in ("weight", "bias"):
            if len({getattr(getattr(linear, name), "requires_grad", None) for linear in (query, key, value)}) > 1:
                raise ValueError(f"Only some of query, key and value have a {name}, or train it. Make all three alike.")
        parts = [ColumnParallelLinear.from_linear(linear, num_shards) for linear in (query, key, value)]
        merged = ColumnParallelLinear.from_linear(query, num_shards)
        merged.out_features = 3 * query.out_features
        merged.weight = as_parameter(torch.cat([part.weight for part in parts], 1), query.weight)
        if merged.bias is not None:
            merged.bias = as_parameter(torch.cat([part.bias for part in parts], 1), merged.bias)
        made.qkv, made.out = merged, RowParallelLinear.from_linear(out, num_shards)
        return made

    def to_linears(self) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
        """Return plain linear layers for query, key, value and result, with the same weights."""
        width = self.out.in_features
        plain = []
        for number in range(3):
            part = ColumnParallelLinear(width, width, self.num_shards, device="meta")
            part.weight = nn.Parameter(self.qkv.weight.detach().chunk(3, 1)[number])
            bias = self.qkv.bias
            part.bias = None if bias is None else nn.Parameter(bias.detach().chunk(3, 1)[number])
            plain.append(part.to_linear())
        return plain[0], plain[1], plain[2], self.out.to_linear()

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended positions: [sequences, positions, width] -> the same shape."""
        heads, positions = self.num_heads // self.num_shards, x.shape[1]
        qkv = self.qkv(x).unflatten(-1, (3, heads, -1))  # [num_local, sequences, positions, 3, heads, channels]
        query, key, value = qkv.transpose(2, 4).unbind(3)  # [num_local, sequences, heads, positions, channels] each
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if self.causal:
            later = torch.ones(positions, positions, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(2, 3).flatten(-2))

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"num_heads={self.num_heads}, num_shards={self.num_shards}, causal={self.causal}"
