"""What every loader of batches does: epochs one after the other, each planned, counted, resumed, made ahead of time."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader
from torch_geometric.data import Batch

from popgeo.loader.make_batches import OF_WORKERS, BatchMaker
from popgeo.loader.source import Source
from popgeo.packing import Packs


class EpochLoader(DataLoader):
    """Iterates over the batches of one epoch after another; which those are, a subclass says.

    A subclass sets `source` and gives `_pack`.

    Args:
        dataset: What torch's `DataLoader` shows as its dataset.
        collate_fn: What torch's `DataLoader` shows as that.
        batch_size: What torch's `DataLoader` shows as that; scripts print and log it.
        items_of: Batches in one item.
        seed: With the number of the epoch it decides every order.
        num_buffers: Items that share reused memory; 0 gives each item memory of its own.
        background: Makes the coming batches on a thread while one is in use.
        kwargs: `num_workers`, `pin_memory` and others, as torch's `DataLoader` takes them.
    """

    source: Source
    """Makes the batches."""
    _unit = "graphs"  # what packs hold

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[..., Any],
        *,
        batch_size: int,
        items_of: int,
        seed: int,
        num_buffers: int,
        background: bool,
        **kwargs: Any,
    ) -> None:
        self.items_of, self.seed = items_of, seed
        self._progress = _Progress(0, 0)
        self._packs: tuple[int, Packs] | None = None
        super().__init__(dataset, batch_sampler=_Ids(self.plan), collate_fn=collate_fn, **kwargs)
        object.__setattr__(self, "batch_size", batch_size)  # torch leaves it None beside a batch sampler
        self._maker = BatchMaker(
            self.source,
            items_of,
            num_buffers=num_buffers,
            background=background,
            pin_memory=self.pin_memory,
            workers={name: getattr(self, name) for name in OF_WORKERS} if self.num_workers > 0 else None,
        )

    @abstractmethod
    def _pack(self, seed: int, epoch: int) -> Packs:
        """The batches of this rank in one epoch."""

    def plan(self) -> Packs:
        """What each batch of the epoch that is running or comes next holds; made when first asked for."""
        if self._packs is None or self._packs[0] != self.epoch:
            self._packs = self.epoch, self._pack(self.seed, self.epoch)
        return self._packs[1]

    def __len__(self) -> int:
        """Items of the epoch that is running or comes next."""
        return len(self.plan()) // self.items_of

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration runs through; without it they are counted from 0."""
        self._progress = _Progress(epoch, 0)

    @property
    def epoch(self) -> int:
        """The number of the epoch that is running or comes next."""
        return self._progress.epoch

    def state_dict(self) -> dict[str, int]:
        """Where the iteration stands: after how many items of which epoch."""
        return {
            "epoch": self.epoch,
            "position": self._progress.position,
            "seed": self.seed,
            f"num_{self._unit}": self.source.num_items,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next iteration go on where `state_dict` was taken.

        Raises:
            ValueError: the state is of another loader, or of one with another number of graphs or seeds.
        """
        found = state.get(f"num_{self._unit}", 0)
        if found != self.source.num_items:
            raise ValueError(
                f"The state is of a loader of {found} {self._unit}, this one has {self.source.num_items}. "
                f"Load it into a loader of the same dataset."
            )
        self.seed, self._packs = state["seed"], None
        self._progress = _Progress(state["epoch"], state["position"])

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch names its own iterator class
        at = self._progress
        self._progress = _Progress(at.epoch + 1, 0) if at.has_started else _Progress(at.epoch, at.position)
        self._progress.has_started = True
        return self._iterate(self.plan(), self._progress)

    def _iterate(self, packs: Packs, progress: "_Progress") -> Iterator[Batch]:
        for batches in self._maker.make(packs, progress.position, (self.seed, progress.epoch)):
            for batch in batches:
                progress.position += 1
                yield batch
        if self._progress is progress:  # no other iteration has begun since
            self.set_epoch(progress.epoch + 1)


class _Ids:
    """Lets tools that look into a `DataLoader` see the batches as lists of ids."""

    def __init__(self, plan: Callable[[], Packs]) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[list[int]]:
        return (pack.tolist() for pack in self.plan())

    def __len__(self) -> int:
        return len(self.plan())


class _Progress:
    """How far an iteration has come; an object of its own, because torch's `DataLoader` is slow to set attributes."""

    __slots__ = ("epoch", "has_started", "position")

    def __init__(self, epoch: int, position: int) -> None:
        self.epoch, self.position, self.has_started = epoch, position, False
