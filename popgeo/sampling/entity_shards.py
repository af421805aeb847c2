"""Entities of a knowledge graph in shards of equal size, one shard per replica (arXiv:2211.12281).

A batch of triples has the same number of slots for each pair of shards, the shard of the head and of the tail.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from popgeo.sampling.compressed_graph import check_range


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EntityShards:
    """The shard and the row of each entity; sizes differ by at most one, and all shards have the same number of rows.

    Attributes:
        num_entities: The number of entities.
        shard: The shard of each entity. [num_entities]
        row: The row of each entity in its shard. [num_entities]
        entity: The entity of each row; -1 for an empty row. [num_shards, num_rows]

    Example:
        >>> shards = EntityShards.deal(5, num_shards=2, seed=0)
        >>> shards, shards.entity.shape
        (EntityShards(5 entities in 2 shards of 3 rows), torch.Size([2, 3]))
        >>> table = torch.randn(5, 4)
        >>> bool((shards.collect(shards.spread(table)) == table).all())
        True
    """

    num_entities: int
    shard: Tensor
    row: Tensor
    entity: Tensor

    @staticmethod
    def deal(num_entities: int, num_shards: int = 1, seed: int = 0) -> "EntityShards":
        """Distribute entities in random order, which balances the triples of shards; a single shard keeps the order.

        Raises:
            ValueError: there are no entities or no shards, or fewer entities than shards.
        """
        if not 1 <= num_shards <= num_entities:
            raise ValueError(f"num_shards is {num_shards}; give 1 to {num_entities}, the number of entities.")
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(num_entities, generator=generator) if num_shards > 1 else torch.arange(num_entities)
        place = torch.empty_like(order)
        place[order] = torch.arange(num_entities)
        num_rows = -(-num_entities // num_shards)
        entity = torch.full((num_shards, num_rows), -1)
        entity[place % num_shards, place // num_shards] = torch.arange(num_entities)
        return EntityShards(num_entities=num_entities, shard=place % num_shards, row=place // num_shards, entity=entity)

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return self.entity.shape[0]

    @property
    def num_rows(self) -> int:
        """The number of rows of a shard, including empty rows."""
        return self.entity.shape[1]

    @property
    def sizes(self) -> Tensor:
        """The number of entities of each shard; they fill its first rows, [num_shards]."""
        return (self.entity >= 0).sum(1)

    def spread(self, table: Tensor) -> Tensor:
        """Return the rows of each shard from one row per entity; empty rows are zero.

        Args:
            table: One row per entity. [num_entities, ...]

        Returns:
            The rows of the shards. [num_shards, num_rows, ...]

        Raises:
            ValueError: the number of rows of the table is not the number of entities.
        """
        if table.shape[0] != self.num_entities:
            raise ValueError(f"The table has {table.shape[0]} rows for {self.num_entities} entities; give one each.")
        spread = table.new_zeros(*self.entity.shape, *table.shape[1:])
        spread[self.shard, self.row] = table
        return spread

    def collect(self, shards: Tensor) -> Tensor:
        """Return one row per entity from the rows of all shards: the inverse of `spread`.

        Args:
            shards: The rows of the shards. [num_shards, num_rows, ...], or with the first two dimensions as one

        Returns:
            One row per entity. [num_entities, ...]
        """
        rows = shards.reshape(self.num_shards * self.num_rows, *shards.shape[-1:])
        return rows[self.shard * self.num_rows + self.row]

    def __repr__(self) -> str:
        return f"EntityShards({self.num_entities:,} entities in {self.num_shards} shards of {self.num_rows:,} rows)"


def pair_of(triples: Tensor, shards: EntityShards) -> Tensor:
    """Return the pair of shards of each triple: head shard * num_shards + tail shard, [num_triples].

    Raises:
        ValueError: the triples are not int64 [num_triples, 3], or a relation or entity does not exist.

    Example:
        >>> shards = EntityShards.deal(4, num_shards=2)
        >>> pair_of(torch.tensor([[0, 0, 1]]), shards).item() == int(shards.shard[0] * 2 + shards.shard[1])
        True
    """
    if triples.dim() != 2 or triples.shape[1] != 3 or triples.dtype != torch.int64:
        raise ValueError(f"triples are {triples.dtype} {[*triples.shape]}; pass int64 [num_triples, 3].")
    if len(triples) and int(triples[:, 1].min()) < 0:
        first = int((triples[:, 1] < 0).nonzero()[0])
        raise ValueError(f"triples[{first}] is {triples[first].tolist()}; relations are numbered from 0.")
    ends = triples[:, [0, 2]]
    check_range("triples[:, [0, 2]]", ends, shards.num_entities)
    return shards.shard[ends[:, 0]] * shards.num_shards + shards.shard[ends[:, 1]]


def deal_triples(pair: Tensor, num_pairs: int, slots: int, order: Tensor | None = None) -> Tensor:
    """Return the triple in each slot of each batch: each triple once, with the triples of a pair spread evenly.

    The number of batches is the smallest that holds every triple with these slots for each pair.

    Args:
        pair: The pair of shards of each triple. [num_triples]
        num_pairs: The number of pairs.
        slots: Slots of a pair in a batch.
        order: The triples of the epoch, in order. Default: all triples in their order. [number of triples]

    Returns:
        Numbers of triples; -1 for an empty slot. [num_batches, num_pairs, slots]

    Example:
        >>> deal_triples(torch.tensor([0, 1, 0, 0]), num_pairs=2, slots=2).tolist()
        [[[0, 3], [1, -1]], [[2, -1], [-1, -1]]]
    """
    order = torch.arange(len(pair)) if order is None else order
    order = order[pair[order].argsort(stable=True)]  # by pair, in order within a pair
    counts = torch.bincount(pair[order], minlength=num_pairs)
    batches = max(1, -(-int(counts.max()) // slots))
    rank = torch.arange(len(order)) - (counts.cumsum(0) - counts)[pair[order]]  # position within its pair
    table = torch.full((batches, num_pairs, slots), -1)
    table[rank % batches, pair[order], rank // batches] = order
    return table
