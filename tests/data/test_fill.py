"""Every tensor of a batch equals one that is worked out slowly from PyG's, compiled or not."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.data.batch_layout import LayoutChoices, lay_out
from popgeo.data.compiled_fill import Filler
from popgeo.data.cut import BatchCutter, BatchMemory
from popgeo.data.sort_edges import sort_edges
from popgeo.packing import Packs
from tests.support.graphs import CITES, WRITES, assert_same_graphs, hetero_graph, same
from tests.support.plain_batch import RICH_LEVELS, Rich, plain_batch, rich_graph

HETERO_LEVELS = {"x": "node", "edge_index": "edge", "edge_attr": "edge", "y": "graph"}
STATED = {name: "graph" if level == "rows" else level for name, level in RICH_LEVELS.items()}


def packs_of(num_graphs: int, random: np.random.Generator) -> list[list[int]]:
    """Graphs of three batches, in any order and more than once."""
    return [random.integers(0, num_graphs, random.integers(1, 4)).tolist() for _ in range(3)]


def most(packs: list[list[int]], numbers: list[int]) -> int:
    return max(sum(numbers[i] for i in pack) for pack in packs)


def cut(store: FlatStore, options: FixedSizeOptions, packs: list[list[int]], **choices: object) -> list:
    """Return the batches, in memory with other numbers and with room for one more batch."""
    cutter = BatchCutter(store, lay_out(store, options, LayoutChoices(**choices)))
    memory = BatchMemory(cutter.layout, len(packs) + 1)
    for tensor in memory.tensors:
        tensor.view(torch.uint8).fill_(1)
    batches = cutter.cut(Packs.from_lists(packs), memory)
    assert all(bool((tensor[-1].view(torch.uint8) == 1).all()) for tensor in memory.tensors)
    return batches


def assert_batch_is(batch, expected: dict) -> None:
    found = {
        (part._key, name): value
        for part in batch.stores
        for name, value in part.items()
        if isinstance(value, Tensor | list)
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert same(found[name], value), (name, found[name], value)


@pytest.mark.parametrize("spread", [False, True], ids=["loops", "spread"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("spare", [0, 3], ids=["full", "with room"])
@pytest.mark.parametrize("is_sorted", [False, True], ids=["as they come", "sorted"])
def test_batches_are_those_of_pyg_with_padding_behind(native, spread, dtype, spare, is_sorted):
    random = np.random.default_rng([spread, spare, is_sorted])
    sizes = [(0, 0), (1, 0), *random.integers(0, 6, (4, 2)).tolist()]
    graphs = [rich_graph(nodes, edges, seed) for seed, (nodes, edges) in enumerate(sizes)]
    packs = packs_of(len(graphs), random)
    names = [name for name, level in RICH_LEVELS.items() if level == "rows"]
    options = FixedSizeOptions(
        most(packs, [graph.num_nodes for graph in graphs]) + 1 + spare,
        most(packs, [graph.num_edges for graph in graphs]) + spare,
        most(packs, [1] * len(graphs)) + 1 + spare,
        node_pad_value=3,
        edge_pad_value=-1,
        graph_pad_value=2,
        num_rows={name: most(packs, [graph[name].shape[-1] for graph in graphs]) + spare for name in names},
    )
    store = FlatStore.from_dataset(graphs, levels=STATED)
    follow = ["x", "edge_attr", "tasks", "rings", "pair_index", "wide"]
    batches = cut(
        sort_edges(store) if is_sorted else store,
        options,
        packs,
        follow_batch=follow,
        index_dtype=dtype,
        spread_padding_edges=spread,
    )
    for batch, pack in zip(batches, packs, strict=True):
        members = [graphs[i] for i in pack]
        choices = {"index_dtype": dtype, "spread": spread, "sort_edges": is_sorted}
        assert_batch_is(batch, plain_batch(members, options, RICH_LEVELS, follow_batch=follow, **choices))
        assert isinstance(batch, Rich)
        parts = batch.to_data_list()
        if not is_sorted and dtype is torch.int64:
            assert_same_graphs([without_followers(part, follow) for part in parts], members)
        assert len(parts) == len(batch) == batch.num_real_graphs == len(pack)
        assert batch.num_real_nodes == sum(graph.num_nodes for graph in members)
        assert batch.num_real_edges == sum(graph.num_edges for graph in members)


@pytest.mark.parametrize("spread", [False, True], ids=["loops", "spread"])
@pytest.mark.parametrize("is_sorted", [False, True], ids=["as they come", "sorted"])
def test_batches_of_types_are_those_of_pyg_with_padding_behind(native, spread, is_sorted):
    random = np.random.default_rng([spread, is_sorted])
    sizes = [(1, 1, 0, 0), (3, 2, 4, 0), (1, 4, 2, 5), (2, 1, 0, 3)]
    graphs = [hetero_graph(*size, seed) for seed, size in enumerate(sizes)]
    packs = packs_of(len(graphs), random)
    first, second, third, fourth = (most(packs, [size[i] for size in sizes]) for i in range(4))
    options = FixedSizeOptions(
        {"a": first + 1, "b": second + 3},
        {WRITES: third, CITES: fourth + 5},
        most(packs, [1] * 4) + 2,
        node_pad_value=3,
        edge_pad_value=0.5,
        graph_pad_value=2,
    )
    store = FlatStore.from_dataset(graphs)
    store = sort_edges(store) if is_sorted else store
    for batch, pack in zip(cut(store, options, packs, spread_padding_edges=spread), packs, strict=True):
        members = [graphs[i] for i in pack]
        assert_batch_is(batch, plain_batch(members, options, HETERO_LEVELS, spread=spread, sort_edges=is_sorted))
        parts = batch.to_data_list()
        if not is_sorted:
            assert_same_graphs(parts, members)
        assert len(parts) == len(batch) == batch.num_real_graphs == len(pack)
        for key in ("a", "b"):
            assert batch[key].num_real_nodes == sum(graph[key].num_nodes for graph in members)
        assert batch[WRITES].num_real_edges == sum(graph[WRITES].num_edges for graph in members)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64])
def test_indices_of_few_bits_count_on_where_those_end(native, dtype):
    graphs = [Data(x=torch.ones(100, 1), edge_index=torch.tensor([[0], [99]]).to(dtype)) for _ in range(700)]
    (batch,) = cut(FlatStore.from_dataset(graphs), FixedSizeOptions(70_001, 700, 701), [range(700)])
    assert batch.edge_index[:, :700].tolist() == [list(range(0, 70_000, 100)), list(range(99, 70_000, 100))]


@pytest.mark.parametrize("dtype", [torch.int32])
def test_edges_counted_in_few_bits_are_shifted_in_those(native, dtype):
    graphs = [rich_graph(nodes, 4, nodes, dtype) for nodes in (3, 2, 4)]
    options = FixedSizeOptions(
        12, 15, 5, num_rows=dict.fromkeys(("face", "pair_index", "edge_label_index", "rings"), 12)
    )
    store = FlatStore.from_dataset(graphs, levels=STATED)
    assert Filler(store, lay_out(store, options)).can_be_compiled
    for spread in (False, True):
        batches = cut(store, options, [[2, 0], [1]], spread_padding_edges=spread)
        for batch, pack in zip(batches, ([2, 0], [1]), strict=True):
            assert_batch_is(batch, plain_batch([graphs[i] for i in pack], options, RICH_LEVELS, spread=spread))


def without_followers(graph, follow):
    own = type(graph)(**{name: value for name, value in graph if not name.endswith("_mask") or name == "train_mask"})
    for name in follow:
        del own[f"{name}_batch"], own[f"{name}_ptr"]
    return own
