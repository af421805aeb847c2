"""The loader of a knowledge graph's triples, with negatives and the same number of slots for each pair of shards."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from typing_extensions import Unpack

from popgeo.data.cut import BatchMemory
from popgeo.loader.epoch_choices import EpochArguments, EpochChoices, choices_from
from popgeo.loader.epoch_loader import EpochLoader, loader_class
from popgeo.loader.sampler import OrderPacker
from popgeo.loader.shard import shard_of_this_process
from popgeo.loader.source import BatchSource
from popgeo.loader.tensor_versions import GraphVersions
from popgeo.packing import Packs
from popgeo.random_numbers import generator_of
from popgeo.sampling import EntityShards
from popgeo.sampling.entity_shards import deal_triples, pair_of


class TripleBatch(NamedTuple):
    """A batch of triples and negatives; its fields are the arguments of `popgeo.nn.ShardedTraining`, in order.

    A process gets the part of its `num_local` shards. Rows count within a shard. The rows that a shard looks up for
    other shards are listed under the shard that owns them.

    Attributes:
        head: Row of each head in its shard. [num_local, num_shards of the tail, slots]
        relation: Relation of each triple; the shape of `head`.
        tail: Row of each tail in its shard. [num_local, num_shards of the head, slots]
        triples_mask: True if the slot contains a triple; the shape of `head`.
        head_entity: Entity of each head; the shape of `head`.
        tail_entity: Entity of each tail; the shape of `head`.
        negative: Rows that a shard sends to each shard. [num_local, num_shards that receive, num_negatives]
        negative_entity: Entities that a shard receives, -1 if the row is empty.
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

    def to(self, device: torch.device | str) -> "TripleBatch":
        """Return the batch on a device."""
        return TripleBatch(*(tensor.to(device) for tensor in self))


@dataclass(frozen=True, kw_only=True, eq=False)
class TripleSource(BatchSource):
    """A source that makes batches from packs of triples, and draws their negatives.

    Args:
        triples: Head, relation and tail of each triple. int64 [num_triples, 3]
        pair: The pair of shards of each triple. [num_triples]
        shards: Shard and row of each entity.
        slots: Triples of a batch for each pair of shards.
        num_negatives: Entities that each shard draws for each shard; None takes all of its entities.
        local: The shards of this process.
    """

    triples: Tensor
    pair: Tensor
    shards: EntityShards
    slots: int
    num_negatives: int | None
    local: slice

    def together(self, order: np.ndarray) -> Packs:
        """Group the triples of an epoch into batches, by pair of shards."""
        table = deal_triples(self.pair, self.shards.num_shards**2, self.slots, torch.from_numpy(order)).flatten(1)
        ends = (table >= 0).sum(1).cumsum(0).numpy()
        return Packs(table[table >= 0].numpy(), np.concatenate([[0], ends]))

    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: BatchMemory | None = None) -> list[Any]:
        """Return the batches of some packs, each `group` batches concatenated on dimension 0."""
        batches = [self._batch(ids, generator_of(*key, ids)) for ids in packs]
        starts = range(0, len(batches), group)
        return [TripleBatch(*map(torch.cat, zip(*batches[i : i + group], strict=True))) for i in starts]

    def _batch(self, ids: np.ndarray, generator: torch.Generator) -> TripleBatch:
        local, num_shards = self.local, self.shards.num_shards
        chosen = deal_triples(self.pair, num_shards**2, self.slots, torch.from_numpy(ids))[0]
        chosen = chosen.view(num_shards, num_shards, self.slots)
        mask = chosen >= 0
        head, relation, tail = torch.where(mask.unsqueeze(-1), self.triples[chosen.clamp(min=0)], 0).unbind(-1)
        # Empty slots contain entity 0. It may belong to a different shard, but every shard has a row with its number.
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
            weight=torch.full((local.stop - local.start,), float(mask.sum()) / num_shards),
        )

    def _negatives(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the rows and entities that each shard sends to each shard, [num_shards, num_shards, num_negatives]."""
        num_shards, num_rows = self.shards.entity.shape
        if self.num_negatives is None:
            rows = torch.arange(num_rows).expand(num_shards, num_shards, num_rows).contiguous()
        else:
            draws = torch.rand(num_shards, num_shards, self.num_negatives, generator=generator, dtype=torch.float64)
            rows = (draws * self.shards.sizes.view(-1, 1, 1)).long()
        return rows, self.shards.entity.gather(1, rows.flatten(1)).view_as(rows)


@loader_class
class TripleLoader(EpochLoader):
    """A loader of triples in batches of one shape, with equal slots for each pair of shards (arXiv:2211.12281).

    Every shard therefore looks up, sends and receives equally much in each step. An epoch has each triple once. Slots
    that a pair cannot fill are masked. All shards contribute equally many negatives. The batches of an epoch follow
    from the seed and the number of the epoch, also if several processes each take their part of every batch.

    Args:
        triples: Head, relation and tail of each triple. int64 [num_triples, 3]
        shards: Shard and row of each entity.
        slots: Triples of a batch for each pair of shards; a batch has `num_shards ** 2` times as many.
        num_negatives: Entities that each shard draws for each shard, with replacement. Default: all of its entities.
        shuffle: Whether each epoch has a random order.
        seed: Number that decides orders and negatives; see `EpochChoices`.
        options: Number of batches in one item, or an object that has it; see `EpochChoices`.
        kwargs: Further arguments; `EpochChoices` explains those that are not torch's. Here `rank` and `world_size` are
            the processes that share each batch: process 0 has the first shards. `batch_sampler` is refused.

    Raises:
        ValueError: a number is not positive, the triples do not fit, or the processes cannot share the shards; or, at
            the next epoch, triples or shards were edited in place.

    Example:
        >>> triples = torch.tensor([[0, 0, 1], [1, 0, 2], [2, 1, 3]])
        >>> loader = TripleLoader(triples, EntityShards.deal(4, num_shards=2), slots=2, num_negatives=3)
        >>> batch = next(iter(loader))
        >>> batch.head.shape, batch.negative.shape, int(batch.triples_mask.sum())
        (torch.Size([2, 2, 2]), torch.Size([2, 2, 3]), 3)
    """

    _unit = "triples"

    def __init__(
        self,
        triples: Tensor,
        shards: EntityShards,
        slots: int,
        num_negatives: int | None = None,
        *,
        shuffle: bool = True,
        seed: int | None = None,
        options: Any = None,
        **kwargs: Unpack[EpochArguments],
    ) -> None:
        for name, number in (("slots", slots), ("num_negatives", num_negatives)):
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}; it must be at least 1.")
        choices = choices_from(EpochChoices, kwargs, shuffle=shuffle, seed=seed, options=options)
        if choices.batch_sampler is not None:
            raise ValueError("Slots decide which triples share a batch; leave batch_sampler out.")
        rank, world_size = choices.rank, choices.world_size
        own = shard_of_this_process() if rank is None or world_size is None else (rank, world_size)
        self._rank, self._world_size = own
        num_local, left_over = divmod(shards.num_shards, self._world_size)
        if left_over:
            raise ValueError(f"{self._world_size} processes cannot share {shards.num_shards} shards evenly.")
        pair = pair_of(triples, shards)
        if not len(triples):
            raise ValueError("There are no triples; pass at least one.")
        self.triples, self.shards, self.slots, self.num_negatives = triples, shards, slots, num_negatives
        self.local = slice(self._rank * num_local, (self._rank + 1) * num_local)
        source = TripleSource(
            triples=triples, pair=pair, shards=shards, slots=slots, num_negatives=num_negatives, local=self.local
        )
        read = Data(triples=triples, shard=shards.shard, row=shards.row, entity=shards.entity)
        seen = GraphVersions(read, list(read.keys()), list(read.keys()))
        packer = OrderPacker(num_items=len(triples), together=source.together, seen=seen)
        # Processes share each batch, so all of them go through the batches of one shard.
        choices, batch_size = replace(choices, rank=0, world_size=1), shards.num_shards**2 * slots
        super().__init__(triples, source, packer, choices, batch_size, kwargs)
        self._epochs.num_alike = self._world_size

    @property
    def rank(self) -> int:
        """Number of the part of every batch that this process loads."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of processes that share each batch."""
        return self._world_size

    def _in_one_line(self) -> str:
        negatives = "all" if self.num_negatives is None else f"{self.num_negatives:,}"
        filled = len(self.triples) / (len(self) * self.shards.num_shards**2 * self.slots)
        return (
            f"{len(self.triples):,} triples in {len(self):,} batches, {self.shards.num_shards} x "
            f"{self.shards.num_shards} x {self.slots:,} slots, {100 * filled:.1f} % of them filled, "
            f"{negatives} negatives of each shard"
        )
