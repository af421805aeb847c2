"""Turns packs of graph ids into batches: from a flat dataset, or graph by graph where it cannot be flattened."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch_geometric.data import Batch

from popgeo.data.collate import FixedSizeCollater
from popgeo.data.flat_store import FlatStore
from popgeo.data.levels import Level

_SAMPLE = 256


class Source(Protocol):
    """Makes batches from graph ids."""

    sizes: np.ndarray
    """Nodes and edges of each graph. int64 [num_graphs, num_dimensions]"""

    def cut(self, ids: np.ndarray, ptr: np.ndarray) -> list[Batch]:
        """One batch for each pack; pack `i` is `ids[ptr[i]:ptr[i + 1]]`."""
        ...


class FetchingSource:
    """Fetches each graph from a dataset that is not flat, such as one with a random transform, or one on disk.

    Sizes are measured in one pass over the dataset; where a transform changes them, a batch may overflow and is then
    treated as the collater treats an oversize batch.
    """

    def __init__(self, dataset: Any, collater: FixedSizeCollater, sizes: np.ndarray) -> None:
        self.dataset, self.collater, self.sizes = dataset, collater, sizes

    def cut(self, ids: np.ndarray, ptr: np.ndarray) -> list[Batch]:
        """One batch for each pack, each graph fetched anew."""
        bounds = ptr.tolist()
        packs = itertools.pairwise(bounds)
        return [self.collater([self.dataset[i] for i in ids[start:stop].tolist()]) for start, stop in packs]


def measure(dataset: Any, exclude_keys: Sequence[str] | None) -> tuple[np.ndarray, Mapping[str, Level], FlatStore]:
    """Sizes of all graphs of a dataset that is not flat, the levels of its attributes, and a flat sample of it."""
    sizes, sample = [], []
    for start in range(0, len(dataset), _SAMPLE):
        part = FlatStore.from_dataset(
            [dataset[i] for i in range(start, min(start + _SAMPLE, len(dataset)))], exclude_keys=exclude_keys
        )
        sizes.append(part.sizes)
        sample.append(part)
    levels = {attribute.name: attribute.axis.level for attribute in sample[0].attributes}
    return np.concatenate(sizes), levels, sample[0]
