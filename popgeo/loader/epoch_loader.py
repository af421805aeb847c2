"""What every loader of batches does: epochs one after the other, each planned, counted, resumed, made ahead of time."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch

from popgeo.data.arrays import as_arrays
from popgeo.loader.arguments import check_output
from popgeo.loader.device_feed import DeviceFeed
from popgeo.loader.epoch import EpochPlan
from popgeo.loader.epochs import Epochs, Packer, Run
from popgeo.loader.make_batches import OF_WORKERS, BatchMaker
from popgeo.loader.source import Source
from popgeo.loader.trainers import BatchIds, GraphIds, under_accelerate
from popgeo.loader.waiting import Waiting
from popgeo.packing import Packs


class EpochLoader(DataLoader):
    """Iterates over the batches of one epoch after another, as a shard of several processes where there are some.

    A subclass sets `source` before it calls this constructor.

    Args:
        dataset: What torch's `DataLoader` shows as its dataset.
        collate_fn: What torch's `DataLoader` shows as that.
        packer: Says what each batch of an epoch holds.
        batch_size: What torch's `DataLoader` shows as that; scripts print and log it.
        options: How many batches one item holds.
        seed: With the number of the epoch it decides every order.
        rank: Which shard; None takes that of this process.
        world_size: Of how many; None like `rank`.
        num_buffers: Items that share reused memory; 0 gives each item memory of its own.
        background: Makes the coming batches on a thread.
        device: Where batches are wanted, `"cpu"` or `"cuda"`; they are copied there ahead of time. See `DeviceFeed`.
        batches_ahead: With `device`, how many.
        feature_dtype: With `device`, a smaller floating-point type for `x` and `edge_attr`, or for those it names.
        output: `"pyg"` for batches of PyG, `"numpy"` for plain dictionaries of NumPy arrays; see `as_arrays`.
        kwargs: `num_workers`, `pin_memory` and others, as torch's `DataLoader` takes them.
    """

    source: Source
    """Makes the batches."""
    waiting: Waiting
    """How long the epoch that is running, or ran last, waited for its batches."""
    _unit = "graphs"  # what packs hold

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[..., Any],
        packer: Packer,
        *,
        batch_size: int,
        options: Any,
        seed: int,
        rank: int | None,
        world_size: int | None,
        num_buffers: int,
        background: bool,
        device: torch.device | str | int | None = None,
        batches_ahead: int = 2,
        feature_dtype: torch.dtype | Mapping[str, torch.dtype] | None = None,
        output: str = "pyg",
        **kwargs: Any,
    ) -> None:
        check_output(output, device, feature_dtype)
        self._feed = None
        if device is not None:
            self._feed = DeviceFeed(device, batches_ahead=batches_ahead, feature_dtype=feature_dtype)
        self._as_arrays = output == "numpy"
        self.waiting = Waiting()
        self._epochs = Epochs(packer, seed, rank, world_size, options, self._unit)
        ids = BatchIds(GraphIds(self._epochs), self)
        super().__init__(dataset, batch_sampler=ids, collate_fn=collate_fn, **kwargs)
        # What torch sets beside a batch sampler says little: scripts print the size, and trainers look at the sampler.
        object.__setattr__(self, "batch_size", batch_size)
        object.__setattr__(self, "sampler", ids.sampler)
        self._maker = BatchMaker(
            self.source,
            num_buffers=num_buffers,
            background=background,
            pin_memory=self.pin_memory,
            workers={name: getattr(self, name) for name in OF_WORKERS} if self.num_workers > 0 else None,
        )

    def plan(self) -> Packs:
        """What each batch of the epoch that is running or comes next holds; made when first asked for."""
        return self._epochs.plan().packs

    def __len__(self) -> int:
        """Items of the epoch that is running or comes next."""
        return self._epochs.plan().num_items

    @property
    def rank(self) -> int:
        """Which shard of the batches this process loads."""
        return self._epochs.shard.rank

    @property
    def world_size(self) -> int:
        """Number of shards."""
        return self._epochs.shard.world_size

    @property
    def seed(self) -> int:
        """With the number of the epoch it decides every order."""
        return self._epochs.seed

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration runs through; without it they are counted from 0.

        In the epoch of a state that was just loaded, the iteration still goes on where that was taken.
        """
        self._epochs.set_epoch(epoch)

    @property
    def epoch(self) -> int:
        """The number of the epoch that is running or comes next."""
        return self._epochs.epoch

    def state_dict(self) -> dict[str, int]:
        """Where the iteration stands: after how many items of which epoch; the same for all ranks."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Makes the next iteration go on where `state_dict` was taken.

        The iteration raises a ValueError where its batches are not those among which the state was taken.

        Raises:
            ValueError: the state is of another loader, or of one with another number of graphs or seeds.
        """
        self._epochs.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch names its own iterator class
        run, plan = self._epochs.begin()
        batches = self._batches(run, plan)
        yield from under_accelerate(self, batches, run, plan) if self._is_prepared else batches

    def _batches(self, run: Run, plan: EpochPlan) -> Iterator[Batch]:
        made = self._maker.make(plan.packs, plan.shard.group, run.position, plan.key)
        items = (batch for batches in made for batch in batches)
        if self._feed is not None:
            items = self._feed.feed(items)  # type: ignore[assignment]  # both are iterators
        self.waiting = Waiting()
        for batch in self.waiting.of(items):
            run.position += 1
            yield as_arrays(batch) if self._as_arrays else batch
        self._epochs.end(run)

    _is_prepared = False
    use_stateful_dataloader = True  # accelerate's name for loaders whose state it saves and loads

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Asked for by accelerate alone, in `prepare`, which then uses this loader as it is.

        A copy of its own would deal the batches out to the processes a second time.
        """
        self._is_prepared = True
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, is_prepared: bool) -> None:
        self._is_prepared = is_prepared
