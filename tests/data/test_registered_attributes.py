"""A user registers once that an attribute belongs to nodes, edges or graphs, and every reader of graphs agrees."""

import pickle
import subprocess

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from popgeo import FixedSizeDataLoader, FixedSizeOptions
from popgeo.data import (
    FixedSizeCollater,
    FlatStore,
    Pad,
    as_arrays,
    attribute_names,
    register_attributes,
    to_graphs_tuple,
    unpad,
    write,
)
from tests.support import quick_python


def ring(n: int) -> Data:
    """Return a directed cycle with as many edges as nodes, so that the level of `twist` is not clear."""
    ends = torch.arange(n)
    return Data(x=torch.ones(n, 1), edge_index=torch.stack([ends, (ends + 1) % n]), twist=torch.arange(n * 1.0))


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attribute_names, "_REGISTERED", {})


def levels_in(store: FlatStore) -> str:
    return store.level("twist").value


def pad(data: Data) -> Data:
    return Pad(8, 8, add_pad_mask=True)(data)


@pytest.mark.parametrize("level", ["edge", "node"])
def test_every_reader_of_graphs_uses_the_registered_level(level, tmp_path):
    with pytest.raises(ValueError, match="State the level"):
        pad(ring(4))
    register_attributes(**{f"{level}s": ["twist"]})
    graphs, options = [ring(3), ring(4)], FixedSizeOptions(10, 12, 3)
    length = 10 if level == "node" else 12
    assert levels_in(FlatStore.from_dataset(graphs)) == level
    assert FixedSizeCollater(options)(graphs).twist.shape == (length,)
    for choices in ({}, {"sort_edges": True}, {"num_workers": 1}):
        batch = next(iter(FixedSizeDataLoader(graphs, 3, fixed_size_options=options, **choices)))
        assert batch.twist.shape == (length,)
    padded = Pad(8, 9, add_pad_mask=True)(ring(4))
    assert padded.twist.shape == (8 if level == "node" else 9,)
    assert unpad(padded)[0].twist.shape == (4,)
    store = write(graphs, tmp_path / "store", sort_edges=True)
    assert levels_in(store) == level
    as_dictionaries = [{**graph.to_dict()} for graph in graphs]
    assert levels_in(FlatStore.from_dataset(as_dictionaries)) == level


def test_arrays_of_a_batch_go_to_the_registered_level():
    register_attributes(edges=["twist"])
    square = FixedSizeCollater(FixedSizeOptions(12, 12, 3))([ring(3), ring(4)])
    assert "twist" in to_graphs_tuple(as_arrays(square)).edges


def test_a_store_on_disk_keeps_its_level_and_takes_one_that_is_registered_later(tmp_path):
    graphs = [ring(3), ring(4)]
    write(graphs, tmp_path / "of_edges", levels={"twist": "edge"})
    assert levels_in(FlatStore.from_dataset(FlatStore.open(tmp_path / "of_edges"))) == "edge"
    write(graphs, tmp_path / "unclear")
    register_attributes(edges=["twist"])
    assert levels_in(FlatStore.from_dataset(FlatStore.open(tmp_path / "unclear"))) == "edge"
    assert FixedSizeDataLoader(FlatStore.open(tmp_path / "unclear"), 3, sort_edges=True) is not None


def test_levels_of_a_call_override_registered_levels():
    register_attributes(edges=["twist"])
    assert levels_in(FlatStore.from_dataset([ring(3)], levels={"twist": "node"})) == "node"
    assert levels_in(FlatStore.from_dataset([ring(3)], levels={(None, "twist"): "node"})) == "node"
    collater = FixedSizeCollater(FixedSizeOptions(10, 12, 3), levels={"twist": "node"})
    assert collater([ring(3)]).twist.shape == (10,)


def test_a_label_that_looks_like_nodes_is_of_the_graph():
    register_attributes(graphs=["tasks"])
    graphs = [Data(x=torch.ones(2, 1), tasks=torch.ones(2)) for _ in range(2)]
    assert FixedSizeCollater(FixedSizeOptions(9, 0, 3))(graphs).tasks.shape == (6,)


def test_each_store_of_a_heterogeneous_graph_uses_the_registered_level():
    register_attributes(nodes=["mass"])
    data = HeteroData()
    data["a"].x, data["a"].mass, data["b"].num_nodes = torch.ones(2, 1), torch.ones(2), 3
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [0, 1]])
    assert FlatStore.from_dataset([data]).level("mass", "a").value == "node"


LOADS = """
import pickle, sys
collate, pad, graph = pickle.load(open(sys.argv[1], "rb"))
print(*collate([graph]).twist.shape, *pad(graph).twist.shape)
"""


def test_objects_keep_the_registered_levels_in_a_process_that_has_none(tmp_path):
    register_attributes(edges=["twist"])
    made = FixedSizeCollater(FixedSizeOptions(10, 12, 3)), Pad(8, 9), ring(4)
    (tmp_path / "made").write_bytes(pickle.dumps(made))
    command = [*quick_python.command(), "-c", LOADS, tmp_path / "made"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "12 9\n"


def test_a_number_of_rows_that_contradicts_is_an_error():
    register_attributes(edges=["twist"])
    with pytest.raises(ValueError, match="3 rows in 'twist' and 1 edges"):
        FlatStore.from_dataset([Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]]), twist=torch.ones(3))])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": ["twist"], "edges": ["twist"]}, "'twist' belongs to nodes, so it cannot be registered for edges"),
        ({"graphs": ["spin"]}, "'spin' belongs to nodes, so it cannot be registered for graphs"),
        ({"graphs": ["edge_index"]}, "'edge_index' belongs to edges"),
        ({"edges": ["x"]}, "'x' belongs to nodes"),
        ({"nodes": ["graphs_mask"]}, "'graphs_mask' belongs to graphs"),
        ({"nodes": "twist"}, r"nodes is 'twist'; pass a list of names, as nodes=\['twist'\]"),
        ({"edges": [3]}, r"edges is \[3\]; pass a list of names"),
    ],
)
def test_contradictions_are_refused_and_nothing_is_registered(given, message):
    register_attributes(nodes=["spin"])
    with pytest.raises(ValueError, match=message):
        register_attributes(**given)
    assert attribute_names._REGISTERED == {"spin": "node"}
    register_attributes(nodes=["spin", "x"])
    assert attribute_names._REGISTERED == {"spin": "node"}


def test_levels_that_change_nothing_leave_a_store_as_it_is():
    store = FlatStore.from_dataset([ring(3), ring(4)], levels={"twist": "edge"})
    register_attributes(edges=["twist"], graphs=["energy"])
    assert FlatStore.from_dataset(store) is store
