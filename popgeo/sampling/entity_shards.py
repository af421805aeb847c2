"""Entities of a knowledge graph in shards of equal size, one shard a replica (arXiv:2211.12281)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EntityShards:
    """Which shard holds each entity, and in which row; sizes differ by one at most, and all have the same rows.

    Attributes:
        num_entities: How many there are.
        shard: The shard of each entity. [num_entities]
        row: Its row there. [num_entities]
        entity: Which entity stands in each row; -1 where none does. [num_shards, num_rows]

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
        """Deals entities out in random order, so that shards have alike many triples; one shard keeps their order.

        Raises:
            ValueError: there are no entities or no shards, or fewer entities than shards.
        """
        if not 1 <= num_shards <= num_entities:
            raise ValueError(
                f"num_shards is {num_shards}; it must be between 1 and the number of entities, {num_entities}."
            )
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
        """How many shards there are."""
        return self.entity.shape[0]

    @property
    def num_rows(self) -> int:
        """Rows of a shard, empty ones included."""
        return self.entity.shape[1]

    @property
    def sizes(self) -> Tensor:
        """Entities of each shard; they fill its first rows. [num_shards]"""
        return (self.entity >= 0).sum(1)

    def spread(self, table: Tensor) -> Tensor:
        """The rows of each shard, from one row for each entity; empty rows are zero.

        Args:
            table: [num_entities, ...]

        Returns:
            [num_shards, num_rows, ...]

        Raises:
            ValueError: the table has other than one row for each entity.
        """
        if table.shape[0] != self.num_entities:
            raise ValueError(
                f"The table has {table.shape[0]} rows for {self.num_entities} entities; it needs one each."
            )
        spread = table.new_zeros(*self.entity.shape, *table.shape[1:])
        spread[self.shard, self.row] = table
        return spread

    def collect(self, shards: Tensor) -> Tensor:
        """One row for each entity from the rows of all shards: the inverse of `spread`.

        Args:
            shards: [num_shards, num_rows, ...], or its first two dimensions as one.

        Returns:
            [num_entities, ...]
        """
        rows = shards.reshape(self.num_shards * self.num_rows, *shards.shape[-1:])
        return rows[self.shard * self.num_rows + self.row]

    def __repr__(self) -> str:
        return f"EntityShards({self.num_entities:,} entities in {self.num_shards} shards of {self.num_rows:,} rows)"
