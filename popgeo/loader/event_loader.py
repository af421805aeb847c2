"""The loader of a stream of events, which yields batches of one shape in the order of time, with negatives."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import TemporalData
from typing_extensions import Unpack

from popgeo.data.cut import BatchMemory
from popgeo.loader.epoch_choices import EpochArguments, EpochChoices, choices_from
from popgeo.loader.epoch_loader import EpochLoader, loader_class
from popgeo.loader.sampler import OrderPacker
from popgeo.loader.source import BatchSource
from popgeo.loader.strategy import in_equal_numbers
from popgeo.loader.tensor_versions import GraphVersions
from popgeo.packing import Packs
from popgeo.random_numbers import below, new_key, seed_of
from popgeo.sampling import NonEdges
from popgeo.sampling.negatives import destinations_of

_MADE = ("neg_dst", "events_mask")


@dataclass(frozen=True, kw_only=True, eq=False)
class EventSource(BatchSource):
    """A source that makes batches from packs of events, and draws their negatives.

    Args:
        columns: Attributes of the events, one row per event.
        batch_size: Events of a batch.
        negatives: The nodes that negatives are drawn from; None for no negatives.
        same_negatives: Whether every epoch has the same negatives.
    """

    columns: Mapping[str, Tensor]
    batch_size: int
    negatives: "NonNeighbors | None"
    same_negatives: bool

    def cut(self, packs: Packs, key: tuple[int, int], group: int, memory: BatchMemory | None = None) -> list[Any]:
        """Return the batches of some packs, each `group` consecutive batches concatenated to one item."""
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
    """The possible negatives of each event: nodes other than its source, without an event with it at that time.

    Args:
        first: The first node that is drawn from.
        group: The group of each event. Events with the same source and time are one group. [num_events]
        nodes: For each group, the nodes to leave out, counted from `first`.
    """

    first: int
    group: np.ndarray
    nodes: NonEdges

    @classmethod
    def of(cls, src: Tensor, dst: Tensor, t: Tensor, negatives: tuple[int, int]) -> "NonNeighbors":
        """Return the possible negatives of some events.

        Args:
            src: Source of each event. [num_events]
            dst: Destination of each event. [num_events]
            t: Time of each event, ascending. [num_events]
            negatives: The first node to draw from, and the node after the last.

        Raises:
            ValueError: an event has no possible negative.
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
                f"Event {event} has no negative: each of the nodes {first} to {end - 1} is its source, or meets the "
                "source at that time. Pass negatives=(first, end) of more nodes, or negatives=None."
            )
        return cls(first=first, group=group.numpy(), nodes=nodes)

    def draw(self, ids: np.ndarray, seed: int) -> Tensor:
        """Draw one of the possible negatives uniformly for each event number, int64 [num_ids]."""
        group = self.group[ids]
        ranks = below(
            np.full(len(ids), seed, np.uint64), ids.astype(np.uint64), self.nodes.num_free(group).astype(np.uint64)
        )
        return torch.from_numpy(destinations_of(self.nodes, group, ranks.astype(np.int64))) + self.first


@loader_class
class FixedSizeEventLoader(EpochLoader):
    """A loader of consecutive events of PyG's `TemporalData`, in batches of equal size, the last one padded with zeros.

    A batch is a `TemporalData` with all attributes of the events, and two more per slot. `events_mask` is True if the
    slot contains an event. `neg_dst` is a random node for link prediction: it is not the event's source, and the source
    does not meet it at that time. `neg_dst` is missing with `negatives=None`. A negative depends on the seed, the epoch
    and the number of the event, not on the size of the batches.

    Args:
        data: Events, ascending in time: `src`, `dst`, `t`, and any other attributes with one row per event.
        batch_size: Events of a batch.
        negatives: The nodes that negatives are drawn from: the first node, and the node after the last. Default: from
            the smallest to the largest destination of these events. A part of a stream needs the range of the whole.
        same_negatives: Whether every epoch has the same negatives, as an evaluation should.
        seed: Seed of the negatives. Default: the first epoch draws it from torch's generator.
        shuffle: Must be False, because events come in the order of time.
        options: Number of batches in one item, or an object that has it; see `EpochChoices`.
        kwargs: Further arguments; `EpochChoices` explains those that are not torch's. `sampler` and `batch_sampler` are
            refused.

    Raises:
        ValueError: there are no events, they are not in the order of time, a number is out of range, or an event has
            no possible negative.

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
        shuffle: bool = False,
        options: Any = None,
        **kwargs: Unpack[EpochArguments],
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
        seed = None if seed is None else new_key(seed)
        choices = choices_from(EpochChoices, kwargs, seed=seed, shuffle=shuffle, options=options)
        if choices.shuffle or choices.has_own_order:
            raise ValueError("Events come in the order of time; leave shuffle, sampler and batch_sampler out.")
        self.data, self.num_events = data, len(data.src)
        self.negatives, self.same_negatives = negatives, same_negatives
        columns = {name: values for name, values in data.to_dict().items() if name not in _MADE}
        not_met = None if negatives is None else NonNeighbors.of(data.src, data.dst, data.t, negatives)
        source = EventSource(columns=columns, batch_size=batch_size, negatives=not_met, same_negatives=same_negatives)
        together = partial(in_equal_numbers, number=batch_size, drop_last=choices.drop_last)
        seen = GraphVersions(data, columns, () if negatives is None else ("src", "dst", "t"))
        packer = OrderPacker(num_items=self.num_events, together=together, seen=seen)
        super().__init__(data, source, packer, choices, batch_size, kwargs)

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
            raise ValueError(f"An event has node {lowest}; nodes are numbered from 0.")
        times = (data.t.double() if data.t.is_floating_point() else data.t).cpu().numpy()  # NumPy has no bfloat16
        # Compared, not subtracted: differences of whole numbers may overflow.
        back = int((~(times[1:] >= times[:-1])).sum()) + int(times[0] != times[0])
        if back:
            raise ValueError(
                f"{back} of {num_events} events are not in order of time, or NaN. Sort: data[data.t.argsort()]."
            )
