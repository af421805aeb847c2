"""Flat datasets, and smaller ones that share their arrays."""

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from popgeo import FixedSizeDataLoader
from popgeo.data import FixedSizeOptions, FlatStore
from tests.support.graphs import graph

OPTIONS = FixedSizeOptions(12, 12, 4)


def test_views_share_the_arrays():
    store = FlatStore.from_dataset([graph(n, n, n) for n in (1, 2, 3)])
    view = FlatStore.from_dataset(Subset(store, [2, 0]))
    assert view.sizes.tolist() == [[3, 3], [1, 1]]
    assert view.attributes is store.attributes
    assert view.view([1]).sizes.tolist() == [[1, 1]]
    assert len(view) == 2


def test_attributes_of_a_flat_dataset_can_be_left_out():
    store = FlatStore.from_dataset([graph(3, 4)])
    left = FlatStore.from_dataset(store, exclude_keys=["edge_index", "edge_attr"])
    assert left.sizes.tolist() == [[3, 0]]
    assert store.sizes.tolist() == [[3, 4]]


def test_numbers_of_graphs_count_from_the_end_and_others_are_refused():
    graphs = [graph(n, n, n) for n in (1, 2, 3)]
    for dataset in (graphs, FlatStore.from_dataset(graphs), FlatStore.from_dataset(graphs)[[0, 1, 2]]):
        batch = next(iter(FixedSizeDataLoader(Subset(dataset, [-1, 0]), fixed_size_options=OPTIONS)))
        assert batch.ptr[:3].tolist() == [0, 3, 4]
        for number in (3, -4):
            with pytest.raises(IndexError, match=f"Graph {number} .* there are 3"):
                FlatStore.from_dataset(Subset(dataset, [0, number]))
    store = FlatStore.from_dataset(graphs)
    assert store[torch.tensor(1)].num_nodes == store[-2].num_nodes == 2
    with pytest.raises(IndexError, match="Graph -4"):
        store[-4]


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_a_mask_is_never_taken_for_numbers_of_graphs(kind):
    graphs = [graph(n, 4) for n in (2, 3, 4, 5)]
    store, mask = FlatStore.from_dataset(graphs), kind([False, True, True, False])
    assert [one.num_nodes for one in store[mask]] == [3, 4]
    with pytest.raises(ValueError, match="Graphs are chosen by bool"):
        store.view(mask)
    with pytest.raises(ValueError, match="Graphs are chosen by bool"):
        FixedSizeDataLoader(Subset(graphs, mask), 3)
    with pytest.raises(ValueError, match="Graphs are chosen by bool"):
        list(FixedSizeDataLoader(graphs, 3, sampler=mask))
    with pytest.raises(ValueError, match="Graphs are chosen by bool"):
        list(FixedSizeDataLoader(graphs, 5, batch_sampler=[mask]))
    for choice in ({"sampler": kind([0.6, 1.0])}, {"batch_sampler": [kind([1.0, 2.5])]}):
        with pytest.raises(ValueError, match="Graphs are chosen by float"):
            list(FixedSizeDataLoader(graphs, 3, **choice))
