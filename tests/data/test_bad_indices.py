"""The first wrong number is found and named as a slow search finds it."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset
from torch_geometric.data import Data

from popgeo.data import FlatStore
from popgeo.data import validate as validation
from popgeo.data.axes import Attribute, Axis, Level
from popgeo.data.validate import check_indices, check_positions
from popgeo.native import library
from tests.support.graphs import WRITES, hetero_graph
from tests.support.loaders import InMemory
from tests.support.plain_batch import RICH_LEVELS, rich_graph

STATED = {name: "graph" if level == "rows" else level for name, level in RICH_LEVELS.items()}


def slow_search(graphs: list[Any], names: list[tuple[Any, str]]) -> str | None:
    """Return the error text for the first wrong number, attribute after attribute."""
    for key, name in names:
        for number, graph in enumerate(graphs):
            store = graph if key is None else graph[key]
            ends = (key[0], key[2]) if isinstance(key, tuple) else (None, None)
            for row, values in enumerate(store[name].tolist()):
                limit = (graph if key is None else graph[ends[row % 2]]).num_nodes
                for value in values:
                    if not 0 <= value < limit:
                        of = name if key is None else f"{name} of {key!r}"
                        return f"Graph {number} has {value} in {of}[{row}], but {limit} nodes, numbered from 0"
    return None


def assert_found(read: Any, said: str | None) -> None:
    if said is None:
        read()
    else:
        with pytest.raises(ValueError, match=re.escape(said)):
            read()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_wrong_numbers_anywhere_are_named_as_a_slow_search_names_them(native, dtype):
    random = np.random.default_rng(1)
    found = set()
    for trial in range(25):
        sizes = [(0, 0), *random.integers(1, 5, (4, 2)).tolist()]
        graphs = [rich_graph(nodes, edges, seed, dtype) for seed, (nodes, edges) in enumerate(sizes)]
        for _ in range(trial % 3):
            one = graphs[int(random.integers(1, 5))]
            values = one[("edge_index", "face", "edge_label_index")[int(random.integers(3))]]
            if values.numel():
                place = int(random.integers(values.shape[1]))
                values[int(random.integers(len(values))), place] = int(random.choice([-1, one.num_nodes, 99]))
        names = [(None, name) for name in ("edge_index", "face", "edge_label_index")]
        said = slow_search(graphs, names)
        found.add(said)
        assert_found(lambda graphs=graphs: FlatStore.from_dataset(graphs, levels=STATED), said)
        order = random.permutation(5)[:4].tolist()
        store = FlatStore.from_dataset(graphs, levels=STATED, validate=False).view(order)
        assert_found(lambda store=store: check_indices(store), slow_search([graphs[i] for i in order], names))
    assert len(found) > 10


def test_wrong_numbers_of_types_are_named_with_the_limit_of_their_end(native):
    random = np.random.default_rng(2)
    for trial in range(15):
        graphs = [hetero_graph(*size, seed) for seed, size in enumerate([(1, 3, 2, 1), (4, 2, 3, 0), (2, 5, 1, 4)])]
        if trial:
            edges = graphs[int(random.integers(3))][WRITES].edge_index
            edges[int(random.integers(2)), int(random.integers(edges.shape[1]))] = int(random.integers(-1, 6))
        said = slow_search(graphs, [(WRITES, "edge_index"), (("b", "cites", "b"), "edge_index")])
        assert_found(lambda graphs=graphs: FlatStore.from_dataset(graphs), said)


def test_arrays_that_do_not_lie_in_one_piece_are_looked_at_too(native):
    edges = torch.tensor([[0, 1], [1, 0], [0, 2]]).t()
    with pytest.raises(ValueError, match=r"Graph 0 has 2 in edge_index\[1\], but 2 nodes"):
        FlatStore.from_dataset([Data(x=torch.ones(2, 1), edge_index=edges)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("shape", [(2, -1), (-1, 2), (3, -1, 2), (-1,)])
def test_the_first_stored_graph_with_a_wrong_number_is_found_in_every_layout(native, dtype, shape):
    random = np.random.default_rng(3)
    dim = shape.index(-1)
    for trial in range(12):
        counts = random.integers(0, 4, 5)
        whole = [int(counts.sum()) if size < 0 else size for size in shape]
        # What lies before and behind the numbers would be wrong ones.
        memory = torch.full((3, *whole), 99).to(dtype)
        values = memory[1].fill_(1)
        pointer = torch.tensor([0, *counts.cumsum()])
        limits = torch.tensor(random.integers(2, 9, (5, 1)))
        if trial and counts.sum():
            place = tuple(int(random.integers(size)) for size in whole)
            values[place] = int(random.integers(2, 9))
        owner = np.repeat(np.arange(5), counts)
        rows = values.movedim(dim, 0).reshape(len(owner), -1).tolist()
        wrong = [max(row) >= limits[g] for g, row in zip(owner, rows, strict=True)]
        axis = Axis(Level.GRAPH, None, "index")
        attribute = Attribute(store=None, name="index", axis=axis, values=values, dim=dim, increments=limits)
        assert validation._outside(attribute, pointer, limits).any(dim=0).tolist() == wrong
        is_looked_at = library.is_available() and dtype in (torch.int32, torch.int64)
        assert validation._is_inside(attribute, pointer, limits) == (is_looked_at and not any(wrong))


@pytest.mark.parametrize(
    "values",
    [
        {"edge_score_index": torch.tensor([[0.5], [9.5]])},
        {"edge_seen_index": torch.tensor([[True], [False]]), "x": torch.ones(1, 1)},
        {"edge_kind": torch.tensor([[7], [8]])},
        {"index": torch.tensor([9])},
        {"faces": torch.tensor([[9]])},
    ],
)
def test_numbers_that_point_at_no_node_are_not_looked_at(values):
    FlatStore.from_dataset([Data(**{"x": torch.ones(2, 1), **values})])


@pytest.mark.parametrize("at_once", [1, 2, 1 << 20])
@pytest.mark.parametrize("name", ["pos", "cell"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_the_graph_of_a_position_that_is_no_number_is_named(monkeypatch, at_once, name, wrong):
    monkeypatch.setattr(validation, "_ROWS_AT_ONCE", at_once)
    graphs = [Data(x=torch.ones(n, 1), **{name: torch.zeros(n, 3)}) for n in (2, 1, 3)]
    FlatStore.from_dataset(graphs, validate=True)
    graphs[2][name][1, 2] = graphs[1][name][0, 1] = wrong
    for order, first in (([0, 1, 2], 1), ([2, 1, 0], 0), ([0, 2], 1)):
        with pytest.raises(ValueError, match=f"Graph {first} has {name} that is NaN or infinite. Correct it, leave"):
            FlatStore.from_dataset([graphs[i] for i in order], validate=True)
        view = FlatStore.from_dataset(graphs).view(order)
        with pytest.raises(ValueError, match=f"Graph {first} has {name} that is NaN"):
            check_positions(view)
    check_positions(FlatStore.from_dataset(graphs).view([0]))


def test_only_positions_in_floating_numbers_are_looked_at_and_only_when_asked_for():
    graphs = [Data(pos=torch.ones(2, 3).int(), cell="none", x=torch.full((2, 1), float("nan")))]
    FlatStore.from_dataset(graphs, validate=True)
    graphs[0].pos = torch.full((2, 3), float("nan"))
    for validate in (None, False):
        FlatStore.from_dataset(graphs, validate=validate)


def test_what_has_been_checked_when_it_was_made_is_checked_again_only_when_asked_for():
    bad = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [5]]))
    store = FlatStore.from_dataset([bad, bad], validate=False)
    for dataset in (store, Subset(store, [1]), Subset(Subset(store, [1, 0]), [0])):
        FlatStore.from_dataset(dataset)
        FlatStore.from_dataset(dataset, validate=False)
        with pytest.raises(ValueError, match="Graph 0 has 5"):
            FlatStore.from_dataset(dataset, validate=True)
    for dataset in ([bad], Subset([bad], [0]), InMemory([bad])):
        FlatStore.from_dataset(dataset, validate=False)
        for validate in (None, True):
            with pytest.raises(ValueError, match="Graph 0 has 5"):
                FlatStore.from_dataset(dataset, validate=validate)


def test_edges_row_by_row_are_refused():
    with pytest.raises(ValueError, match=r"edge_index has shape \(3, 2\); it is \[2, num_edges\]"):
        FlatStore.from_dataset([Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2], [2, 0]]))])
