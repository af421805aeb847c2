"""What an attribute's rows belong to is decided once: by the user, by names, by graphs enough, or not at all."""

from functools import partial

import pytest
import torch
from torch_geometric.data import Batch, Data, InMemoryDataset

from popgeo import FixedSizeDataLoader, FixedSizeOptions
from popgeo.data import FixedSizeCollater, FlatStore, Pad, unpad, write


class Lazy(torch.utils.data.Dataset):
    """Graphs that are made when they are asked for: some atoms alone, then molecules."""

    def __init__(self, alone: int, size: int = 24, atoms: int = 3) -> None:
        self.sizes = [1] * alone + [atoms] * (size - alone)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> Data:
        n = self.sizes[i]
        return Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, n - 1, dtype=torch.long), forces=torch.ones(n, 3))


def ring(n: int) -> Data:
    """A directed cycle, its edges in reverse order, each with a length that names its ends."""
    e = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])[:, torch.arange(n - 1, -1, -1)]
    return Data(x=torch.zeros(n, 1), edge_index=e, length=e[0] * 10.0 + e[1])


@pytest.mark.filterwarnings("ignore:.* does not hold its graphs")
@pytest.mark.parametrize("levels", [None, {"forces": "node"}, {(None, "forces"): "node"}])
@pytest.mark.parametrize("alone", [0, 3, 16, 20])
def test_atoms_that_come_first_do_not_decide_what_forces_are(levels, alone):
    loader = FixedSizeDataLoader(Lazy(alone), num_nodes=20, num_edges=20, batch_size=5, levels=levels)
    assert {tuple(batch.forces.shape) for batch in loader} == {(20, 3)}


@pytest.mark.filterwarnings("ignore:.* does not hold its graphs")
def test_a_graph_that_contradicts_what_was_inferred_is_refused_by_its_number():
    class Odd(Lazy):
        def __getitem__(self, i: int) -> Data:
            data = super().__getitem__(i)
            return Data(**{**data.to_dict(), "forces": data.forces[: 2 if i == 21 else None]})

    loader = FixedSizeDataLoader(Odd(0), num_nodes=20, num_edges=20, batch_size=5)
    with pytest.raises(ValueError, match="Graph 21 has 2 rows in 'forces' and 3 nodes"):
        list(loader)


def test_atoms_alone_are_asked_what_their_rows_are(tmp_path):
    def atom(alone=24, **choices):
        one = Lazy(alone, **choices)[0]
        one.pull = one.forces  # a name that does not tell
        del one.forces
        return one

    atoms = [atom() for _ in range(3)]
    with pytest.raises(ValueError, match=r"as many rows in 'pull' as nodes: one.*levels={'pull': 'node'}"):
        next(iter(FixedSizeDataLoader(atoms, 3)))
    for level, rows in (("node", 9), ("graph", 5)):
        options = FixedSizeOptions(9, 4, 5)
        assert FixedSizeCollater(options, levels={"pull": level})(atoms).pull.shape == (rows, 3)
    with pytest.raises(ValueError, match=r"In graph 3 'pull' has 2 rows, one per node"):
        write([*atoms, atom(0, atoms=2)], tmp_path / "store", buffer_bytes=1)
    store = write([*atoms, atom(0)], tmp_path / "told", buffer_bytes=1, levels={"pull": "node"})
    assert store.level("pull").value == "node"


def test_edges_of_rings_are_asked_for_where_they_move():
    for choices in ({"sort_edges": True}, {"over_size_strategy": "TrimEdges", "num_nodes": 9, "num_edges": 3}):
        with pytest.raises(ValueError, match="as many rows in 'length' as edges as nodes"):
            next(iter(FixedSizeDataLoader([ring(4)], 2, **choices)))
    batch = next(iter(FixedSizeDataLoader([ring(4)], 2, sort_edges=True, levels={"length": "edge"})))
    assert batch.length[:4].tolist() == [30, 1, 12, 23] == (batch.edge_index[0] * 10 + batch.edge_index[1])[:4].tolist()
    with pytest.raises(ValueError, match="as many rows in 'length' as edges as nodes"):
        Pad(6, 9)(ring(4))
    padded = Pad(8, 8, add_pad_mask=True, levels={"length": "edge"})(
        Data(**{**ring(4).to_dict(), "x": torch.zeros(5, 1)})
    )
    with pytest.raises(ValueError, match="as many rows in 'length' as edges as nodes"):
        unpad(padded)
    assert unpad(padded, {"length": "edge"})[0].length.shape == (4,)


def test_a_store_obeys_the_levels_that_a_loader_is_told():
    store = FlatStore.from_dataset([ring(4), ring(3)])
    assert store.level("length").value == "node"
    told = FlatStore.from_dataset(store, levels={"length": "edge"})
    assert told.level("length").value == "edge"
    batch = next(iter(FixedSizeDataLoader(store, 3, sort_edges=True, levels={"length": "edge"})))
    assert (batch.edge_index[0] * 10 + batch.edge_index[1])[:4].tolist() == batch.length[:4].tolist()
    other = Data(**{**ring(4).to_dict(), "x": torch.zeros(5, 1)})
    with pytest.raises(ValueError, match="Graph 0 has 4 rows in 'length' and 5 nodes"):
        FlatStore.from_dataset(FlatStore.from_dataset([other]), levels={"length": "node"})


@pytest.mark.parametrize("value", [5, 0.25, True])
@pytest.mark.parametrize("name", ["batch_no", "minibatch", "batch_size"])
def test_plain_numbers_are_no_batch_vector(name, value):
    graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]]), **{name: value}) for n in (3, 4, 5)]
    batch = next(iter(FixedSizeDataLoader(graphs, 4)))
    assert batch[name][:3].tolist() == [value] * 3 == Batch.from_data_list(graphs)[name].tolist()


@pytest.mark.parametrize("how", ["list", "tensors", "in memory", "on disk", "dictionaries"])
def test_a_plain_number_that_names_a_node_names_it_in_the_batch(how, tmp_path):
    graphs = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]]), root_index=n - 1) for n in (3, 4, 5)]
    expected = Batch.from_data_list(graphs).root_index.tolist()
    assert expected == [2, 6, 11]  # the last node of each
    dataset = {
        "list": lambda: graphs,
        "tensors": lambda: [Data(**{**g.to_dict(), "root_index": torch.tensor(g.root_index)}) for g in graphs],
        "in memory": lambda: InMemory(graphs),
        "on disk": lambda: write(graphs, tmp_path / "graphs"),
        "dictionaries": lambda: [g.to_dict() for g in graphs],
    }[how]()
    assert next(iter(FixedSizeDataLoader(dataset, 4))).root_index[:3].tolist() == expected


class InMemory(InMemoryDataset):
    def __init__(self, graphs):
        super().__init__(None)
        self.data, self.slices = self.collate(graphs)


@pytest.mark.parametrize("value", [torch.arange(3.0), torch.ones(3, dtype=torch.bool), torch.arange(3), 7, 0.5])
@pytest.mark.parametrize("step", [0, 2, 1.5, torch.tensor(2)])
def test_what_a_class_adds_of_its_own_is_added_or_refused(value, step):
    class Shifted(Data):
        def __inc__(self, key, value, *args, **kwargs):
            return step if key == "moment" else super().__inc__(key, value, *args, **kwargs)

    graphs = [Shifted(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), moment=value) for _ in range(3)]
    loader = partial(FixedSizeDataLoader, graphs, 4)
    whole = isinstance(value, int) or (isinstance(value, torch.Tensor) and value.dtype == torch.int64)
    if step and not (whole and step != 1.5):
        with pytest.raises(ValueError, match="__inc__ of 'moment' adds torch"):
            loader()
    else:
        joined = Batch.from_data_list(graphs).moment
        assert torch.equal(next(iter(loader())).moment[: len(joined)], joined)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_what_is_no_whole_number_is_no_index(dtype):
    graphs = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), a_index=torch.ones(2).to(dtype))] * 2
    assert next(iter(FixedSizeDataLoader(graphs, 3))).a_index[:4].tolist() == [1] * 4


@pytest.mark.parametrize("count", [3.0, torch.tensor(3.0), torch.tensor([3.0, 3.0]), -1, "3", True, [3]])
def test_a_number_of_nodes_that_is_none_is_refused(count):
    data = Data(edge_index=torch.tensor([[0], [1]]), x=torch.ones(3, 1))
    data.num_nodes = count
    with pytest.raises(ValueError, match="Graph 0 has num_nodes="):
        next(iter(FixedSizeDataLoader([data, data], 3)))


def test_atoms_without_a_bond_are_counted():
    bond = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(z=torch.tensor([6, 1, 1]), edge_index=bond), Data(z=torch.tensor([8, 1]), edge_index=bond)]
    batch = next(iter(FixedSizeDataLoader(graphs, 3)))
    assert batch.batch[:5].tolist() == [0, 0, 0, 1, 1]
    assert batch.edge_index[:, 2:4].tolist() == [[3, 4], [4, 3]]
    unnamed = [Data(h=torch.ones(3, 2), edge_index=bond), Data(h=torch.ones(2, 2), edge_index=bond)]
    with pytest.raises(ValueError, match=r"has 3 rows in 'h'\. Set num_nodes"):
        FixedSizeDataLoader(unnamed, 3)
