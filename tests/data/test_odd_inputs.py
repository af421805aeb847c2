"""What is not a graph, no time, no size or no file of PyG's is refused if it enters, in words that say so."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset, TemporalData

from popgeo import FixedSizeDataLoader
from popgeo.convert.pyg import read_pt
from popgeo.data import FlatStore, write
from popgeo.engine.step_options import StepOptions
from popgeo.loader import FixedSizeClusterLoader, FixedSizeEventLoader
from popgeo.packing import Budget, stream
from popgeo.sampling.entity_shards import EntityShards, pair_of

NODES = torch.tensor([0, 1, 0])


@pytest.mark.parametrize(
    "times",
    [
        torch.tensor([1.0, torch.nan, 2.0]),
        torch.tensor([torch.nan, 1.0, 2.0]),
        torch.tensor([5, 3, 4], dtype=torch.uint8),
        torch.tensor([-(2**62) - 2**61, 2**62, -(2**62)]),
    ],
)
def test_events_that_are_not_in_the_order_of_time_are_refused(times):
    with pytest.raises(ValueError, match="of 3 events are not in order of time, or NaN"):
        FixedSizeEventLoader(TemporalData(NODES, NODES + 3, times), batch_size=2)


def test_times_whose_differences_overflow_are_in_order_all_the_same():
    times = torch.tensor([-(2**63), 0, 2**63 - 1])
    assert len(FixedSizeEventLoader(TemporalData(NODES, NODES + 3, times), batch_size=2)) == 2


def test_a_negative_relation_in_the_middle_is_refused():
    triples = torch.tensor([[0, 0, 1], [1, -1, 2], [2, 1, 0]])
    with pytest.raises(ValueError, match=r"triples.1. is .1, -1, 2.; relations are numbered from 0"):
        pair_of(triples, EntityShards.deal(3))


def test_sizes_that_overflow_together_are_refused():
    with pytest.raises(ValueError, match="9 graphs together exceed 64-bit numbers"):
        stream(np.full(9, 2**61), Budget(sizes=(2**61,), num_graphs=4))


@pytest.mark.parametrize("content", [b"", b"this is text", b"\x80\x02", b"PK\x03\x04 broken"])
def test_files_that_torch_has_not_written_are_refused_by_name(tmp_path, content):
    (tmp_path / "graphs.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"graphs.pt cannot be read: ..."):
        read_pt(tmp_path / "graphs.pt")


@pytest.mark.parametrize("slices", [[0, 2, 5], [0, 3, 2, 4], [1, 2, 4], [0, 2]])
def test_slices_that_do_not_lead_through_the_rows_are_refused(slices):
    dataset = InMemoryDataset()
    dataset._data, dataset.slices = Data(x=torch.ones(4, 1)), {"x": torch.tensor(slices)}
    with pytest.raises(ValueError, match="slices of 'x' do not cover its 4 rows"):
        FlatStore.from_dataset(dataset)


@pytest.mark.parametrize("odd", [1, None, {"x": 1}, SimpleNamespace(x=1), np.ones(3)])
def test_a_stream_of_what_are_no_graphs_is_refused_by_number(tmp_path, odd):
    with pytest.raises(ValueError, match=r"Graph 1 is a .*, not Data or HeteroData"):
        write(iter([Data(x=torch.ones(2, 1)), odd]), tmp_path / "store")


def test_edges_that_are_no_whole_numbers_and_types_that_differ_are_refused():
    good = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    others = Data(x=good.x, edge_index=torch.zeros(2, 1)), Data(x=good.x.double(), edge_index=good.edge_index)
    for other, message in zip(others, ("'edge_index' is torch.int64 in", "'x' is torch.float32 in"), strict=True):
        with pytest.raises(ValueError, match=f"{message} graph 0 and torch.float"):
            FixedSizeDataLoader([good, other], num_nodes=9, num_edges=9, batch_size=3)
    with pytest.raises(ValueError, match=r"edge_index is torch.float32; indices are integers"):
        FixedSizeDataLoader(others[:1], batch_size=2)


def test_a_graph_without_nodes_has_no_clusters():
    empty = Data(x=torch.ones(0, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    with pytest.raises(ValueError, match="The graph has no nodes"):
        FixedSizeClusterLoader(empty, parts=torch.zeros(0, dtype=torch.int64), batch_size=1)


def test_a_random_seed_is_a_number():
    with pytest.raises(ValueError, match="random_seed is 'x'; it must be a whole number or None"):
        StepOptions(random_seed="x")


def test_a_peek_at_a_loader_with_buffers_leaves_the_items_of_a_running_epoch_alone():
    graphs = [Data(x=torch.full((2, 1), float(i))) for i in range(12)]
    loader = FixedSizeDataLoader(graphs, num_nodes=3, num_edges=1, batch_size=2, num_buffers=4)
    epoch = iter(loader)
    first, second = next(epoch), next(epoch)
    before = first.x.clone(), second.x.clone()
    peek = next(iter(loader))
    assert torch.equal(peek.x, before[0])
    assert torch.equal(first.x, before[0])
    assert torch.equal(second.x, before[1])
    seen = [float(batch.x[0]) for batch in epoch]
    assert seen == [float(i) for i in range(2, 12)]
