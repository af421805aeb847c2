"""Batches of a stream of graphs."""

import itertools

import pytest
import torch
from torch.utils.data import IterableDataset

from popgeo.data import FixedSizeCollater, FixedSizeOptions
from popgeo.loader import FixedSizeDataLoader, stream_batches
from tests.support.loaders import GRAPHS, seeds


def test_a_dataset_that_cannot_be_indexed_is_streamed():
    class Endless(IterableDataset):
        read = 0

        def __iter__(self):
            for one in itertools.cycle(GRAPHS):
                Endless.read += 1
                yield one

    with pytest.raises(ValueError, match=r"Endless cannot be indexed.*stream_batches"):
        FixedSizeDataLoader(Endless(), 3)
    collater = FixedSizeCollater(FixedSizeOptions(25, 40, 13), add_masks_to_batch=True)
    stream = stream_batches(Endless(), collater, window=64, generator=torch.Generator().manual_seed(0))
    batches = list(itertools.islice(stream, 50))
    assert {tuple(batch.x.shape) for batch in batches} == {(25, 3)}
    assert sum(int(batch.nodes_mask.sum()) for batch in batches) / (50 * 24) > 0.95
    assert len(seeds(batches)) < Endless.read < 1000
