"""Base class of every loader: torch's `DataLoader` over epochs.

Order, rank and continuing in the middle of an epoch come from `sampler.py`.
"""

import functools
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import fields
from html import escape
from typing import Any, TypeVar

import pandas as pd
from torch.utils.data import DataLoader
from torch_geometric.data import Batch

from popgeo.data.bridges import as_arrays
from popgeo.did_you_mean import names_arguments
from popgeo.loader.device_feed import DeviceFeed, begin_pass
from popgeo.loader.epoch_choices import EpochArguments, EpochChoices
from popgeo.loader.make_batches import BatchMaker
from popgeo.loader.run import EpochPlan, Run
from popgeo.loader.sampler import EpochSampler, Packer
from popgeo.loader.source import BatchSource
from popgeo.loader.trainers import BatchIds, GraphIds, under_accelerate
from popgeo.loader.waiting import Waiting
from popgeo.packing import Packs
from popgeo.plain_surroundings import plain_surroundings

Loader = TypeVar("Loader", bound="type[EpochLoader]")
_REFUSED = {
    "collate_fn": "The loader collates by itself, so it takes no collate_fn. Use a transform of the dataset.",
    "generator": "The order comes from seed and epoch, so the loader takes no generator. Pass seed=, or neither: then "
    "the seed is drawn from torch's generator.",
}
_OF_TORCH = EpochArguments.__optional_keys__ - {field.name for field in fields(EpochChoices)}


def loader_class(cls: Loader) -> Loader:
    """Decorate a loader class so that its arguments are checked and a trainer can recreate its loaders.

    Lightning recreates a loader from its attributes in order to predict. The new loader shares all state with the
    old one, so its batches are the same.
    """
    init = names_arguments(cls).__init__

    @functools.wraps(init)
    def make(self: EpochLoader, *args: Any, **kwargs: Any) -> None:
        old = getattr(kwargs.get("batch_sampler"), "loader", None)
        if isinstance(old, cls):
            vars(self).update(vars(old))
            return
        with plain_surroundings():
            init(self, *args, **kwargs)

    cls.__init__ = make  # type: ignore[method-assign]  # the same arguments
    return cls


class EpochLoader(DataLoader):
    """The base class of loaders, which orders, shards and resumes epochs, and makes batches ahead of time.

    Args:
        dataset: Value of the attribute `dataset` of torch's `DataLoader`.
        source: Makes the batches.
        packer: Decides the contents of each batch of an epoch.
        choices: Choices of the epochs.
        batch_size: Batch size that torch's `DataLoader` shows; scripts print and log it.
        arguments: All keyword arguments of the loader. `num_workers`, `pin_memory` and others go to torch's
            `DataLoader`.

    Raises:
        ValueError: an argument is decided by the loader itself.
    """

    waiting: Waiting
    """How long the epoch that is running, or ran last, waited for its batches."""
    _unit = "graphs"  # contents of packs

    def __init__(
        self,
        dataset: Any,
        source: BatchSource,
        packer: Packer,
        choices: EpochChoices,
        batch_size: int,
        arguments: Mapping[str, Any],
    ) -> None:
        for name in _REFUSED.keys() & arguments.keys():
            raise ValueError(_REFUSED[name])
        of_torch = {name: value for name, value in arguments.items() if name in _OF_TORCH}
        self.source, self.shuffle, self.waiting = source, choices.shuffle, Waiting()
        self._feed = None
        if choices.device is not None:
            ahead, dtype = choices.batches_ahead, choices.feature_dtype
            self._feed = DeviceFeed(choices.device, batches_ahead=ahead, feature_dtype=dtype)
        self._as_arrays = choices.output == "numpy"
        self._epochs = EpochSampler(packer, choices, self._unit)
        ids = BatchIds(GraphIds(self._epochs), self)
        super().__init__(dataset, batch_sampler=ids, collate_fn=source.collater, **of_torch)
        # torch sets both to placeholders next to a batch sampler: scripts print the size, trainers look at the sampler.
        object.__setattr__(self, "batch_size", batch_size)
        object.__setattr__(self, "sampler", ids.sampler)
        self._maker = BatchMaker(source, choices, of_torch, packer.check_items)

    @abstractmethod
    def _in_one_line(self) -> str:
        """Return a description of the current or next epoch."""

    def _table(self) -> pd.DataFrame | None:
        """Return a table of how full the batches are, if this is known."""
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
        """Return the indices in each of this process's batches of the current or next epoch."""
        return self._epochs.plan().packs

    def __len__(self) -> int:
        """Return the number of items of the current or next epoch."""
        return self._epochs.plan().num_items

    @property
    def rank(self) -> int:
        """Number of the shard that this process loads."""
        return self._epochs.shard.rank

    @property
    def world_size(self) -> int:
        """Number of shards."""
        return self._epochs.shard.world_size

    @property
    def seed(self) -> int | None:
        """Seed of every order, together with the epoch's number. None before the first epoch draws it."""
        return self._epochs.seed

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Without this call, epochs are counted from 0.

        If a state of the same epoch was just loaded, the iteration still continues at its position.
        """
        self._epochs.set_epoch(epoch)

    @property
    def epoch(self) -> int:
        """Number of the current or next epoch."""
        return self._epochs.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration: epoch and number of items. It is the same for all ranks."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue at the position of a state.

        That iteration raises a ValueError if the epoch had different batches when the state was taken.

        Raises:
            ValueError: the state is from a loader with a different number of graphs or seeds.
        """
        self._epochs.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own iterator class
        end = object()
        with plain_surroundings():
            run, plan = self._epochs.begin()
        batches = self._batches(run, plan)
        items = under_accelerate(self, batches, run, plan) if self._is_prepared else batches
        while True:
            with plain_surroundings():  # the caller's code runs outside of it
                item = next(items, end)
            if item is end:
                return
            yield item

    def _batches(self, run: Run, plan: EpochPlan) -> Iterator[Any]:
        feed = None if self._feed is None else begin_pass(self._feed)
        lend = None if feed is None else feed.memory
        made = self._maker.make(plan.packs, plan.shard.group, run.position, plan.key, lend)
        items = (batch for batches in made for batch in batches)
        if feed is not None:
            items = feed.feed(self._and_next_plan(items, run))  # type: ignore[assignment]  # both are iterators
        waiting = self.waiting = Waiting()  # another pass may begin one of its own
        is_whole = False
        try:
            for batch in waiting.of(items, run.began):
                self._epochs.give(run)
                yield as_arrays(batch) if self._as_arrays else batch
            is_whole = True
        finally:
            self._epochs.end(run, is_whole)

    def _and_next_plan(self, items: Iterator[Batch], run: Run) -> Iterator[Batch]:
        """Yield the items. After them, plan the next epoch on the same thread, while the last items are in use."""
        yield from items
        if self._epochs.packer.is_pure and not self._epochs.choices.has_own_order:
            self._epochs.plan(run.epoch + 1)

    _is_prepared = False
    use_stateful_dataloader = True  # accelerate's name for loaders whose state it saves and loads

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Attribute that `Accelerator.prepare` reads; True makes accelerate use this loader unchanged.

        A copy by accelerate would distribute the batches over the processes a second time.
        """
        self._is_prepared = True
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, is_prepared: bool) -> None:
        self._is_prepared = is_prepared
