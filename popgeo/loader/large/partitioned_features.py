"""Features that are partitioned over processes, which send rows to each other in exchanges of fixed size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.data import FeatureStore, TensorAttr

from popgeo.data.axes import StoreKey
from popgeo.loader.large.feature_rows import FeatureRows, Name, ReadOnlyFeatures

_FIRST_ROOM, _ALIGN = 1024, 8


@dataclass(kw_only=True, eq=False)
class _Part:
    """One attribute of partitioned features, with own rows, cached rows, and the owner of each row.

    Args:
        owner: Process that has each row. [num_rows]
        place: Place of each row among the rows of its owner. [num_rows]
        own: Rows of this process, as bytes. uint8 [number of own rows, row_bytes]
        like: Example of the attribute. [0, ...]
        kept: Cached rows of other processes. uint8 [number of cached rows, row_bytes]
        room: Number of rows that one process may request from another in one exchange.
        numbers: Numbers of the cached rows, ascending. int64 [number of cached rows]
    """

    owner: Tensor
    place: Tensor
    own: Tensor
    like: Tensor
    kept: Tensor
    room: int = _FIRST_ROOM
    numbers: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


class PartitionedFeatures(ReadOnlyFeatures):
    """Partitioned features: each process of `torch.distributed` stores the rows of its own nodes.

    A batch gets rows of other processes by two exchanges of constant size: first the row numbers, then the rows. If a
    batch needs more rows of one process than an exchange has room for, all processes repeat the exchanges; the number
    of repetitions is sent with the row numbers. A loader measures the room on sampled batches, and finds the rows that
    are needed most often: `num_cached` of them are cached.

    All processes must make the same loaders and iterate over them in the same way.

    Args:
        features: Source of all rows, such as `DiskFeatures`. Only the rows of this process are read, once.
        parts: For each node or edge type, the process of each row, as from `popgeo.sampling.partition`. Default: equal
            ranges. int64 [number of nodes or edges]
        num_cached: Number of rows of other processes that each process caches per attribute.
        timeout: Time after which the wait for another process ends with an error.

    Attributes:
        num_bytes: Number of bytes that this process has sent to others.
        num_asked: Number of rows that this process has requested from others.

    Raises:
        ValueError: a part is not the number of a process.
    """

    is_collective = True

    def __init__(
        self,
        features: FeatureStore,
        parts: Mapping[StoreKey, Tensor] | None = None,
        num_cached: int = 0,
        timeout: timedelta = timedelta(minutes=5),
    ) -> None:
        super().__init__()
        # A separate group: a loader's thread must not come between the exchanges of a training step.
        self.group, self.num_cached = dist.new_group(timeout=timeout), num_cached
        self.device = torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")
        self.rank, self.world_size, self.num_bytes, self.num_asked = dist.get_rank(), dist.get_world_size(), 0, 0
        self.columns: dict[Name, _Part] = {}
        dealt: dict[tuple[StoreKey, int], tuple[Tensor, Tensor]] = {}
        rows = FeatureRows.listed(features)
        for name in rows.attributes:
            count = rows.said_size(name) or 0
            if (name[0], count) not in dealt:
                dealt[name[0], count] = self._dealt(name[0], count, (parts or {}).get(name[0]))
            owner, place = dealt[name[0], count]
            own = rows.ask({name: (owner == self.rank).nonzero().flatten()}, {})[name].contiguous()
            own_bytes = (own.flatten(1) if own.dim() > 1 else own[:, None]).view(torch.uint8)
            self.columns[name] = _Part(owner=owner, place=place, own=own_bytes, like=own[:0], kept=own_bytes[:0])

    def _dealt(self, key: StoreKey, count: int, owner: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the process of each row, and the row's position in that process, int16 and int64 [count]."""
        if owner is None or len(owner) != count:
            owner = torch.arange(count) * self.world_size // max(1, count)
        if count and not 0 <= int(owner.min()) <= int(owner.max()) < self.world_size:
            raise ValueError(
                f"parts of {key!r} are {int(owner.min())} to {int(owner.max())}; processes are numbered 0 to "
                f"{self.world_size - 1}. Pass partition(edge_index, {self.world_size})."
            )
        place = torch.empty(count, dtype=torch.int64)
        for process in range(self.world_size):
            mine = owner == process
            place[mine] = torch.arange(int(mine.sum()))
        return owner.to(torch.int16), place

    def measure(self, samples: Sequence[Mapping[Name, Tensor]]) -> None:
        """Choose the size of an exchange and the rows to cache, from sampled batches. All processes must call it.

        Args:
            samples: For each batch, the rows of each attribute. int64 [number of rows]
        """
        rooms, kept = [], {}
        for name, part in self.columns.items():
            wanted = [sample[name].unique() for sample in samples]
            others = torch.cat([numbers[part.owner[numbers] != self.rank] for numbers in wanted])
            numbers, counts = others.unique(return_counts=True)
            kept[name] = numbers[counts.argsort(descending=True, stable=True)[: self.num_cached]].sort().values
            # Cached rows need no room.
            left = [part.owner[n[(part.owner[n] != self.rank) & ~torch.isin(n, kept[name])]].long() for n in wanted]
            rooms.append(max(int(torch.bincount(owner, minlength=self.world_size).max()) for owner in left))
        agreed = torch.tensor(rooms, device=self.device)
        dist.all_reduce(agreed, dist.ReduceOp.MAX, group=self.group)
        for part, room in zip(self.columns.values(), agreed.tolist(), strict=True):
            part.room = max(_ALIGN, -(-room // _ALIGN) * _ALIGN)
        for name, rows in self._rows(kept).items():
            self.columns[name].numbers, self.columns[name].kept = kept[name], rows

    def _multi_get_tensor(self, attrs: list[TensorAttr]) -> list[Tensor | None]:
        asked = {(attr.group_name, attr.attr_name): attr.index for attr in attrs}
        rows = self._rows({name: torch.as_tensor(index) for name, index in asked.items()})
        like = {name: self.columns[name].like for name in asked}
        return [rows[name].view(like[name].dtype).view(-1, *like[name].shape[1:]) for name in asked]

    def _rows(self, wanted: Mapping[Name, Tensor]) -> dict[Name, Tensor]:
        """Return rows as bytes: own rows, cached rows, and rows that other processes send."""
        found, left = {}, {}
        for name, part in self.columns.items():
            numbers = wanted.get(name, part.numbers[:0])
            found[name] = torch.empty(len(numbers), part.own.shape[1], dtype=torch.uint8)
            mine = part.owner[numbers] == self.rank
            found[name][mine] = part.own[part.place[numbers[mine]]]
            gone = ~mine & ~torch.isin(numbers, part.numbers)
            kept = ~mine & ~gone
            found[name][kept] = part.kept[torch.searchsorted(part.numbers, numbers[kept])]
            at, owner = gone.nonzero().flatten(), part.owner[numbers[gone]]
            left[name] = [(at[owner == process], numbers[at[owner == process]]) for process in range(self.world_size)]
            self.num_asked += len(at)
        total = self._exchange(left, found, 0)
        for number in range(1, total):
            self._exchange(left, found, number)
        return {name: found[name] for name in wanted}

    def _exchange(self, left: Mapping[Name, Any], found: Mapping[Name, Tensor], number: int) -> int:
        """Make exchange `number` of a batch, and return the number of exchanges, which is equal for all processes."""
        rooms = [part.room for part in self.columns.values()]
        asks = torch.full((self.world_size, 1 + sum(rooms)), -1)
        turns = [-(-len(numbers) // part.room) for name, part in self.columns.items() for _, numbers in left[name]]
        asks[:, 0] = max(turns)
        pieces = {}
        for (name, part), ids in zip(self.columns.items(), asks[:, 1:].split(rooms, dim=1), strict=True):
            here = slice(number * part.room, (number + 1) * part.room)
            pieces[name] = [(at[here], numbers[here]) for at, numbers in left[name]]
            for process, (_, numbers) in enumerate(pieces[name]):
                ids[process, : len(numbers)] = numbers
        asked = self._sent(asks)
        answers = []
        for part, ids in zip(self.columns.values(), asked[:, 1:].split(rooms, dim=1), strict=True):
            rows = torch.zeros(*ids.shape, part.own.shape[1], dtype=torch.uint8)
            rows[ids >= 0] = part.own[part.place[ids[ids >= 0]]]
            answers.append(rows.flatten(1))
        got = self._sent(torch.cat(answers, dim=1)).split([rows.shape[1] for rows in answers], dim=1)
        for (name, part), rows in zip(self.columns.items(), got, strict=True):
            for process, (at, _) in enumerate(pieces[name]):
                found[name][at] = rows[process].view(part.room, -1)[: len(at)]
        return max(1, int(asked[:, 0].max()))

    def _sent(self, rows: Tensor) -> Tensor:
        """Send row r to process r, and return the rows from all processes. The shape of `rows`."""
        out = rows.to(self.device)
        got = torch.empty_like(out)
        try:
            dist.all_to_all_single(got, out, group=self.group)
        except RuntimeError as error:
            raise dist.DistNetworkError(
                f"Process {self.rank} of {self.world_size} timed out waiting for rows: another process ended, or "
                f"does not iterate over its loader. {error}"
            ) from error
        self.num_bytes += out.nbytes // self.world_size * (self.world_size - 1)
        return got.cpu()

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        return self._multi_get_tensor([attr])[0]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        part = self.columns[attr.group_name, attr.attr_name]
        return (len(part.owner), *part.like.shape[1:])
