"""Batches of one shape from a stream of events, in the order of time, with negatives."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import TemporalData

from popgeo.data.cut import BatchMemory
from popgeo.loader.epoch_choices import EpochChoices, chosen
from popgeo.loader.epoch_loader import EpochLoader
from popgeo.loader.sampler import OrderPacker
from popgeo.loader.source import BatchSource
from popgeo.loader.strategy import in_equal_numbers
from popgeo.packing import Packs
from popgeo.random_numbers import below, new_key, seed_of
from popgeo.sampling import NonEdges
from popgeo.sampling.negatives import destinations_of

_MADE = ("neg_dst", "events_mask")


@dataclass(frozen=True, kw_only=True, eq=False)
class EventSource(BatchSource):
    """Makes batches from packs of events, and draws their negatives.

    Args:
        columns: What the events have, one row an event.
        batch_size: Events of a batch.
        negatives: The nodes that negatives are drawn from; None for none.
        same_negatives: Draws the same in every epoch.
    """

    columns: Mapping[str, Tensor]
    batch_size: int
    negatives: "NonNeighbors | None"
    same_negatives: bool

    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: BatchMemory | None = None) -> list[Any]:
        """One item for each `group` packs, one batch after the other."""
        ids = np.full((len(packs), self.batch_size), -1)
        for row, events in zip(ids, packs, strict=True):
            row[: len(events)] = events
        return [self._item(ids[i : i + group].ravel(), key) for i in range(0, len(ids), group)]

    def _item(self, ids: np.ndarray, key: tuple[int, int]) -> TemporalData:
        rows, mask = torch.from_numpy(ids.clip(min=0)), torch.from_numpy(ids >= 0)
        columns = {name: values[rows] for name, values in self.columns.items()}
        if self.negatives is not None:
            seed = seed_of(key[0], 0 if self.same_negatives else key[1])
            columns["neg_dst"] = self.negatives.draw(ids, seed).to(columns["dst"].dtype)
        for values in columns.values():
            values[~mask] = 0
        return TemporalData(**columns, events_mask=mask)


@dataclass(frozen=True, kw_only=True, eq=False)
class NonNeighbors:
    """The nodes that the source of each event does not meet at the time of the event, and that are not the source.

    Args:
        first: The first node that is drawn from.
        group: The number of each event's source and time. [num_events]
        nodes: For each of these numbers, the nodes to leave out, counted from `first`.
    """

    first: int
    group: np.ndarray
    nodes: NonEdges

    @classmethod
    def of(cls, src: Tensor, dst: Tensor, t: Tensor, negatives: tuple[int, int]) -> "NonNeighbors":
        """Return the nodes from the first to the last one, less those that are met.

        Raises:
            ValueError: an event has no such node.
        """
        (first, end), (src, dst, t) = negatives, (column.cpu() for column in (src, dst, t))
        source = torch.unique(src.long(), return_inverse=True)[1]
        time = torch.cat([torch.zeros(1, dtype=torch.int64), (t[1:] != t[:-1]).long()]).cumsum(0)
        group = torch.unique(time * len(src) + source, return_inverse=True)[1]
        met = torch.stack([group.repeat(2), torch.cat([dst, src]).long() - first])
        met = met[:, (met[1] >= 0) & (met[1] < end - first)]
        nodes = NonEdges.from_edge_index(met, (int(group.max()) + 1, end - first))
        if not (free := nodes.num_free(group.numpy())).all():
            event = int(free.argmin())
            raise ValueError(
                f"Event {event} has no negative: of nodes {first} to {end - 1} each is its source, or one that the "
                "source meets at that time. Pass negatives=(first, end) of more nodes, or negatives=None."
            )
        return cls(first=first, group=group.numpy(), nodes=nodes)

    def draw(self, ids: np.ndarray, seed: int) -> Tensor:
        """Return a node for each event that is given by its number, each as likely as the next. int64 [num_ids]"""
        group = self.group[ids]
        ranks = below(
            np.full(len(ids), seed, np.uint64), ids.astype(np.uint64), self.nodes.num_free(group).astype(np.uint64)
        )
        return torch.from_numpy(destinations_of(self.nodes, group, ranks.astype(np.int64))) + self.first


class FixedSizeEventLoader(EpochLoader):
    """Loads successive events of PyG's `TemporalData`, as many in each batch, the last one filled up with zeros.

    A batch is a `TemporalData` with all that the events have and, for each of its slots, `events_mask`, True where
    there is an event, and `neg_dst`, a random node for link prediction that is not the event's source and that the
    source does not meet at that time; it is missing with `negatives=None`. A negative depends on the seed, the epoch
    and the number of the event, and not on the size of the batches.

    Args:
        data: Events, ascending in time: `src`, `dst`, `t`, and what else there is, one row an event.
        batch_size: Events of a batch.
        negatives: The nodes that negatives are drawn from: the first, and the one after the last. By default from the
            smallest to the largest destination of these events; a part of a stream needs the range of the whole.
        same_negatives: Draws the same in every epoch, as an evaluation should.
        seed: Of the negatives. None draws it from torch's generator when the first epoch begins.
        kwargs: By their names, what else `EpochChoices` has, but for an order, such as `rank` and `device`; and what
            torch's `DataLoader` takes, such as `num_workers`.

    Raises:
        ValueError: there are no events, they are not in the order of time, a number is out of range, or an event has
            no negative.

    Example:
        >>> src, dst, t = torch.tensor([0, 1, 0]), torch.tensor([3, 4, 4]), torch.tensor([10, 11, 15])
        >>> loader = FixedSizeEventLoader(TemporalData(src, dst, t), batch_size=2, negatives=None)
        >>> [(batch.src.tolist(), batch.events_mask.tolist()) for batch in loader]
        [([0, 1], [True, True]), ([0, 0], [True, False])]
    """

    _unit = "events"

    def __init__(
        self,
        data: TemporalData,
        batch_size: int,
        *,
        negatives: tuple[int, int] | str | None = "destinations",
        same_negatives: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._check(data, batch_size)
        if isinstance(negatives, str):
            if negatives != "destinations":
                raise ValueError(f"negatives is {negatives!r}; it must be a pair of nodes, 'destinations' or None.")
            negatives = int(data.dst.min()), int(data.dst.max()) + 1
        if negatives is not None and not 0 <= negatives[0] < negatives[1] < 2**32:
            raise ValueError(f"negatives is {negatives}; it must be the first node and the one after the last.")
        if negatives is not None and negatives[1] - 1 > torch.iinfo(data.dst.dtype).max:
            raise ValueError(f"negatives is {negatives}, but dst is {data.dst.dtype}. Pass dst as torch.int64.")
        choices = chosen(EpochChoices, kwargs, seed=None if seed is None else new_key(seed))
        if choices.shuffle or choices.has_own_order:
            raise ValueError("Events come in the order of time; leave shuffle, sampler and batch_sampler out.")
        self.num_events, self.negatives, self.same_negatives = len(data.src), negatives, same_negatives
        columns = {name: values for name, values in data.to_dict().items() if name not in _MADE}
        not_met = None if negatives is None else NonNeighbors.of(data.src, data.dst, data.t, negatives)
        source = EventSource(columns=columns, batch_size=batch_size, negatives=not_met, same_negatives=same_negatives)
        together = partial(in_equal_numbers, number=batch_size, drop_last=choices.drop_last)
        packer = OrderPacker(num_items=self.num_events, together=together)
        super().__init__(data, source, packer, choices, batch_size=batch_size, **kwargs)

    def _in_one_line(self) -> str:
        drawn = "none" if self.negatives is None else f"of nodes {self.negatives[0]} to {self.negatives[1] - 1}"
        return f"{self.num_events:,} events in {len(self):,} batches of {self.batch_size}, negatives: {drawn}"

    @staticmethod
    def _check(data: TemporalData, batch_size: int) -> None:
        num_events = len(data.src)
        if batch_size < 1 or num_events == 0:
            raise ValueError(f"{num_events} events in batches of {batch_size}; there must be at least one of each.")
        columns = data.to_dict()
        wrong = [name for name, v in columns.items() if not isinstance(v, Tensor) or v.shape[:1] != (num_events,)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} is not a tensor with one row for each of {num_events} events.")
        if data.src.is_floating_point() or data.dst.is_floating_point():
            raise ValueError(f"src is {data.src.dtype}, dst {data.dst.dtype}; nodes are numbered by integers.")
        if (lowest := min(int(data.src.min()), int(data.dst.min()))) < 0:
            raise ValueError(f"An event is of node {lowest}; nodes are numbered from 0.")
        times = (data.t.double() if data.t.is_floating_point() else data.t).cpu().numpy()  # NumPy has no bfloat16
        # Neighbors are compared: differences of whole numbers may overflow.
        back = int((~(times[1:] >= times[:-1])).sum()) + int(times[0] != times[0])
        if back:
            raise ValueError(
                f"{back} of {num_events} events are not in order of time, or NaN. Sort: data[data.t.argsort()]."
            )
