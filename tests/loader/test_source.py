"""Kinds of datasets that a loader can load, and their order."""

import warnings

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, WeightedRandomSampler
from torch_geometric.data import Data

from popgeo.data import FlatStore, unpad
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from tests.support.graphs import assert_same_graphs, same
from tests.support.loaders import GRAPHS, InMemory, OnDisk, loader_of, seeds


def test_every_kind_of_dataset_gives_the_same_batches():
    dataset = InMemory(GRAPHS)
    expected = seeds(loader_of())
    order = torch.randperm(40).tolist()
    assert seeds(loader_of(dataset)) == expected
    assert seeds(loader_of(FlatStore.from_dataset(dataset))) == expected
    assert seeds(loader_of(ConcatDataset([dataset[:7], Subset(dataset, range(7, 40))]))) == expected
    assert seeds(loader_of(dataset[order])) == order
    assert seeds(loader_of(Subset(dataset[order], [3, 1]))) == [order[3], order[1]]
    assert seeds(loader_of(Subset(GRAPHS, order))) == order
    assert_same_graphs([g for b in loader_of(dataset) for g in unpad(b)], list(dataset))


def test_the_arrays_of_a_dataset_in_memory_are_not_copied():
    dataset = InMemory(GRAPHS)
    store = loader_of(dataset[:9]).source.store
    assert store.attributes[0].values.data_ptr() == dataset._data.x.data_ptr()


def test_a_random_transform_runs_anew_each_epoch_and_says_that_it_is_slow():
    def jitter(data):
        data.pos = data.pos + torch.rand_like(data.pos)
        return data

    with pytest.warns(UserWarning, match="has a transform, which may be random, so each graph is fetched again"):
        loader = loader_of(InMemory(GRAPHS, transform=jitter))
    assert not same(next(iter(loader)).pos, next(iter(loader)).pos)
    assert sorted(seeds(loader)) == list(range(40))


def test_a_dataset_on_disk_is_loaded_graph_by_graph():
    with pytest.warns(UserWarning, match="OnDisk does not hold its graphs in memory"):
        loader = loader_of(OnDisk(), options=3)
    assert seeds(loader) == list(range(40))


def test_samplers_decide_the_order_and_batch_samplers_the_batches():
    sampler = WeightedRandomSampler([0.0] * 20 + [1.0] * 20, 50)
    drawn = seeds(loader_of(sampler=sampler))
    assert len(drawn) == 50
    assert min(drawn) >= 20
    loader = loader_of(strategy=FixedSizeStrategy.PadToMax, batch_sampler=[[3, 1], [7]])
    assert [[int(g.charge) for g in unpad(batch)] for batch in loader] == [[3, 1], [7]]
    with pytest.raises(ValueError, match="decides the batches; leave out"):
        loader_of(batch_sampler=[[1]])


@pytest.mark.parametrize("number", [-1, 40])
def test_a_sampler_names_graphs_that_there_are(number: int):
    with pytest.raises(ValueError, match=rf"^sampler contains {number}; indices must be in 0 ... 39"):
        list(loader_of(sampler=[number]))
    with pytest.raises(ValueError, match=rf"^batch_sampler contains {number}; indices must be in 0 ... 39"):
        list(loader_of(strategy=FixedSizeStrategy.PadToMax, batch_sampler=[[3], [number]]))


def test_point_clouds_need_no_edges():
    clouds = [Data(pos=torch.rand(n, 3), y=torch.rand(1)) for n in (3, 4, 5)]
    loader = FixedSizeDataLoader(clouds, num_nodes=11, num_edges=0, batch_size=3)
    assert next(iter(loader)).edges_mask.shape == (0,)
    assert loader.fixed_size_options.num_edges == 0
    assert FixedSizeDataLoader(clouds, 3).fixed_size_options.num_edges == 0


def test_no_warning_is_raised_for_a_flat_dataset():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader_of(InMemory(GRAPHS)))


def test_a_dataset_that_has_changed_since_it_was_read_is_refused():
    graphs, transformed = list(GRAPHS), InMemory(GRAPHS)
    longer, later = loader_of(graphs), loader_of(transformed)
    next(iter(longer)), next(iter(later))
    graphs.append(GRAPHS[0])
    with pytest.raises(ValueError, match="it had 40 graphs and has 41"):
        next(iter(longer))
    transformed.transform = lambda graph: graph
    with pytest.raises(ValueError, match="InMemory has a transform"):
        next(iter(later))


@pytest.mark.filterwarnings("ignore:Ends does not hold its graphs")
@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}])
@pytest.mark.parametrize("strategy", ["PadToMax", "Window"])
def test_a_dataset_that_raises_stop_iteration_does_not_end_the_epoch(workers, strategy):
    class Ends(Dataset):
        ends = False

        def __len__(self) -> int:
            return 40

        def __getitem__(self, i: int) -> Data:
            if self.ends and i == 30:
                raise StopIteration
            return Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))

    dataset = Ends()
    loader = FixedSizeDataLoader(dataset, 5, fixed_size_strategy=strategy, **workers)
    list(loader)
    dataset.ends = True
    with pytest.raises(RuntimeError, match=r"The dataset raised StopIteration for one of its items \[.*30.*\]"):
        list(loader)
