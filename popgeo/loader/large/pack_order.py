"""Which seeds, or clusters, share a batch in one epoch: a pure function of choices, seed and epoch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from popgeo.loader.epoch import EpochPlan, epoch_generator
from popgeo.loader.shard import Shard, shard
from popgeo.packing import Packs


@dataclass(frozen=True, kw_only=True, eq=False)
class OrderPacker:
    """Puts seeds, or clusters, together in the order of an epoch.

    Args:
        num_items: How many there are.
        together: Puts some together, in the order given.
        shuffle: Whether each epoch has an order of its own.
        sampler: Those of an epoch, in order, instead of all.
        drop_last: Whether what does not fill an item is dropped.
    """

    num_items: int
    together: Callable[[np.ndarray], Packs]
    shuffle: bool
    sampler: Iterable[int] | None
    drop_last: bool

    @property
    def has_own_order(self) -> bool:
        """Whether a sampler decides the order, rather than seed and epoch."""
        return self.sampler is not None

    def pack(self, seed: int, epoch: int, part: Shard) -> EpochPlan:
        """The batches of one epoch, and those of one rank.

        Raises:
            ValueError: the sampler gives a number that there is not, or something fits no batch.
        """
        packs = self.together(self.order(seed, epoch))
        mine = shard(packs, part.rank, part.world_size, part.group, self.drop_last)
        return EpochPlan(key=(seed, epoch), shard=part, whole=packs, packs=mine)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The seeds, or clusters, of one epoch in order. int64 [number of them]"""
        if self.sampler is None:
            if not self.shuffle:
                return np.arange(self.num_items)
            return torch.randperm(self.num_items, generator=epoch_generator(seed, epoch)).numpy()
        tell = getattr(self.sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)
        order = np.fromiter(self.sampler, dtype=np.int64)
        if len(order) and not 0 <= order.min() <= order.max() < self.num_items:
            wrong = order.min() if order.min() < 0 else order.max()
            raise ValueError(f"The sampler gives {wrong}; there are 0 to {self.num_items - 1}. Correct it.")
        return order


def in_equal_numbers(order: np.ndarray, number: int, drop_last: bool) -> Packs:
    """Equally many in every batch but the last, which `drop_last` drops where it has fewer.

    Example:
        >>> [pack.tolist() for pack in in_equal_numbers(np.array([4, 2, 0]), 2, drop_last=False)]
        [[4, 2], [0]]
    """
    stop = len(order) // number * number if drop_last else len(order)
    return Packs(order[:stop], np.append(np.arange(0, stop, number), stop) if stop else np.zeros(1, np.int64))
