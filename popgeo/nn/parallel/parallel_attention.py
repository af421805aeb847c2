"""Attention whose heads lie in shards."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from popgeo.nn.parallel.linear import ColumnParallelLinear, RowParallelLinear
from popgeo.nn.parallel.sharded_module import as_parameter
from popgeo.ops.shard_exchange import part_of


class ParallelAttention(nn.Module):
    """Self-attention of which each shard has some of the heads (arXiv:1909.08053): one sum over shards each way.

    Args:
        width: Of a position; a multiple of `num_heads`.
        num_heads: Heads; a multiple of `num_shards`.
        num_shards: Into how many parts the heads are cut.
        causal: Whether a position sees only itself and those before it.
        **kwargs: Of the four products, as in `nn.Linear`: `bias`, `device` and `dtype`.

    Raises:
        ValueError: heads or width cannot be shared evenly; the message names the nearest numbers that can.

    Example:
        >>> ParallelAttention(12, num_heads=6, num_shards=3)(torch.ones(2, 5, 12)).shape
        torch.Size([2, 5, 12])
    """

    def __init__(self, width: int, num_heads: int, num_shards: int, *, causal: bool = True, **kwargs: Any) -> None:
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
        """The same attention in shards; the weights of the four products are copied."""
        made = cls(out.in_features, num_heads, num_shards, causal=causal, device="meta")
        if len({linear.bias is None for linear in (query, key, value)}) > 1:
            raise ValueError("Only some of query, key and value have a bias; give each of them one, or none.")
        parts = [ColumnParallelLinear.from_linear(linear, num_shards) for linear in (query, key, value)]
        merged = ColumnParallelLinear.from_linear(query, num_shards)
        merged.out_features = 3 * query.out_features
        merged.weight = as_parameter(torch.cat([part.weight for part in parts], 1), query.weight)
        if merged.bias is not None:
            merged.bias = as_parameter(torch.cat([part.bias for part in parts], 1), merged.bias)
        made.qkv, made.out = merged, RowParallelLinear.from_linear(out, num_shards)
        return made

    def to_linears(self) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
        """The plain layers of query, key, value and result with the same weights."""
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
        """[sequences, positions, width] -> [sequences, positions, width]"""
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
        return f"num_heads={self.num_heads}, num_shards={self.num_shards}, causal={self.causal}"
