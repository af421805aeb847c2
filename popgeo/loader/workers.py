"""Makes batches in worker processes, through torch's own `DataLoader`."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch

from popgeo.loader.source import Portion, Source


class WorkerPool:
    """Worker processes that turn portions into batches, in order.

    Args:
        source: What makes the batches; each worker has a copy.
        group: Batches in one item.
        settings: `num_workers`, `persistent_workers`, `prefetch_factor` and others, as torch's `DataLoader` takes them.
    """

    def __init__(self, source: Source, group: int, settings: dict[str, Any]) -> None:
        self.portions: list[Portion] = []
        self.loader: DataLoader[Any] = DataLoader(
            _Cuts(source, group), batch_size=None, sampler=self.portions, collate_fn=_as_it_is, **settings
        )

    def batches(self, portions: list[Portion]) -> Iterator[Batch]:
        """One item for each portion."""
        self.portions[:] = portions
        return iter(self.loader)


class _Cuts(Dataset[Batch]):
    def __init__(self, source: Source, group: int) -> None:
        self.source, self.group = source, group

    def __getitem__(self, portion: Portion) -> Batch:
        return self.source.cut(portion, self.group)[0]


def _as_it_is(batch: Batch) -> Batch:
    return batch
