"""Batches for other frameworks: NumPy arrays of the same memory, jraph's tuple, JAX, DLPack."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

import popgeo
from popgeo.data import FixedSizeCollater, FixedSizeOptions, as_arrays, to_graphs_tuple
from popgeo.data.super_batch import join

PAIR = Data(z=torch.tensor([8, 1]), edge_index=torch.tensor([[1, 0], [0, 1]]), y=torch.tensor([0.5]))
PATH = Data(z=torch.tensor([6, 7, 6]), edge_index=torch.tensor([[0, 2, 1], [1, 1, 2]]), y=torch.tensor([0.25]))
COLLATE = FixedSizeCollater(FixedSizeOptions(num_nodes=8, num_edges=7, num_graphs=4), add_masks_to_batch=True)


def test_the_tuple_of_two_graphs_by_hand():
    graphs = to_graphs_tuple(COLLATE([PAIR, PATH]))
    assert graphs._fields == ("nodes", "edges", "receivers", "senders", "globals", "n_node", "n_edge")
    assert graphs.n_node.tolist() == [2, 3, 3, 0]
    assert graphs.n_edge.tolist() == [2, 3, 2, 0]
    assert graphs.senders.tolist() == [1, 0, 2, 4, 3, 5, 5]
    assert graphs.receivers.tolist() == [0, 1, 3, 3, 4, 5, 5]
    assert graphs.nodes["z"].tolist() == [8, 1, 6, 7, 6, 0, 0, 0]
    assert graphs.globals["y"].tolist() == [0.5, 0.25, 0, 0]
    assert (sorted(graphs.nodes), sorted(graphs.edges)) == (["batch", "nodes_mask", "z"], ["edges_mask"])
    assert sorted(graphs.globals) == ["graphs_mask", "y"]


def test_arrays_are_the_batches_own_memory():
    batch = COLLATE([PAIR, PATH])
    arrays = as_arrays(batch)
    assert {name: array.ctypes.data for name, array in arrays.items()} == {
        name: tensor.data_ptr() for name, tensor in batch if isinstance(tensor, torch.Tensor)
    }
    assert np.shares_memory(to_graphs_tuple(batch).nodes["z"], batch.z.numpy())


def test_a_loader_gives_plain_dictionaries():
    sizes = FixedSizeOptions(num_nodes=10, num_edges=11, num_graphs=4)
    plain, arrays = (
        list(popgeo.FixedSizeDataLoader([PAIR, PATH] * 3, fixed_size_options=sizes, output=output))
        for output in ("pyg", "numpy")
    )
    assert all(type(one) is dict for one in arrays)
    for ours, theirs in zip(arrays, plain, strict=True):
        assert to_graphs_tuple(ours).n_edge.tolist() == to_graphs_tuple(theirs).n_edge.tolist()
        assert all(np.array_equal(ours[name], theirs[name].numpy()) for name in ours)


def test_types_of_a_heterogeneous_batch_stand_before_the_name():
    graph = HeteroData()
    graph["paper"].x, graph["author"].x = torch.ones(3, 2), torch.ones(2, 2)
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    arrays = as_arrays(FixedSizeCollater(FixedSizeOptions(9, 8, 3))([graph]))
    assert {"paper.x", "author.batch", "author__writes__paper.edge_index"} <= arrays.keys()
    with pytest.raises(ValueError, match="of one node type"):
        to_graphs_tuple(arrays)


@pytest.mark.parametrize(
    ("sizes", "levels", "message"),
    [
        (FixedSizeOptions(7, 7, 4), None, r"value of shape \(7,\) fits nodes and edges.*levels="),
        (FixedSizeOptions(8, 7, 4), {"value": "atom"}, r"levels\['value'\] is 'atom'; it is one of"),
    ],
    ids=["ambiguous", "unknown"],
)
def test_what_an_attribute_belongs_to_is_asked_where_it_cannot_be_told(sizes, levels, message):
    graph = Data(value=torch.ones(2), edge_index=torch.tensor([[1, 0], [0, 1]]), num_nodes=2)
    batch = FixedSizeCollater(sizes, levels={"value": "node"})([graph])
    with pytest.raises(ValueError, match=message):
        to_graphs_tuple(batch, levels)
    assert "value" in to_graphs_tuple(batch, {"value": "node"}).nodes


def arrays(**others: np.ndarray) -> dict[str, np.ndarray]:
    """Three nodes, four edges and two graphs; edge 3 is a loop on the padding node."""
    found = {
        "edge_index": np.array([[0, 1, 2, 2], [1, 0, 2, 2]]),
        "batch": np.array([0, 0, 1]),
        "ptr": np.array([0, 2, 3]),
    }
    return {**found, **others}


def test_counts_of_plain_arrays_by_hand():
    graphs = to_graphs_tuple(arrays())
    assert (graphs.n_node.tolist(), graphs.n_edge.tolist()) == ([2, 1], [2, 2])
    assert (graphs.n_node.dtype, graphs.n_edge.dtype) == (np.int32, np.int32)
    assert graphs.senders.tolist() == [0, 1, 2, 2]
    assert graphs.receivers.tolist() == [1, 0, 2, 2]
    assert (list(graphs.nodes), graphs.edges, graphs.globals) == (["batch"], {}, {})
    empty = to_graphs_tuple({**arrays(), "edge_index": np.zeros((2, 0), dtype=np.int64), "ptr": np.array([0, 2, 3, 3])})
    assert (empty.n_node.tolist(), empty.n_edge.tolist()) == ([2, 1, 0], [0, 0, 0])


def test_each_array_goes_where_its_name_or_its_length_says():
    names = {
        "node": ("x", "pos", "z", "n_id", "train_mask", "three"),
        "edge": ("edge_attr", "edge_weight", "e_id", "edge_shift", "four"),
        "globals": ("graphs_mask", "num_trimmed_nodes", "two"),
    }
    rows = {"three": 3, "four": 4, "two": 2}
    given = {name: np.zeros((rows.get(name, 9), 5)) for of in names.values() for name in of}
    given |= {name: np.zeros(4) for name in ("rowptr", "x_ptr", "x_batch", "y_ptr")}
    graphs = to_graphs_tuple(arrays(**given))
    assert tuple(graphs.nodes)[1:] == names["node"]
    assert (tuple(graphs.edges), tuple(graphs.globals)) == (names["edge"], names["globals"])
    moved = to_graphs_tuple(arrays(**given), {"x": "graph", "two": "node", "four": "edge"})
    assert {"x"} <= moved.globals.keys()
    assert {"two"} <= moved.nodes.keys()


@pytest.mark.parametrize("missing", ["edge_index", "batch", "ptr"])
def test_arrays_that_make_no_tuple_are_refused(missing):
    given = arrays()
    del given[missing]
    with pytest.raises(
        ValueError, match=r"The batch has \[.*\]; edge_index, batch and ptr of one node type are needed"
    ):
        to_graphs_tuple(given)


@pytest.mark.parametrize(
    ("value", "what"),
    [(np.zeros(9), "fits none of {'node': 3"), (np.zeros(()), "fits none of {'node': 3")],
)
def test_arrays_of_no_known_length_are_refused(value, what):
    with pytest.raises(ValueError, match=rf"value of shape .* {what}"):
        to_graphs_tuple(arrays(value=value))


def test_several_batches_in_one_item_are_refused():
    with pytest.raises(ValueError, match="The item holds several batches; split it"):
        to_graphs_tuple(join([COLLATE([PAIR]), COLLATE([PATH])]))


def test_arrays_of_another_device_are_refused():
    with pytest.raises(ValueError, match=r"x is on meta; NumPy reads memory of the processor\. Use device='cpu'"):
        as_arrays(Batch(x=torch.ones(2, device="meta")))
    assert list(as_arrays(Batch(x=torch.ones(2, requires_grad=True), name=["a"]))) == ["x"]


def test_what_numpy_cannot_hold_is_named():
    with pytest.raises(ValueError, match=r"x is torch\.bfloat16, a type that NumPy lacks"):
        as_arrays(Batch(x=torch.ones(2, dtype=torch.bfloat16)))


def test_numpy_reads_a_batch_through_dlpack():
    batch = COLLATE([PAIR, PATH])
    assert np.shares_memory(np.from_dlpack(batch.y), batch.y.numpy())


@pytest.fixture(scope="module")
def jax():
    return pytest.importorskip("jax", reason="jax is not installed: pip install '.[jax]' in a clone")


def test_jax_reads_a_batch_through_dlpack(jax):
    batch = COLLATE([PAIR, PATH])
    assert jax.dlpack.from_dlpack(batch.y).tolist() == batch.y.tolist()
    assert torch.equal(torch.from_dlpack(jax.numpy.arange(3, dtype="int32")), torch.arange(3, dtype=torch.int32))


def traces(jax, batches: Iterator[dict]) -> tuple[int, int]:
    """How often jax.jit traces a function over some batches, and how many these are."""
    count, number = 0, 0

    @jax.jit
    def total(batch):
        nonlocal count
        count += 1  # runs when the function is traced, not when what came of it runs
        return batch["x"].sum()

    for number, batch in enumerate(batches, start=1):  # noqa: B007  the last is the count
        total({name: batch[name] for name in ("x", "edge_index")})
    return count, number


def test_jax_traces_once_for_an_epoch_of_packed_batches_and_for_each_ordinary_one(jax):
    molecules = popgeo.Molecules()[:150]
    sizes = FixedSizeOptions.tune(molecules, target_graphs=10, verbose=False)
    choices = {"fixed_size_options": sizes, "fixed_size_strategy": "Window", "index_dtype": torch.int32}
    packed = popgeo.FixedSizeDataLoader(molecules, shuffle=True, output="numpy", **choices)
    count, number = traces(jax, (batch for _ in range(2) for batch in packed))
    assert (count, number > 20) == (1, True)
    torch.manual_seed(0)
    ordinary = (
        {"x": b.x.numpy(), "edge_index": b.edge_index.int().numpy()} for b in DataLoader(molecules, 10, shuffle=True)
    )
    assert traces(jax, ordinary) == (15, 15)
