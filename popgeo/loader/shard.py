"""Sharding of an epoch's batches into disjoint shards of equal length, one per rank."""

import heapq
import math
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch.distributed as dist

from popgeo.packing import Packs


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The part of an epoch that one process loads.

    Args:
        rank: Number of the shard.
        world_size: Number of shards.
        group: Batches of an item.
    """

    rank: int = 0
    world_size: int = 1
    group: int = 1


def shard_of_this_process() -> tuple[int, int]:
    """Return the rank and the number of processes in the default group of `torch.distributed`; (0, 1) without a group.

    Raises:
        ValueError: a launcher's `WORLD_SIZE` names several processes, but they have no group yet. Each of them would
            load all graphs.

    Example:
        >>> shard_of_this_process()
        (0, 1)
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    launched = os.environ.get("WORLD_SIZE", "1")
    if launched.isdigit() and int(launched) > 1:
        raise ValueError(
            f"WORLD_SIZE is {launched}, but these processes have no group yet, so each would load all graphs. Use the "
            f"loader after torch.distributed.init_process_group() (or Accelerator(), or inside Trainer.fit), or pass "
            f"rank= and world_size=; rank=0 and world_size=1 load all graphs in each process."
        )
    return 0, 1


def in_whole_steps(packs: Packs, together: int, drop_last: bool = False) -> Packs:
    """Split batches in two until their number is a multiple of `together`.

    Every graph is then used once, and all ranks do equally many steps. If splitting is not enough, batches of padding
    are added. With `drop_last` the batches that are too many are dropped instead. Rank r later takes batch r and every
    `world_size`-th batch after it.

    Example:
        >>> packs = Packs.from_lists([[0, 1, 2], [3, 4], [5]])
        >>> [pack.tolist() for pack in in_whole_steps(packs, together=2)]
        [[0], [1, 2], [3, 4], [5]]
    """
    ptr = packs.ptr
    missing = -len(packs) % together
    if missing and drop_last:
        ptr = ptr[: len(packs) // together * together + 1]
    elif missing:
        cuts = _cuts(ptr, missing)
        padding = np.full(missing - len(cuts), packs.num_graphs, dtype=np.int64)
        ptr = np.sort(np.concatenate([ptr, np.array(cuts, dtype=np.int64), padding]))
    return Packs(packs.indices[: ptr[-1]], ptr, packs.skipped)


def _cuts(ptr: np.ndarray, wanted: int) -> list[int]:
    """Return up to `wanted` positions at which to split batches: largest batches first, of equal batches the last."""
    cuts: list[int] = []
    heap = [(start - stop, -start, stop) for start, stop in pairwise(ptr.tolist())]
    heapq.heapify(heap)
    while heap and len(cuts) < wanted:
        negative_count, negative_start, stop = heapq.heappop(heap)
        if negative_count > -2:
            break
        start = -negative_start
        middle = (start + stop) // 2
        cuts.append(middle)
        heapq.heappush(heap, (start - middle, -start, middle))
        heapq.heappush(heap, (middle - stop, -middle, stop))
    return cuts


def num_mini_batches(options: Any, world_size: int = 1) -> int:
    """Return the number of batches in one item of one rank. The ranks share the replicas.

    Raises:
        ValueError: `options` is not a number and lacks a count, or the ranks cannot share its replicas evenly.

    Example:
        >>> num_mini_batches(None), num_mini_batches(6)
        (1, 6)
    """
    if options is None or isinstance(options, int):
        count = 1 if options is None else options
    else:
        if missing := [name for name in _COUNTS if not hasattr(options, name)]:
            raise ValueError(
                f"options is a {type(options).__name__} without {missing}. Pass a number, or an object with these."
            )
        if options.replication_factor % world_size:
            raise ValueError(
                f"options.replication_factor is {options.replication_factor}, which {world_size} ranks cannot share "
                f"evenly. Choose a multiple of {world_size}, or pass rank=0 and world_size=1: all in each process."
            )
        count = math.prod(getattr(options, name) for name in _COUNTS) // world_size
    if count < 1:
        raise ValueError(f"options asks for {count} batches in one item; it must be 1 or more.")
    return count


_COUNTS = ("device_iterations", "gradient_accumulation", "replication_factor")
