"""Loaders over torch's and PopTorch's DataLoader: items, packing and errors."""

import pickle

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import Pad

from popgeo.compat import poptorch
from popgeo.compat.poptorch_geometric import dataloader, pyg_dataloader
from popgeo.compat.poptorch_geometric.fixed_size_options import FixedSizeOptions
from popgeo.compat.poptorch_geometric.pyg_dataloader import FixedSizeStrategy, OverSizeStrategy
from popgeo.compat.poptorch_geometric.stream_packing_sampler import StreamPackingSampler

EDGES = ("a", "to", "b")
FLAVOURS = [pyg_dataloader, dataloader]
SIZES = (3, 4, 2, 5, 1, 2, 3, 4)


def graph(num_nodes):
    index = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    return Data(x=torch.full((num_nodes, 1), float(num_nodes)), edge_index=index, y=torch.tensor([float(num_nodes)]))


@pytest.fixture
def graphs():
    return [graph(n) for n in SIZES]


def reals(batch):
    return batch.y[batch.graphs_mask].tolist()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_batch_has_one_graph_less_than_its_size_and_is_a_loader_of_its_flavour(flavour, graphs):
    loader = flavour.FixedSizeDataLoader(graphs, batch_size=5)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert isinstance(loader, poptorch.DataLoader) is (flavour is dataloader)
    assert issubclass(dataloader.FixedSizeDataLoader, pyg_dataloader.FixedSizeDataLoader)
    assert [reals(batch) for batch in loader] == [list(SIZES[:4]), list(SIZES[4:])]
    assert {tuple(batch.x.shape) for batch in loader} == {(4 * 5 + 1, 1)}


def test_poptorchs_flavour_drops_an_incomplete_batch_and_torchs_keeps_it(graphs):
    assert [len(reals(batch)) for batch in pyg_dataloader.FixedSizeDataLoader(graphs, batch_size=4)] == [3, 3, 2]
    assert [len(reals(batch)) for batch in dataloader.FixedSizeDataLoader(graphs, batch_size=4)] == [3, 3]


def test_an_item_holds_as_many_batches_as_the_options_ask_for(graphs):
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    loader = dataloader.FixedSizeDataLoader(graphs, batch_size=3, options=options)
    (item,) = loader
    assert item.x.shape == (4 * 11, 1)
    assert item.edge_index.shape == (4 * 2, 9)
    assert item.ptr.shape == (4 * 4,)
    assert (item.num_nodes, item.num_graphs) == (11, 3)
    assert reals(item) == list(SIZES)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("strategy", list(FixedSizeStrategy)[:2])
def test_the_order_is_drawn_by_torchs_seed(flavour, strategy, graphs):
    def orders(seed):
        torch.manual_seed(seed)
        options = FixedSizeOptions(11, 20, 3)
        loader = flavour.FixedSizeDataLoader(graphs, 3, True, options, strategy)
        return [[reals(batch) for batch in loader] for _ in range(2)]

    first, second = orders(0)
    assert first != second
    assert orders(0) == [first, second]
    assert orders(1)[0] != first


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_packing_takes_graphs_in_order_as_long_as_they_fit(flavour, graphs):
    options = FixedSizeOptions(num_nodes=10, num_edges=20, num_graphs=4)
    loader = flavour.FixedSizeDataLoader(
        graphs, 4, fixed_size_options=options, fixed_size_strategy=FixedSizeStrategy.StreamPack
    )
    assert [reals(batch) for batch in loader] == [[3, 4, 2], [5, 1, 2], [3, 4]]  # nine real nodes, three real graphs
    assert len(loader) == 3


def test_packed_batches_of_one_item_keep_their_own_graphs(graphs):
    options = FixedSizeOptions(num_nodes=8, num_edges=20, num_graphs=4)
    loader = dataloader.FixedSizeDataLoader(
        graphs,
        4,
        fixed_size_options=options,
        fixed_size_strategy=FixedSizeStrategy.StreamPack,
        options=poptorch.Options().deviceIterations(2),
    )
    items = list(loader)  # [3, 4], [2, 5], [1, 2, 3], [4]
    assert [reals(item) for item in items] == [[3, 4, 2, 5], [1, 2, 3, 4]]
    assert items[1].graphs_mask.tolist() == [True, True, True, False, True, False, False, False]
    assert items[1].batch.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 0, 0, 0, 0, 1, 1, 1, 1]
    assert len(loader) == 2
    assert len(loader.dataset) == 8


def test_sizes_are_measured_where_packing_is_given_none(graphs):
    loader = dataloader.FixedSizeDataLoader(graphs, 3, fixed_size_strategy=FixedSizeStrategy.StreamPack)
    assert loader.fixed_size_options.num_nodes == 11
    assert sum(len(reals(batch)) for batch in loader) == 8


@pytest.mark.parametrize("strategy", list(FixedSizeStrategy)[:2])
def test_skipping_leaves_out_what_fits_no_batch(strategy, graphs):
    options = FixedSizeOptions(num_nodes=5, num_edges=9, num_graphs=2)
    arguments = {"fixed_size_options": options, "fixed_size_strategy": strategy}
    graphs.append(graph(6))
    with pytest.raises(RuntimeError, match=r"too small to fit|don't allocate enough space"):
        list(pyg_dataloader.FixedSizeDataLoader(graphs, 2, **arguments))
    loader = pyg_dataloader.FixedSizeDataLoader(graphs, 2, **arguments, over_size_strategy=OverSizeStrategy.Skip)
    assert [n for batch in loader for n in reals(batch)] == [3, 4, 2, 1, 2, 3, 4]


def test_no_type_overflows_when_graphs_of_several_types_are_packed():
    def typed(num_a, num_b):
        data = HeteroData(a={"x": torch.ones(num_a, 1)}, b={"x": torch.ones(num_b, 1)})
        data[EDGES].edge_index = torch.zeros(2, 1, dtype=torch.long)
        return data

    options = FixedSizeOptions({"a": 5, "b": 9}, {EDGES: 9}, 4)
    dataset = [typed(3, 1), typed(3, 1), typed(1, 4)]  # the sum of nodes would allow all three in one batch
    loader = pyg_dataloader.FixedSizeDataLoader(
        dataset, 4, fixed_size_options=options, fixed_size_strategy=FixedSizeStrategy.StreamPack
    )
    assert [int(batch.graphs_mask.sum()) for batch in loader] == [1, 2]


def test_a_batch_sampler_chooses_the_graphs_of_each_batch(graphs):
    options = FixedSizeOptions(20, 20, 4)
    loader = dataloader.FixedSizeDataLoader(
        graphs,
        4,
        fixed_size_options=options,
        batch_sampler=[[7, 0], [1], [2, 3, 4], [5]],
        options=poptorch.Options().deviceIterations(2),
    )
    assert [reals(item) for item in loader] == [[4, 3, 4], [2, 5, 1, 2]]
    with pytest.raises(ValueError, match="incompatible with the provided batch_sampler"):
        dataloader.FixedSizeDataLoader(graphs, 4, fixed_size_strategy=FixedSizeStrategy.StreamPack, batch_sampler=[[0]])


def test_what_contradicts_is_refused(graphs):
    with pytest.raises(AssertionError, match="`num_graphs` in fixed size options must match provided batch size"):
        pyg_dataloader.FixedSizeDataLoader(graphs, 3, fixed_size_options=FixedSizeOptions(9, 9, 4))
    with pytest.raises(AssertionError, match="Cannot set `collate_fn` with `FixedSizeDataLoader`"):
        pyg_dataloader.FixedSizeDataLoader(graphs, 3, collate_fn=list)
    with pytest.raises(ValueError, match=r"popgeo\.loader\.FixedSizeDataLoader"):
        pyg_dataloader.FixedSizeDataLoader(graphs, 3, fixed_size_strategy=FixedSizeStrategy.Window)


def test_loading_ahead_gives_the_same_batches(graphs):
    ahead = dataloader.FixedSizeDataLoader(
        graphs, 3, mode=poptorch.DataLoaderMode.Async, async_options={"buffer_size": 2}
    )
    try:
        assert [reals(batch) for batch in ahead] == [[3, 4], [2, 5], [1, 2], [3, 4]]
    finally:
        ahead.terminate()


def test_graphs_padded_one_by_one_need_only_the_plain_loader(graphs):
    padded = [Pad(max_num_nodes=6, max_num_edges=7)(Data(x=data.x, edge_index=data.edge_index)) for data in graphs]
    loader = dataloader.DataLoader(
        padded, batch_size=2, options=poptorch.Options().deviceIterations(2), collate_fn=list
    )
    items = list(loader)
    assert {tuple(item.edge_index.shape) for item in items} == {(4, 14)}
    assert items[0].x[::6].flatten().tolist() == [3, 4, 2, 5]
    (single, *_) = pyg_dataloader.DataLoader(padded, batch_size=2)
    assert single.num_nodes == 12


def test_loaders_of_older_releases_are_called_with_collater_args(graphs):
    loader = dataloader.CustomFixedSizeDataLoader(
        graphs,
        num_nodes=12,
        batch_size=3,
        collater_args={"num_edges": 9, "add_masks_to_batch": True, "node_pad_value": 2.0},
        options=poptorch.Options().deviceIterations(2),
    )
    item = next(iter(loader))
    assert item.x.shape == (24, 1)
    assert item.edge_index.shape == (4, 9)
    assert item.x[7].item() == 2
    packing = StreamPackingSampler(graphs, 3, max_num_nodes=9, max_num_edges=9)
    loader = pyg_dataloader.CustomFixedSizeDataLoader(graphs, batch_sampler=packing)
    assert {(batch.num_nodes, batch.num_edges) for batch in loader} == {(10, 10)}
    with pytest.raises(AssertionError, match=r"Argument `num_nodes` \(= 9\) should be greater"):
        pyg_dataloader.CustomFixedSizeDataLoader(graphs, batch_sampler=packing, num_nodes=9)
    with pytest.raises(AssertionError, match="pass them to the loader itself"):
        pyg_dataloader.CustomFixedSizeDataLoader(graphs, num_nodes=9, collater_args={"follow_batch": ["x"]})


def test_a_packing_sampler_by_itself(graphs):
    assert list(StreamPackingSampler(graphs, 1)) == [[i] for i in range(8)]
    assert list(StreamPackingSampler(graphs, 8, max_num_nodes=10)) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert list(StreamPackingSampler(graphs, 2, 5, base_sampler=[7, 6, 4, 2])) == [[7], [6, 4], [2]]
    with pytest.raises(RuntimeError, match=r"too small to fit in the single sample 3 with \[5, 4\] nodes"):
        list(StreamPackingSampler(graphs, 2, max_num_nodes=4))
    assert list(StreamPackingSampler(graphs, 2, max_num_nodes=2, allow_skip_data=True)) == [[2], [4], [5]]
    for arguments in ((0,), (None,), (3, 2), (3, 9, 2)):
        with pytest.raises(ValueError, match="must be at least"):
            StreamPackingSampler(graphs, *arguments)
    with pytest.raises(ValueError, match="is empty"):
        StreamPackingSampler(graphs, 2, base_sampler=[])
    drawn = StreamPackingSampler(graphs, 2, base_sampler=torch.utils.data.RandomSampler(graphs))
    for error in (TypeError, NotImplementedError):
        with pytest.raises(error, match="depends on the order"):
            len(drawn)
    assert sorted(i for pack in list(drawn) for i in pack) == list(range(8))


def test_batches_can_be_pickled(graphs):
    batch = next(iter(dataloader.FixedSizeDataLoader(graphs, 3)))
    again = pickle.loads(pickle.dumps(batch))
    assert torch.equal(again.x, batch.x)


@pytest.mark.parametrize(("num_edges", "num_batches"), [(4, 2), (5, 1)])
def test_packing_keeps_an_edge_for_padding(num_edges, num_batches):
    graphs = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]])) for _ in range(2)]
    options = FixedSizeOptions(num_nodes=9, num_edges=num_edges, num_graphs=3)
    loader = pyg_dataloader.FixedSizeDataLoader(
        graphs, 3, fixed_size_options=options, fixed_size_strategy=FixedSizeStrategy.StreamPack
    )
    assert sum(1 for _ in loader) == num_batches


def test_what_is_trimmed_afterwards_is_packed_by_the_total_over_types():
    def typed(num_a, num_b):
        data = HeteroData(a={"x": torch.ones(num_a, 1)}, b={"x": torch.ones(num_b, 1)})
        data["a", "to", "b"].edge_index = torch.zeros(2, 3, dtype=torch.long)
        return data

    told = {"fixed_size_options": FixedSizeOptions(5, 8, 4), "fixed_size_strategy": FixedSizeStrategy.StreamPack}
    kinds = [typed(2, 6), typed(1, 2), typed(3, 3)]
    trims = OverSizeStrategy.TrimNodesAndEdges
    loader = pyg_dataloader.FixedSizeDataLoader(kinds, 4, over_size_strategy=trims, **told)
    assert [batch["b"].nodes_mask.sum().item() for batch in loader] == [4, 4]  # [2 + 6], [3 + 6] nodes, of at most 9
    with pytest.raises(RuntimeError, match="too small to fit in the single sample 0"):
        list(pyg_dataloader.FixedSizeDataLoader(kinds, 4, **told))
