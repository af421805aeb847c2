"""Bad graphs are refused if they enter, by the number of the graph and the name of the attribute."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset
from torch_geometric.data import Data, InMemoryDataset

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore
from tests.support.graphs import WRITES, graph, hetero_graph, lists_of_graphs


class InMemory(InMemoryDataset):
    def __init__(self, graphs):
        super().__init__()
        self.data, self.slices = self.collate(graphs)


def pair(*edges: tuple[int, int], **others) -> Data:
    """Two nodes, and edges that may leave them."""
    return Data(x=torch.ones(2, 1), edge_index=torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T, **others)


@pytest.mark.parametrize("wrong", [-1, 2, 2**14])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_an_edge_that_leaves_its_graph_is_refused(native, wrong, dtype):
    graphs = [pair((0, 1)), pair(), pair((1, 0), (1, wrong))]
    for one in graphs:
        one.edge_index = one.edge_index.to(dtype)
    with pytest.raises(ValueError, match=rf"Graph 2 has {wrong} in edge_index\[1\], but 2 nodes"):
        FlatStore.from_dataset(graphs)


def test_what_leaves_is_refused_by_the_collater_too():
    with pytest.raises(ValueError, match=r"Graph 0 has -1 in edge_index\[0\]"):
        FixedSizeCollater(FixedSizeOptions(8, 8, 4))([pair((-1, 0)), pair()])


def test_faces_and_other_edge_indices_are_looked_at_and_other_indices_are_not():
    mesh = Data(pos=torch.zeros(3, 3), face=torch.tensor([[0], [1], [3]]))
    with pytest.raises(ValueError, match=r"3 in face\[2\], but 3 nodes"):
        FlatStore.from_dataset([mesh])
    with pytest.raises(ValueError, match=r"5 in edge_label_index\[0\]"):
        FlatStore.from_dataset([pair((0, 1), edge_label_index=torch.tensor([[5], [0]]))])
    FlatStore.from_dataset([pair((0, 1), index=torch.tensor([1234]))])  # the graph's number in its source


def test_each_end_of_a_heterogeneous_edge_has_its_own_limit(native):
    fine, odd = hetero_graph(2, 5, 1, 0), hetero_graph(2, 5, 1, 0)
    fine[WRITES].edge_index[:, 0] = torch.tensor([1, 4])
    odd[WRITES].edge_index[:, 0] = torch.tensor([2, 4])
    FlatStore.from_dataset([fine])
    with pytest.raises(ValueError, match=r"Graph 1 has 2 in edge_index of \('a', 'writes', 'b'\)\[0\], but 2 nodes"):
        FlatStore.from_dataset([fine, odd])


def test_a_bad_graph_that_is_not_shown_does_no_harm():
    graphs = [pair((0, 1)), pair((0, 7)), pair((1, 1))]
    for dataset in (Subset(graphs, [2, 0]), InMemory(graphs)[[2, 0]]):
        assert len(FlatStore.from_dataset(dataset)) == 2
    with pytest.raises(ValueError, match="Graph 1 has 7"):  # counted as it is shown
        FlatStore.from_dataset(InMemory(graphs)[[2, 1]])


def test_checks_can_be_left_out_and_positions_are_looked_at_when_asked():
    FlatStore.from_dataset([pair((0, 9))], validate=False)
    graphs = [pair(pos=torch.zeros(2, 3)), pair(pos=torch.tensor([[0.0, 0.0, 0.0], [0.0, float("nan"), 0.0]]))]
    FlatStore.from_dataset(graphs)
    with pytest.raises(ValueError, match="Graph 1 has pos that is NaN"):
        FlatStore.from_dataset(graphs, validate=True)
    FlatStore.from_dataset(graphs[:1], validate=True)


def test_feature_counts_that_differ_name_the_graph():
    with pytest.raises(ValueError, match=r"'x' cannot be joined .* \[2, 1\] in graph 0 and \[2, 4\] in graph 2"):
        FlatStore.from_dataset([pair(), pair(), Data(x=torch.ones(2, 4), edge_index=torch.empty(2, 0).long())])


@pytest.mark.parametrize(("name", "rows", "what"), [("pos", 2, "3 nodes"), ("edge_attr", 4, "2 edges")])
def test_features_of_fewer_nodes_than_there_are_do_not_pass_for_the_graphs(name, rows, what):
    graphs = [graph(3, 2), graph(3, 2)]
    graphs[1][name] = graphs[1][name].repeat(2, *[1] * (graphs[1][name].dim() - 1))[:rows]
    with pytest.raises(ValueError, match=f"Graph 1 has {rows} rows in '{name}' and {what}"):
        FlatStore.from_dataset(graphs)
    assert FlatStore.from_dataset(graphs, levels={name: "graph"}).level(name).value == "graph"


DAMAGE = ("none", "negative", "too large", "NaN position", "another width", "fewer positions")


def damaged(one: Data, kind: str, where: int) -> Data:
    """Return a copy of a graph with one fault."""
    one = one.clone()
    edge = where % max(1, one.num_edges)
    if kind in ("negative", "too large"):
        one.edge_index[where % 2, edge] = -1 - where if kind == "negative" else one.num_nodes + where
    elif kind == "NaN position":
        one.pos[where % one.num_nodes, where % 3] = float("nan")
    elif kind == "another width":
        one.x = one.x[:, :2]
    elif kind == "fewer positions":
        one.pos = one.pos.repeat(3 if 2 * one.num_nodes == one.num_edges else 2, 1)  # as many as edges would be theirs
    return one


def entered(kind: str, graphs: list[Data]) -> object:
    return graphs if kind == "list" else InMemory(graphs)


@pytest.mark.parametrize("source", ["list", "in memory"])
def test_of_random_datasets_the_broken_ones_are_refused_and_only_those(source):
    seen: Counter[str] = Counter()

    @settings(max_examples=150, deadline=None)
    @given(lists_of_graphs(), st.sampled_from(DAMAGE), st.integers(0, 50))
    def check(graphs, kind, where):
        number = where % len(graphs)
        if kind in ("negative", "too large") and not graphs[number].num_edges:
            kind = "none"
        if kind == "another width" and (len(graphs) == 1 or source == "in memory"):
            kind = "none"  # one graph alone has no other width, and PyG itself cannot join two
        if kind == "fewer positions" and len(graphs) > 1 and source == "list":
            number = 0
        broken = [damaged(one, kind, where) if i == number else one for i, one in enumerate(graphs)]
        seen[kind] += 1
        if kind == "none":
            assert len(FlatStore.from_dataset(entered(source, broken), validate=True)) == len(graphs)
            return
        named = {"NaN position": "pos", "another width": "x", "fewer positions": "pos"}.get(kind, "edge_index")
        with pytest.raises(ValueError, match=f"[Gg]raph {number}.*{named}|'{named}'.* in graph"):
            FlatStore.from_dataset(entered(source, broken), validate=True)

    check()
    print(f"{source}: {dict(seen)}")
    assert len(seen) >= 4


def test_both_ways_of_checking_agree(native):
    random = np.random.default_rng(0)
    for _ in range(20):
        graphs = [graph(int(n), int(m), seed) for seed, (n, m) in enumerate(random.integers(1, 8, (5, 2)))]
        odd = int(random.integers(5))
        graphs[odd].edge_index[int(random.integers(2)), -1] = int(random.choice([-3, graphs[odd].num_nodes, 2**40]))
        with pytest.raises(ValueError, match=f"Graph {odd} has"):
            FlatStore.from_dataset(graphs)


def test_of_an_index_with_one_row_for_each_edge_the_wrong_number_is_named(native):
    class ByRow(Data):
        def __cat_dim__(self, key, value, *args, **kwargs):
            return 0 if key == "edge_label_index" else super().__cat_dim__(key, value, *args, **kwargs)

    fine, odd = (
        ByRow(x=torch.ones(2, 1), edge_label_index=torch.tensor(rows)) for rows in ([[0, 1]], [[0, 1], [0, 5]])
    )
    with pytest.raises(ValueError, match="Graph 1 has 5 in edge_label_index, but 2 nodes"):
        FlatStore.from_dataset([fine, odd])
