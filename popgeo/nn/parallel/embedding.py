"""Sharded embeddings: each shard has some of the rows, or some of the columns."""

import torch
from torch import Tensor, nn

from popgeo.nn.parallel.sharded_module import Cut, ShardedModule, as_parameter, refuse_hooks, require_all_shards
from popgeo.ops.refusals import check_choice
from popgeo.ops.shard_exchange import all_gather, all_reduce, part_of


class ParallelEmbedding(ShardedModule):
    """A sharded embedding (arXiv:1909.08053), whose results equal the plain embedding's bit for bit.

    If the vocabulary is cut, each shard looks up its own rows, uses 0 for all other rows, and the shards' results are
    summed. If the width is cut, each shard looks up its own columns, and the columns are concatenated.

    Args:
        num_embeddings: Rows; a multiple of `num_shards` if rows are cut.
        embedding_dim: Columns; a multiple of `num_shards` if columns are cut.
        num_shards: Number of shards.
        cut: Dimension that is cut: `"vocabulary"` or `"width"`.
        device: Where the weights are made. Default: torch's default device.
        dtype: Type of the weights. Default: torch's default type.

    Raises:
        ValueError: the shards cannot share the dimension evenly; the message names the nearest possible sizes.

    Example:
        >>> ParallelEmbedding(10, 4, num_shards=2)(torch.tensor([[0, 9, 5]])).shape
        torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        num_shards: int,
        *,
        cut: Cut | str = Cut.VOCABULARY,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_shards)
        check_choice("cut", getattr(cut, "value", cut), ("vocabulary", "width"))
        self.cut = Cut(cut)
        sizes = {Cut.VOCABULARY: (num_embeddings, "num_embeddings"), Cut.WIDTH: (embedding_dim, "embedding_dim")}
        size, name = sizes[self.cut]
        part_of(size, num_shards, name)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self._take(nn.Embedding(num_embeddings, embedding_dim, device=device, dtype=dtype))

    @classmethod
    def from_embedding(
        cls, embedding: nn.Embedding, num_shards: int, *, cut: Cut | str = Cut.VOCABULARY
    ) -> "ParallelEmbedding":
        """Return a sharded embedding with copies of the weights.

        Raises:
            ValueError: the embedding has a `padding_idx`, a `max_norm`, `scale_grad_by_freq`, hooks or computed
                weights.
        """
        refuse_hooks(embedding)
        if embedding.max_norm is not None or embedding.padding_idx is not None or embedding.scale_grad_by_freq:
            raise ValueError(
                f"{embedding} has a padding_idx, a max_norm or scale_grad_by_freq, which embeddings in shards lack."
            )
        sharded = cls(embedding.num_embeddings, embedding.embedding_dim, num_shards, cut=cut, device="meta")
        sharded._take(embedding)
        return sharded

    def _take(self, embedding: nn.Embedding) -> None:
        weight, dim = embedding.weight, 0 if self.cut is Cut.VOCABULARY else 1
        self.weight = as_parameter(weight.unflatten(dim, (self.num_shards, -1)).movedim(dim, 0), weight)

    def to_plain(self) -> nn.Embedding:
        """Return the plain embedding with the same weights."""
        refuse_hooks(self)
        require_all_shards(self)
        dim = 0 if self.cut is Cut.VOCABULARY else 1
        weight = self.weight.movedim(0, dim).flatten(dim, dim + 1)
        embedding = nn.Embedding(self.num_embeddings, self.embedding_dim, device="meta")
        embedding.weight = as_parameter(weight, self.weight)
        return embedding

    to_embedding = to_plain

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows of the table at an index: [...] -> [..., embedding_dim]."""
        flat = index.reshape(1, -1)
        count, rows, _ = self.weight.shape
        starts = torch.arange(count, device=index.device).unsqueeze(1)
        if self.cut is Cut.VOCABULARY:
            local = flat - (starts + self.first_shard) * rows  # [num_local, n]
            here = (local >= 0) & (local < rows)
            # An index outside the table becomes -1, so that torch raises the same error as for a plain embedding.
            absent = torch.where((flat >= 0) & (flat < self.num_embeddings), 0, -1)
            found = nn.functional.embedding((local + starts * rows).where(here, absent), self.weight.flatten(0, 1))
            out = all_reduce(found * here.unsqueeze(2), self.num_shards)
        else:
            found = nn.functional.embedding(flat + starts * rows, self.weight.flatten(0, 1))
            out = all_gather(found, -1, self.num_shards)
        return out.reshape(*index.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        """Return the settings that `repr` shows."""
        return f"{self.num_embeddings}, {self.embedding_dim}, num_shards={self.num_shards}, cut={self.cut.value!r}"
