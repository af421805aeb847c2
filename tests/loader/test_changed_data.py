"""Graphs that are edited after a loader has read them: the old values never come out without a word."""

import copy
import pickle

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torch_geometric.data import Data, InMemoryDataset

from popgeo import FixedSizeDataLoader


def graphs(count: int = 300) -> list[Data]:
    edge = torch.tensor([[0], [1]])
    return [Data(x=torch.ones(n % 3 + 2, 1), edge_index=edge, y=torch.tensor([float(n)]), tag=n) for n in range(count)]


class Kept(InMemoryDataset):
    def __init__(self, items: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(items)


def replace_y(graph):
    graph.y = graph.y / 2


def edit_y(graph):
    graph.y.mul_(3)


def set_number(graph):
    graph.tag = -1


def drop(graph):
    del graph.y


@pytest.mark.parametrize("change", [replace_y, edit_y, set_number, drop])
@pytest.mark.parametrize("wrap", [list, lambda g: Subset(g, range(10)), lambda g: ConcatDataset([g[:50], g[50:]])])
@pytest.mark.parametrize("epochs", [0, 1])
def test_an_edit_of_graphs_is_noticed(change, wrap, epochs):
    items = graphs()
    loader = FixedSizeDataLoader(wrap(items), 8)
    for _ in range(epochs):
        list(loader)
    for graph in items:
        change(graph)
    with pytest.raises(ValueError, match="has changed since the loader read it"):
        next(iter(loader))
    if change is not drop:
        next(iter(FixedSizeDataLoader(wrap(items), 8)))


def test_another_tensor_of_a_dataset_in_memory_is_noticed():
    dataset = Kept(graphs())
    loader = FixedSizeDataLoader(dataset, 8)
    list(loader)
    dataset._data.y = dataset._data.y / 2
    with pytest.raises(ValueError, match="'y' of the dataset was replaced"):
        next(iter(loader))


def test_what_is_only_read_or_copied_is_no_change():
    items = graphs()
    loader = FixedSizeDataLoader(items, 8)
    for _ in range(2):
        before = [graph.y.item() for graph in items]
        assert sum(int(batch.graphs_mask.sum()) for batch in loader) == len(before)
    items[0].clone().y.zero_()
    list(loader)


@pytest.mark.parametrize("wrap", [list, lambda g: Subset(g, range(10)), Kept])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["deep", "pickled"]
)
def test_a_copied_loader_is_one_of_unchanged_data_until_they_change(copied, wrap):
    loader = FixedSizeDataLoader(wrap(graphs()), 4, shuffle=True, seed=0)
    other = copied(loader)
    assert [batch.y.tolist() for batch in other] == [batch.y.tolist() for batch in loader]
    dataset = other.dataset
    changed = dataset._data if isinstance(dataset, Kept) else dataset[0]
    changed.y.mul_(3)
    with pytest.raises(ValueError, match="The dataset has changed since the loader read it: 'y' of"):
        next(iter(other))
    assert len(list(loader)) == len(loader)
