"""A dataset that is not in memory is read only as far as needed, and once for its sizes."""

import warnings

import pytest
import torch
from torch_geometric.data import Data, Dataset

from popgeo.data import FixedSizeOptions
from popgeo.data.open_dataset import GraphSizes
from popgeo.loader import FixedSizeDataLoader

NUM_GRAPHS, NUM_NODES = 300, (2, 3, 4)
LOOKED_AT = 16  # graphs that tell the layout of a batch


class Counted(Dataset):
    """A dataset of paths of 2, 3, 4, 2, 3, ... nodes that counts how often each is fetched."""

    def __init__(self, num_graphs=NUM_GRAPHS):
        super().__init__()
        self.num_graphs, self.num_fetched = num_graphs, 0

    def len(self):
        return self.num_graphs

    def get(self, index):
        self.num_fetched += 1
        size = NUM_NODES[index % 3]
        path = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        return Data(x=torch.full((size, 1), float(index)), edge_index=path)


@pytest.fixture
def dataset():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fetched again in every epoch.*", UserWarning)
        yield Counted()


@pytest.mark.parametrize("shuffle", [False, True])
def test_with_sizes_given_the_first_batch_comes_after_its_own_graphs(dataset, shuffle):
    loader = FixedSizeDataLoader(dataset, num_nodes=21, num_edges=20, batch_size=6, shuffle=shuffle)
    assert dataset.num_fetched == LOOKED_AT
    batch = next(iter(loader))
    assert dataset.num_fetched == LOOKED_AT + 5  # five real graphs
    assert int(batch.graphs_mask.sum()) == 5


def test_neither_length_nor_representation_reads_the_dataset(dataset):
    loader = FixedSizeDataLoader(dataset, num_nodes=21, num_edges=20, batch_size=6)
    assert len(loader) == 60
    expected = "FixedSizeDataLoader(300 graphs -> 60 batches of 21 nodes, 20 edges, 6 graphs)"
    assert repr(loader) == expected
    loader._repr_html_()
    assert dataset.num_fetched == LOOKED_AT


def test_an_unmeasured_graph_that_does_not_fit_is_refused_with_its_batch(dataset):
    loader = FixedSizeDataLoader(dataset, num_nodes=15, num_edges=20, batch_size=6)
    batches = iter(loader)  # 2 + 3 + 4 + 2 + 3 nodes fit with one of padding, 4 + 2 + 3 + 4 + 2 = 15 do not
    next(batches)
    with pytest.raises(ValueError, match=r"Batch has 15 nodes.*one kept for padding"):
        next(batches)


@pytest.mark.parametrize("strategy", ["StreamPack", "Window"])
def test_packing_reads_sizes_once_and_keeps_them_for_every_epoch_and_loader(dataset, strategy):
    options = FixedSizeOptions(num_nodes=41, num_edges=40, num_graphs=20)
    loader = FixedSizeDataLoader(dataset, fixed_size_options=options, fixed_size_strategy=strategy, shuffle=True)
    seen = {int(x) for batch in loader for x in batch.x[batch.nodes_mask].flatten()}
    assert seen == set(range(NUM_GRAPHS))
    assert dataset.num_fetched == LOOKED_AT + 2 * NUM_GRAPHS  # for sizes, and for the epoch
    for _ in loader:
        pass
    assert dataset.num_fetched == LOOKED_AT + 3 * NUM_GRAPHS
    another = FixedSizeDataLoader(dataset, fixed_size_options=options, fixed_size_strategy=strategy)
    assert len(another) > 0
    assert dataset.num_fetched == 2 * LOOKED_AT + 3 * NUM_GRAPHS


def test_what_measured_options_have_read_no_loader_reads_again(dataset):
    options = FixedSizeOptions.from_dataset(dataset, batch_size=4)
    assert (options.num_nodes, options.num_edges) == (13, 10)
    before = dataset.num_fetched
    loader = FixedSizeDataLoader(dataset, batch_size=4)
    assert loader.fixed_size_options == options
    assert dataset.num_fetched == before + LOOKED_AT


def test_skipping_needs_sizes_also_without_packing(dataset):
    skipping = FixedSizeDataLoader(dataset, num_nodes=4, num_edges=9, batch_size=2, over_size_strategy="Skip")
    assert skipping.num_skipped == 100  # those of four nodes
    assert dataset.num_fetched == LOOKED_AT + NUM_GRAPHS


def test_sizes_are_read_anew_where_the_transform_has_changed_and_forgotten_with_the_dataset(dataset):
    def double(graph):
        return Data(x=graph.x.repeat(2, 1), edge_index=graph.edge_index)

    assert GraphSizes(dataset).values[:3].tolist() == [[2, 1], [3, 2], [4, 3]]
    assert GraphSizes(dataset).are_known
    dataset.transform = double
    assert not GraphSizes(dataset).are_known
    assert GraphSizes(dataset).values[:3].tolist() == [[4, 1], [6, 2], [8, 3]]
    other = Counted(3)
    assert len(GraphSizes(other).values) == 3
    from popgeo.data import open_dataset

    num_kept = len(open_dataset._KEPT)
    del other
    assert len(open_dataset._KEPT) == num_kept - 1
