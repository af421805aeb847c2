"""What trainers see of a loader: that it shards by itself, how to tell it the epoch, and what no copy of it can do."""

import sys
from collections.abc import Iterator
from inspect import Signature, signature
from typing import Any, NoReturn

from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler

from popgeo.loader.run import EpochPlan, Run
from popgeo.loader.sampler import EpochSampler
from popgeo.plain_surroundings import plain_surroundings


class GraphIds(DistributedSampler[int]):
    """The graphs that this process loads in the epoch that is running or comes next, in order.

    Trainers replace the sampler of a loader by one that shards, unless it is a `DistributedSampler`, as this one is;
    and they tell it the number of each epoch.
    """

    def __init__(self, epochs: EpochSampler) -> None:
        self.epochs = epochs  # torch's own would ask for the group of processes, which may not exist yet

    @property
    def rank(self) -> int:  # type: ignore[override]  # torch has plain attributes
        """Which shard."""
        return self.epochs.shard.rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Of how many."""
        return self.epochs.shard.world_size

    def __iter__(self) -> Iterator[int]:
        return iter(self.epochs.plan().packs.indices.tolist())

    def __len__(self) -> int:
        return self.epochs.plan().packs.num_graphs

    def set_epoch(self, epoch: int) -> None:
        """How trainers choose the epoch that comes next."""
        self.epochs.follow(epoch)


class BatchIds:
    """The graphs of each batch, for another `DataLoader` with the same dataset and `collate_fn`: each pass is an epoch.

    Such a copy makes batches graph by graph, which is slower. If it could not be right, an error says so.
    """

    def __init__(self, sampler: GraphIds, loader: object) -> None:
        self.sampler, self.loader = sampler, loader

    def __iter__(self) -> Iterator[list[int]]:
        epochs = self.sampler.epochs
        if epochs.shard.group > 1:
            raise ValueError(f"An item of this loader has {epochs.shard.group} batches. Iterate over it as it is.")
        run, plan = epochs.begin(is_copy=True)
        for pack in plan.packs:
            yield pack.tolist()
        epochs.end(run)

    def __len__(self) -> int:
        return len(self.sampler.epochs.plan().packs)

    def set_epoch(self, epoch: int) -> None:
        """How a copy chooses the epoch that comes next."""
        self.sampler.set_epoch(epoch)

    @property
    def drop_last(self) -> NoReturn:
        """Asked for by who deals these batches out to several processes, which the loader has done already.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "This loader gives each process its own batches, so dealing them out again would lose or repeat graphs. "
            "Iterate over the loader itself, or pass it to Accelerator.prepare of accelerate 1.0 or later."
        )

    def state_dict(self) -> NoReturn:
        """Asked for by torchdata's StatefulDataLoader, which would run ahead of what has been used.

        Raises:
            ValueError: always.
        """
        raise ValueError("This loader has state_dict and load_state_dict itself. Use no StatefulDataLoader.")

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        """See `state_dict`."""
        self.state_dict()


class MostGraphs(int):
    """The most graphs of a batch, a number that knows whose batches these are."""

    sampler: object


class AskedForAgain(type(Sampler)):  # type: ignore[misc]  # the type of a class
    """The type of loaders and samplers: constructing one from another loader's arguments returns that loader.

    Lightning re-creates a loader in order to predict, from what it finds of its arguments, around the batch sampler of
    the old one; and a batch sampler, in order to share batches out, with the `batch_size` of the old one. It wants the
    very same batches, and ours are shared out already.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """A new loader or sampler, or the one whose batches these are."""
        inner, size = getattr(kwargs.get("batch_sampler"), "_batch_sampler", None), kwargs.get("batch_size")
        if isinstance(size, MostGraphs):
            return size.sampler
        if isinstance(inner, BatchIds):
            return inner.loader
        with plain_surroundings():
            return super().__call__(*args, **kwargs)

    @property
    def __signature__(cls) -> Signature:
        """That of `__init__`, for `help` and for editors: they would show that of `__call__`."""
        of_instances = signature(cls.__init__)  # type: ignore[misc]
        return of_instances.replace(parameters=list(of_instances.parameters.values())[1:])


def under_accelerate(loader: Any, batches: Iterator[Any], run: Run, plan: EpochPlan) -> Iterator[Any]:
    """The batches on accelerate's device, while it knows which loader runs and when it gives its last batch.

    Gradient accumulation then ends with the epoch, and nothing that is gathered is dropped, since no graph is repeated.
    """
    state = sys.modules["accelerate"].state
    gradients, device = state.GradientState(), state.PartialState().device
    loader.end_of_dataloader, loader.remainder = False, 0
    gradients._add_dataloader(loader)
    try:
        for batch in batches:
            loader.end_of_dataloader = run.position == plan.num_items
            yield batch if device.type == "cpu" else batch.to(device)
    finally:
        gradients._remove_dataloader(loader)
