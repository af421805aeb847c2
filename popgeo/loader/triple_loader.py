"""Batches of a knowledge graph's triples, with equally many slots for each pair of shards, and their negatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from popgeo.sampling import EntityShards
from popgeo.sampling.shard_pairs import deal_triples, num_batches, pair_of


class TripleBatch(NamedTuple):
    """Triples and negatives of one shape; the arguments of `popgeo.nn.ShardedTraining`, in order.

    A process gets the part of its `num_local` shards. Rows are those within a shard; what a shard looks up in its own
    rows for the others stands under the shard that owns it.

    Attributes:
        head: Row of each head in its shard. [num_local, num_shards of the tail, slots]
        relation: Relation of each triple, as `head`.
        tail: Row of each tail in its shard. [num_local, num_shards of the head, slots]
        triples_mask: True where the slot holds a triple, as `head`.
        head_entity: Entity of each head, as `head`.
        tail_entity: Entity of each tail, as `head`.
        negative: Rows that a shard sends to each shard. [num_local, num_shards that receive, num_negatives]
        negative_entity: Entities that a shard receives, -1 where the row is empty.
            [num_local, num_shards that send, num_negatives]
        weight: Triples of the whole batch for each shard, on average. [num_local]
    """

    head: Tensor
    relation: Tensor
    tail: Tensor
    triples_mask: Tensor
    head_entity: Tensor
    tail_entity: Tensor
    negative: Tensor
    negative_entity: Tensor
    weight: Tensor


class TripleLoader:
    """Epochs of triples in batches of one shape: equally many slots for each pair of shards (arXiv:2211.12281).

    So every shard looks up, sends and receives equally much in each step. An epoch has each triple once; the slots that
    a pair cannot fill are masked. Each shard contributes as many negatives as the next. The batches of an epoch follow
    from the seed and its number alone, also where several processes each take their part of them.

    Args:
        triples: Head, relation and tail of each. int64 [num_triples, 3]
        shards: Where each entity lies.
        slots: Triples of a batch for each pair of shards; a batch holds `num_shards ** 2` times as many.
        num_negatives: Entities that each shard draws for each shard, with replacement; None takes all that it has.
        shuffle: Whether each epoch has an order of its own.
        seed: Decides orders and negatives.
        rank: Which process this is.
        world_size: Of how many, which share the shards evenly: process 0 has the first ones.

    Raises:
        ValueError: a number is not positive, the triples do not fit, or the processes cannot share the shards.

    Example:
        >>> triples = torch.tensor([[0, 0, 1], [1, 0, 2], [2, 1, 3]])
        >>> loader = TripleLoader(triples, EntityShards.deal(4, num_shards=2), slots=2, num_negatives=3)
        >>> batch = next(iter(loader))
        >>> batch.head.shape, batch.negative.shape, int(batch.triples_mask.sum())
        (torch.Size([2, 2, 2]), torch.Size([2, 2, 3]), 3)
    """

    def __init__(
        self,
        triples: Tensor,
        shards: EntityShards,
        slots: int,
        num_negatives: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, number in (("slots", slots), ("num_negatives", num_negatives), ("world_size", world_size)):
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}; it must be at least 1.")
        if shards.num_shards % world_size or not 0 <= rank < world_size:
            raise ValueError(
                f"Process {rank} of {world_size} cannot take an even part of {shards.num_shards} shards. Choose a "
                "multiple of the number of processes, and a rank below it."
            )
        self.triples, self.shards, self.slots, self.num_negatives = triples, shards, slots, num_negatives
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        self._pair = pair_of(triples, shards)
        if not len(triples):
            raise ValueError("There are no triples; pass at least one.")
        num_local = shards.num_shards // world_size
        self.local = slice(rank * num_local, (rank + 1) * num_local)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return num_batches(self._pair, self.shards.num_shards**2, self.slots)

    def __iter__(self) -> Iterator[TripleBatch]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        generator = torch.Generator().manual_seed(hash((self.seed, epoch)) % 2**63)
        table = deal_triples(self._pair, self.shards.num_shards**2, self.slots, generator if self.shuffle else None)
        for chosen in table.view(len(table), self.shards.num_shards, self.shards.num_shards, self.slots):
            yield self._batch(chosen, generator)

    def _batch(self, chosen: Tensor, generator: torch.Generator) -> TripleBatch:
        """The local part of a batch of these triples. [num_shards, num_shards, slots]"""
        local, mask = self.local, chosen >= 0
        triples = self.triples[chosen.clamp(min=0)]
        head, relation, tail = torch.where(mask.unsqueeze(-1), triples, 0).unbind(-1)
        # Entity 0 may lie elsewhere, but its row is one that every shard has.
        rows = self.shards.row
        negative, entity = self._negatives(generator)
        return TripleBatch(
            head=rows[head][local],
            relation=relation[local],
            tail=rows[tail].transpose(0, 1)[local].contiguous(),
            triples_mask=mask[local],
            head_entity=head[local],
            tail_entity=tail[local],
            negative=negative[local],
            negative_entity=entity.transpose(0, 1)[local].contiguous(),
            weight=torch.full((local.stop - local.start,), float(mask.sum()) / self.shards.num_shards),
        )

    def _negatives(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows that each shard sends to each, and the entities in them. [num_shards, num_shards, num_negatives] both"""
        num_shards, num_rows = self.shards.entity.shape
        if self.num_negatives is None:
            rows = torch.arange(num_rows).expand(num_shards, num_shards, num_rows).contiguous()
        else:
            draws = torch.rand(num_shards, num_shards, self.num_negatives, generator=generator, dtype=torch.float64)
            rows = (draws * self.shards.sizes.view(-1, 1, 1)).long()
        return rows, self.shards.entity.gather(1, rows.flatten(1)).view_as(rows)

    def __repr__(self) -> str:
        negatives = "all" if self.num_negatives is None else f"{self.num_negatives:,}"
        filled = len(self.triples) / (len(self) * self.shards.num_shards**2 * self.slots)
        return (
            f"TripleLoader({len(self.triples):,} triples in {len(self):,} batches, {self.shards.num_shards} x "
            f"{self.shards.num_shards} x {self.slots:,} slots, {100 * filled:.1f} % of them filled, "
            f"{negatives} negatives of each shard)"
        )
