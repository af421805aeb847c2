"""Samplers that show a loader's shards and epochs to Lightning and accelerate, and that guard copies of a loader."""

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from torch.utils.data.distributed import DistributedSampler

from popgeo.loader.run import EpochPlan, Run
from popgeo.loader.sampler import EpochSampler


class GraphIds(DistributedSampler[int]):
    """A sampler that yields this process's graphs of the current or next epoch, in order.

    A trainer replaces a loader's sampler by a sharding sampler, unless the sampler is a `DistributedSampler`, as this
    class is. A trainer also calls its `set_epoch` before each epoch.
    """

    def __init__(self, epochs: EpochSampler) -> None:
        self.epochs = epochs  # torch's own would ask for the group of processes, which may not exist yet

    @property
    def rank(self) -> int:  # type: ignore[override]  # torch has plain attributes
        """Number of this process's shard."""
        return self.epochs.shard.rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Number of shards."""
        return self.epochs.shard.world_size

    def __iter__(self) -> Iterator[int]:
        return iter(self.epochs.plan().packs.indices.tolist())

    def __len__(self) -> int:
        return self.epochs.plan().packs.num_graphs

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, as trainers do."""
        self.epochs.follow(epoch)


class BatchIds:
    """A batch sampler for another `DataLoader` with the same dataset and `collate_fn`. Each pass is an epoch.

    Such a copy makes batches graph by graph, which is slower. If its batches could be wrong, an error says so.

    Attributes:
        loader: The loader that these batches belong to. A trainer that makes the loader again finds it here.
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
        """Set the next epoch of a copy."""
        self.sampler.set_epoch(epoch)

    @property
    def drop_last(self) -> NoReturn:
        """Attribute that a trainer reads before it would distribute these batches over processes a second time.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "This loader gives each process its own batches, so dealing them out again would lose or repeat graphs. "
            "Iterate over the loader itself, or pass it to Accelerator.prepare of accelerate 1.0 or later."
        )

    def state_dict(self) -> NoReturn:
        """Raise, because torchdata's StatefulDataLoader would run ahead of the batches that have been used.

        Raises:
            ValueError: always.
        """
        raise ValueError("This loader has state_dict and load_state_dict itself. Use no StatefulDataLoader.")

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        """Raise, because torchdata's StatefulDataLoader is not supported, as `state_dict` explains."""
        self.state_dict()


def under_accelerate(loader: Any, batches: Iterator[Any], run: Run, plan: EpochPlan) -> Iterator[Any]:
    """Yield the batches on accelerate's device, and inform accelerate of the running loader and its last batch.

    Gradient accumulation then ends with the epoch. Gathered results are complete, because no graph is repeated.
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
