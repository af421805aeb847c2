"""Batches of one shape from a stream of events, in the order of time, with negatives."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import TemporalData

from popgeo.sampling.random_numbers import below, keys_of, new_key

_MADE = ("neg_dst", "events_mask")


class FixedSizeEventLoader:
    """Loads successive events of PyG's `TemporalData`, as many in each batch, the last one filled up with zeros.

    A batch is a `TemporalData` with all that the events have and, for each of its slots, `events_mask`, True where
    there is an event, and `neg_dst`, a random destination for link prediction; with `negatives=None` there is none. A
    negative depends on the seed, the epoch and the number of the event, and not on the size of the batches.

    Args:
        data: Events, ascending in time: `src`, `dst`, `t`, and what else there is, one row an event.
        batch_size: Events of a batch.
        negatives: The nodes that negatives are drawn from: the first, and the one after the last. By default from the
            smallest to the largest destination of these events; a part of a stream needs the range of the whole.
        same_negatives: Draws the same in every epoch, as an evaluation should.
        seed: Of the negatives; drawn from torch's random numbers when left out.

    Raises:
        ValueError: the events are not in the order of time, there are none, or a number is out of range.

    Example:
        >>> src, dst, t = torch.tensor([0, 1, 0]), torch.tensor([3, 4, 4]), torch.tensor([10, 11, 15])
        >>> loader = FixedSizeEventLoader(TemporalData(src, dst, t), batch_size=2, negatives=None)
        >>> [(batch.src.tolist(), batch.events_mask.tolist()) for batch in loader]
        [([0, 1], [True, True]), ([0, 0], [True, False])]
    """

    def __init__(
        self,
        data: TemporalData,
        batch_size: int,
        *,
        negatives: tuple[int, int] | str | None = "destinations",
        same_negatives: bool = False,
        seed: int | None = None,
    ) -> None:
        num_events = len(data.src)
        self._check(data, batch_size)
        self.num_events, self.batch_size, self.same_negatives, self.epoch = num_events, batch_size, same_negatives, 0
        if isinstance(negatives, str):
            if negatives != "destinations":
                raise ValueError(f"negatives is {negatives!r}; it must be a pair of nodes, 'destinations' or None.")
            negatives = int(data.dst.min()), int(data.dst.max()) + 1
        if negatives is not None and not 0 <= negatives[0] < negatives[1] < 2**32:
            raise ValueError(f"negatives is {negatives}; it must be the first node and the one after the last.")
        self.negatives, self._key = negatives, new_key(seed)
        free = len(self) * batch_size - num_events
        columns = {name: values for name, values in data.to_dict().items() if name not in _MADE}
        self._columns = {name: torch.cat([v, v.new_zeros(free, *v.shape[1:])]) for name, v in columns.items()}
        self._columns["events_mask"] = torch.arange(num_events + free) < num_events

    def __len__(self) -> int:
        return math.ceil(self.num_events / self.batch_size)

    def __iter__(self) -> Iterator[TemporalData]:
        columns = dict(self._columns)
        if self.negatives is not None:
            columns["neg_dst"] = self._draw(0 if self.same_negatives else self.epoch)
        self.epoch += 1
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield TemporalData(**{name: v[start : start + self.batch_size].clone() for name, v in columns.items()})

    def __repr__(self) -> str:
        drawn = "none" if self.negatives is None else f"of nodes {self.negatives[0]} to {self.negatives[1] - 1}"
        return (
            f"{type(self).__name__}({self.num_events:,} events in {len(self):,} batches of {self.batch_size}, "
            f"negatives: {drawn})"
        )

    def _draw(self, epoch: int) -> Tensor:
        """A negative destination for each slot of an epoch. [num_slots]"""
        assert self.negatives is not None
        first, end = self.negatives
        numbers = np.arange(self.num_events, dtype=np.uint64)
        keys = np.repeat(keys_of(self._key, np.array([epoch])), self.num_events)
        drawn = below(keys, numbers, np.full(self.num_events, end - first, np.uint64)).astype(np.int64) + first
        slots = self._columns["dst"].new_zeros(len(self) * self.batch_size)
        slots[: self.num_events] = torch.from_numpy(drawn)
        return slots

    @staticmethod
    def _check(data: TemporalData, batch_size: int) -> None:
        num_events = len(data.src)
        if batch_size < 1 or num_events == 0:
            raise ValueError(f"{num_events} events in batches of {batch_size}; there must be at least one of each.")
        columns = data.to_dict().items()
        wrong = [name for name, v in columns if not isinstance(v, Tensor) or v.shape[:1] != (num_events,)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} is no tensor with one row for each of {num_events} events.")
        back = int((data.t.diff() < 0).sum())
        if back:
            raise ValueError(
                f"{back} of {num_events} events are earlier than the one before. Sort them: data[data.t.argsort()]."
            )
