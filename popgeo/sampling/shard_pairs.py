"""Triples in batches with equally many slots for each pair of shards, the head's and the tail's (arXiv:2211.12281)."""

import torch
from torch import Tensor

from popgeo.sampling.compressed_graph import check_range
from popgeo.sampling.entity_shards import EntityShards


def pair_of(triples: Tensor, shards: EntityShards) -> Tensor:
    """The pair of shards of each triple: head shard * num_shards + tail shard. [num_triples, 3] -> [num_triples]

    Raises:
        ValueError: the triples are not whole numbers [num_triples, 3], or name an entity that there is not.

    Example:
        >>> shards = EntityShards.deal(4, num_shards=2)
        >>> pair_of(torch.tensor([[0, 0, 1]]), shards).item() == int(shards.shard[0] * 2 + shards.shard[1])
        True
    """
    if triples.dim() != 2 or triples.shape[1] != 3 or triples.dtype != torch.int64:
        raise ValueError(
            f"triples are {triples.dtype} of shape {tuple(triples.shape)}; they need int64 [num_triples, 3]: head, "
            "relation, tail."
        )
    ends = triples[:, [0, 2]]
    check_range("triples[:, [0, 2]]", ends, shards.num_entities)
    return shards.shard[ends[:, 0]] * shards.num_shards + shards.shard[ends[:, 1]]


def deal_triples(pair: Tensor, num_pairs: int, slots: int, order: Tensor | None = None) -> Tensor:
    """Which triple stands in each slot of each batch of an epoch: each once, those of a pair spread evenly.

    There are as few batches as hold every triple once with so many slots for each pair.

    Args:
        pair: The pair of shards of each triple. [num_triples]
        num_pairs: How many pairs there are.
        slots: Slots of a pair in a batch.
        order: The triples of the epoch, in order; None takes all as they are. [number of triples]

    Returns:
        Triples by number; -1 where a slot stays empty. [num_batches, num_pairs, slots]

    Example:
        >>> deal_triples(torch.tensor([0, 1, 0, 0]), num_pairs=2, slots=2).tolist()
        [[[0, 3], [1, -1]], [[2, -1], [-1, -1]]]
    """
    order = torch.arange(len(pair)) if order is None else order
    order = order[pair[order].argsort(stable=True)]  # by pair, within it as they come
    counts = torch.bincount(pair[order], minlength=num_pairs)
    batches = max(1, -(-int(counts.max()) // slots))
    rank = torch.arange(len(order)) - (counts.cumsum(0) - counts)[pair[order]]  # which of its pair
    table = torch.full((batches, num_pairs, slots), -1)
    table[rank % batches, pair[order], rank // batches] = order
    return table
