"""A DataLoader of torch over epochs: what every loader of the library has in common.

Order, rank and continuing in the middle of an epoch come from `sampler.py`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from html import escape
from inspect import signature
from typing import Any

import pandas as pd
from torch.utils.data import DataLoader

from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.bridges import as_arrays
from popgeo.did_you_mean import meant
from popgeo.loader.device_feed import DeviceFeed
from popgeo.loader.epoch_choices import EpochChoices
from popgeo.loader.make_batches import BatchMaker
from popgeo.loader.run import EpochPlan, Run
from popgeo.loader.sampler import EpochSampler, Packer
from popgeo.loader.source import BatchSource
from popgeo.loader.trainers import AskedForAgain, BatchIds, GraphIds, under_accelerate
from popgeo.loader.waiting import Waiting
from popgeo.packing import Packs
from popgeo.plain_surroundings import plain_surroundings

_DECIDED = {
    "collate_fn": "The loader collates by itself, so it takes no collate_fn. Use a transform of the dataset.",
    "generator": "The order comes from seed and epoch, so the loader takes no generator. Pass seed=, or neither: then "
    "the seed is drawn from torch's generator.",
}

_OF_TORCH = signature(DataLoader.__init__).parameters.keys()
_OF_NOUNS = {field.name for noun in (EpochChoices, LayoutChoices) for field in fields(noun)}


class EpochLoader(DataLoader, metaclass=AskedForAgain):
    """Iterates over the batches of one epoch after another: ordered, sharded, resumed, made ahead of time.

    Args:
        dataset: What torch's `DataLoader` shows as its dataset.
        source: Makes the batches.
        packer: Says what each batch of an epoch holds.
        choices: What an epoch is.
        batch_size: What torch's `DataLoader` shows as that; scripts print and log it.
        kwargs: `num_workers`, `pin_memory` and others, as torch's `DataLoader` takes them.

    Raises:
        ValueError: an argument that the loader decides by itself.
        TypeError: an argument that there is not; what it may have meant is named.
    """

    waiting: Waiting
    """How long the epoch that is running, or ran last, waited for its batches."""
    _unit = "graphs"  # what packs hold

    def __init__(
        self, dataset: Any, source: BatchSource, packer: Packer, choices: EpochChoices, batch_size: int, **kwargs: Any
    ) -> None:
        for name in [name for name in _DECIDED if name in kwargs]:
            raise ValueError(_DECIDED[name])
        for name in kwargs.keys() - _OF_TORCH:
            known = signature(type(self).__init__).parameters.keys() | _OF_NOUNS | _OF_TORCH  # what the caller sees
            near = " Did you mean 'batch_size'?" if name == "num_graphs" else meant(name, known)
            raise TypeError(f"{type(self).__name__} has no argument {name!r}.{near}")
        self.source, self.shuffle, self.waiting = source, choices.shuffle, Waiting()
        of_feed: Any = {"batches_ahead": choices.batches_ahead, "feature_dtype": choices.feature_dtype}
        self._feed = None if choices.device is None else DeviceFeed(choices.device, **of_feed)
        self._as_arrays = choices.output == "numpy"
        self._epochs = EpochSampler(packer, choices, self._unit)
        ids = BatchIds(GraphIds(self._epochs), self)
        super().__init__(dataset, batch_sampler=ids, collate_fn=source.collater, **kwargs)
        # What torch sets next to a batch sampler says little: scripts print the size, and trainers look at the sampler.
        object.__setattr__(self, "batch_size", batch_size)
        object.__setattr__(self, "sampler", ids.sampler)
        self._maker = BatchMaker(source, choices, kwargs)

    @abstractmethod
    def _in_one_line(self) -> str:
        """What there is to say of the epoch that is running or comes next."""

    def _table(self) -> pd.DataFrame | None:
        """How full its batches are, if that is known."""
        return None

    def __repr__(self) -> str:
        try:
            line = self._in_one_line()
        except ValueError as error:
            line = f"{self._epochs.packer.num_items:,} {self._unit}; no batches: {error}"
        return f"{type(self).__name__}({line}{self._epochs.drawn_seed})"

    def _repr_html_(self) -> str:
        try:
            table = self._table()
        except ValueError:
            table = None
        if table is None:
            return escape(repr(self))
        shown = {"slots of a batch": "{:,}".format, "real, on average": "{:,.1f}".format, "full": "{:.1%}".format}
        table = table[["slots", "real", "full"]].set_axis([*shown], axis=1)
        return f"{escape(repr(self))}{table.to_html(formatters=[*shown.values()])}"

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
    def seed(self) -> int | None:
        """With the number of the epoch it decides every order; None before the first epoch draws it."""
        return self._epochs.seed

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next iteration runs through; without it they are counted from 0.

        In the epoch of a state that was just loaded, the iteration still continues if that was taken.
        """
        self._epochs.set_epoch(epoch)

    @property
    def epoch(self) -> int:
        """The number of the epoch that is running or comes next."""
        return self._epochs.epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands: after how many items of which epoch; the same for all ranks."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue where `state_dict` was taken.

        The iteration raises a ValueError where its batches are not those among which the state was taken.

        Raises:
            ValueError: the state is of another loader, or of one with another number of graphs or seeds.
        """
        self._epochs.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own iterator class
        end = object()
        with plain_surroundings():
            run, plan = self._epochs.begin()
        batches = self._batches(run, plan)
        items = under_accelerate(self, batches, run, plan) if self._is_prepared else batches
        while True:
            with plain_surroundings():  # not around the loop, whose body is the caller's
                item = next(items, end)
            if item is end:
                return
            yield item

    def _batches(self, run: Run, plan: EpochPlan) -> Iterator[Any]:
        made = self._maker.make(plan.packs, plan.shard.group, run.position, plan.key)
        items = (batch for batches in made for batch in batches)
        if self._feed is not None:
            items = self._feed.feed(items)  # type: ignore[assignment]  # both are iterators
        waiting = self.waiting = Waiting()  # another pass may begin one of its own
        is_whole = False
        try:
            for batch in waiting.of(items):
                self._epochs.give(run)
                yield as_arrays(batch) if self._as_arrays else batch
            is_whole = True
        finally:
            self._epochs.end(run, is_whole)

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
