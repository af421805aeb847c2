"""What oversize batches lose, and what they must keep."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.utils import is_undirected

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore, unpad
from popgeo.data.trim import trim
from tests.support.graphs import CITES, WRITES, assert_same_graphs, graph, hetero_graph, same


def undirected(num_nodes: int, num_pairs: int, seed: int = 0) -> Data:
    random = torch.Generator().manual_seed(seed)
    pairs = torch.combinations(torch.arange(num_nodes))
    pairs = pairs[torch.randperm(len(pairs), generator=random)[:num_pairs]].t()
    weight = torch.rand(pairs.shape[1], generator=random)
    return Data(
        x=torch.arange(num_nodes)[:, None],
        edge_index=torch.cat([pairs, pairs.flip(0)], dim=1),
        edge_weight=torch.cat([weight, weight]),
        seed=torch.arange(num_nodes) < 2,
    )


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(2, 8), min_size=1, max_size=5), spare=st.integers(0, 9), seed=st.integers(0, 99))
def test_trimming_nodes_keeps_the_graphs_whole_in_meaning(sizes, spare, seed):
    graphs = [undirected(n, n, i) for i, n in enumerate(sizes)]
    limit = min(len(sizes) + spare, sum(sizes))
    trimmed, lost = trim(
        FlatStore.from_dataset(graphs, levels={"seed": "node"}),
        np.array([limit, 999]),
        nodes=True,
        edges=False,
        generator=seeded(seed),
    )
    assert trimmed.sizes[:, 0].sum() == limit
    assert (trimmed.sizes[:, 0] >= 1).all()
    assert lost[0].tolist() == [n - left for n, left in zip(sizes, trimmed.sizes[:, 0], strict=True)]
    batch = FixedSizeCollater(FixedSizeOptions(limit + 1, 99, len(sizes) + 1), True).collate(trimmed, seeded())
    for whole, left in zip(graphs, unpad(batch), strict=True):
        kept = left.x.flatten()  # `x` numbers the nodes of the whole graph
        assert (kept.diff() > 0).all()
        assert_same_graphs([left], [whole.subgraph(kept)])


@settings(deadline=None, max_examples=30)
@given(pairs=st.integers(1, 12), limit=st.integers(0, 24), seed=st.integers(0, 99))
def test_trimming_edges_keeps_both_directions_together(pairs, limit, seed):
    data = undirected(6, pairs)
    trimmed, lost = trim(
        FlatStore.from_dataset([data], levels={"seed": "node"}),
        np.array([9, limit]),
        nodes=False,
        edges=True,
        generator=seeded(seed),
    )
    edges = int(trimmed.sizes[0, 1])
    assert edges == min(2 * pairs, limit - limit % 2)
    assert int(lost[1]) == 2 * pairs - edges
    index, weight = trimmed.attributes[1].values, trimmed.attributes[2].values
    assert is_undirected(index, weight, num_nodes=6)


def test_protected_nodes_are_never_removed():
    graphs = [undirected(7, 9, i) for i in range(3)]
    for seed in range(50):
        trimmed, _ = trim(
            FlatStore.from_dataset(graphs),
            np.array([8, 99]),
            nodes=True,
            edges=False,
            generator=seeded(seed),
            protect="seed",
        )
        assert trimmed.attributes[3].values.sum() == 6
        assert trimmed.sizes[:, 0].sum() == 8
    with pytest.raises(ValueError, match="only 15 may be removed"):
        trim(
            FlatStore.from_dataset(graphs),
            np.array([5, 99]),
            nodes=True,
            edges=False,
            generator=seeded(),
            protect="seed",
        )


def test_trimming_is_repeatable():
    store = FlatStore.from_dataset([undirected(8, 12)])
    one, same_seed, other = (
        trim(store, np.array([5, 6]), nodes=True, edges=True, generator=seeded(s))[0].attributes[0].values
        for s in (0, 0, 3)
    )
    assert same(one, same_seed)
    assert not same(one, other)


def test_the_collater_trims_and_reports_what_each_graph_lost(native):
    graphs = [undirected(5, 6), undirected(3, 2, 1)]
    collate = FixedSizeCollater(FixedSizeOptions(7, 6, 4), True, True, True, sort_edges=True, generator=seeded())
    batch = collate(graphs)
    assert batch.num_trimmed_nodes.sum() == 2
    assert batch.num_trimmed_nodes.shape == batch.num_trimmed_edges.shape == (4,)
    lost = [whole.num_edges - left.num_edges for whole, left in zip(graphs, unpad(batch), strict=True)]
    assert batch.num_trimmed_edges.tolist() == [*lost, 0, 0]
    assert batch.num_nodes == 7
    fitting = collate([undirected(3, 2)])
    assert not fitting.num_trimmed_nodes.any()


def test_heterogeneous_graphs_are_trimmed_per_type(native):
    graphs = [hetero_graph(4, 4, 5, 4, seed) for seed in range(2)]
    batch = FixedSizeCollater(FixedSizeOptions({"a": 5, "b": 9}, 10, 3), True, True, True)(graphs)
    assert int(batch["a"].nodes_mask.sum()) == 4
    assert int(batch["b"].nodes_mask.sum()) == 8
    assert all((g["a"].num_nodes, g["b"].num_nodes) >= (1, 4) for g in unpad(batch))


def test_edges_without_ends_are_removed_one_by_one():
    graphs = [Data(x=torch.ones(2, 1), edge_attr=torch.arange(3 * i, 3 * i + n)) for i, n in enumerate((3, 2))]
    store = FlatStore.from_dataset(graphs)
    trimmed, lost = trim(store, np.array([9, 2]), nodes=False, edges=True, generator=seeded())
    assert trimmed.sizes[:, 1].sum() == 2
    assert set(trimmed.attributes[1].values.tolist()) <= {0, 1, 2, 3, 4}
    assert lost[1].tolist() == [3 - trimmed.sizes[0, 1], 2 - trimmed.sizes[1, 1]]


def test_both_directions_go_together_wherever_the_ends_stand_among_the_attributes():
    whole = undirected(6, 7)
    data = Data()
    data.edge_weight, data.edge_index, data.x = whole.edge_weight, whole.edge_index, whole.x
    trimmed, _ = trim(FlatStore.from_dataset([data]), np.array([9, 8]), nodes=False, edges=True, generator=seeded())
    weight, index = (attribute.values for attribute in trimmed.attributes[:2])
    assert index.shape == (2, 8)
    assert is_undirected(index, weight, num_nodes=6)
    hetero = hetero_graph(3, 6, 5, 1)
    hetero[CITES].edge_index = whole.edge_index
    trimmed, _ = trim(
        FlatStore.from_dataset([hetero]), np.array([9, 9, 9, 8]), nodes=False, edges=True, generator=seeded()
    )
    assert trimmed.sizes.tolist() == [[3, 6, 5, 8]]
    assert is_undirected(trimmed.attributes[-1].values, num_nodes=6)


def test_edges_of_two_types_that_join_the_same_numbers_are_no_pair():
    data = hetero_graph(3, 3, 4, 0)
    data[WRITES].edge_index = torch.tensor([[0, 1, 0, 2], [1, 0, 2, 0]])
    for seed in range(5):
        trimmed, _ = trim(
            FlatStore.from_dataset([data]), np.array([9, 9, 3, 9]), nodes=False, edges=True, generator=seeded(seed)
        )
        assert trimmed.sizes.tolist() == [[3, 3, 3, 0]]


def test_nodes_that_fit_stay_also_where_edges_do_not():
    store = FlatStore.from_dataset([undirected(5, 6)])
    for limit in (5, 6, 9):
        trimmed, lost = trim(store, np.array([limit, 4]), nodes=True, edges=True, generator=seeded())
        assert trimmed.sizes.tolist() == [[5, 4]]
        assert lost.tolist() == [[0], [8]]


def test_edges_of_what_is_left_are_shifted_by_the_nodes_that_are_left():
    trimmed, _ = trim(
        FlatStore.from_dataset([undirected(5, 6), undirected(4, 3)]), np.array([6, 99]), nodes=True, edges=False,
        generator=seeded(),
    )  # fmt: skip
    assert trimmed.attributes[1].increments.tolist() == [[n] for n in trimmed.sizes[:, 0].tolist()]
    hetero = [hetero_graph(4, 3, 5, 4, seed) for seed in range(2)]
    trimmed, _ = trim(
        FlatStore.from_dataset(hetero), np.array([5, 6, 99, 99]), nodes=True, edges=False, generator=seeded()
    )
    increments = [a.increments.tolist() for a in trimmed.attributes if a.name == "edge_index"]
    assert increments == [
        [[a, b] for a, b, *_ in trimmed.sizes.tolist()],
        [[b, b] for _, b, *_ in trimmed.sizes.tolist()],
    ]


def test_what_counts_nodes_is_no_hindrance_where_no_node_has_to_go():
    store = FlatStore.from_dataset([graph(5, 3)])
    assert trim(store, np.array([5, 3]), nodes=True, edges=False, generator=seeded())[0].sizes.tolist() == [[5, 3]]


def test_trimming_that_is_not_enough_says_so():
    store = FlatStore.from_dataset([undirected(5, 6)])
    with pytest.raises(ValueError, match=r"After trimming, 12 edges are left and 3 fit.*TrimNodesAndEdges"):
        trim(store, np.array([9, 3]), nodes=True, edges=False, generator=seeded())
    with pytest.raises(ValueError, match="After trimming, 5 nodes are left and 3 fit"):
        trim(store, np.array([3, 99]), nodes=False, edges=True, generator=seeded())
    with pytest.raises(ValueError, match="'root_index' has numbers of nodes"):
        trim(FlatStore.from_dataset([graph(5, 3)]), np.array([3, 9]), nodes=True, edges=False, generator=seeded())
