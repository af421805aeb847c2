"""What an attribute's rows belong to is decided once: by the user, by names, by graphs enough, or not at all."""

from functools import partial
from pathlib import Path

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
    """Return a directed cycle with edges in reverse order; the length of an edge encodes its ends."""
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


class LazyRings(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Data:
        return ring(3 + i % 3)


RINGS = {
    "written": lambda folder, **how: write([ring(4), ring(3)], folder, **how),
    "block by block": lambda folder, **how: write([ring(4), ring(3)], folder, buffer_bytes=1, **how),
    "saved": lambda folder, **how: saved(FlatStore.from_dataset([ring(4), ring(3)], **how), folder),
    "copied": lambda folder, **how: saved(write([ring(4)], folder.with_name("first"), **how), folder),
    "in memory": lambda folder, **how: InMemory([ring(4), ring(3)]),
    "made when asked for": lambda folder, **how: LazyRings(),
}


def saved(store: FlatStore, folder: Path) -> FlatStore:
    store.save(folder)
    return FlatStore.open(folder)


@pytest.mark.filterwarnings("ignore:.* does not hold its graphs")
@pytest.mark.parametrize("how", RINGS)
def test_edges_of_rings_are_asked_for_wherever_the_graphs_lie(how, tmp_path):
    dataset = RINGS[how](tmp_path / "rings")
    trims = {"over_size_strategy": "TrimEdges", "num_nodes": 9, "num_edges": 2}
    for choices in ({"sort_edges": True}, trims):
        with pytest.raises(ValueError, match="as many rows in 'length' as edges as nodes"):
            list(FixedSizeDataLoader(dataset, 2, **choices))
        batch = next(iter(FixedSizeDataLoader(dataset, 2, levels={"length": "edge"}, **choices)))
        real = batch.edges_mask
        assert torch.equal(batch.length[real], (batch.edge_index[0] * 10.0 + batch.edge_index[1])[real])
    assert next(iter(FixedSizeDataLoader(dataset, 2))).length.shape[0] > 0  # nothing depends on it


@pytest.mark.parametrize("how", ["written", "block by block", "saved", "copied"])
def test_a_store_knows_what_its_writer_was_told_about_rings(how, tmp_path):
    store = RINGS[how](tmp_path / "rings", levels={"length": "edge"})
    assert store.level("length").value == "edge"
    batch = next(iter(FixedSizeDataLoader(store, 2, sort_edges=True)))
    assert batch.length[:3].tolist() == (batch.edge_index[0] * 10 + batch.edge_index[1])[:3].tolist()


def test_a_graph_that_is_no_ring_settles_what_rings_left_open(tmp_path):
    path = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[1, 0], [2, 1]]), length=torch.zeros(3))
    store = write([ring(4), ring(3), path], tmp_path / "nodes", buffer_bytes=1)
    assert next(iter(FixedSizeDataLoader(store, 2, sort_edges=True))).length[:4].tolist() == [30, 23, 12, 1]
    path.length = torch.zeros(2)  # of its edges: those of the rings were taken for nodes
    with pytest.raises(ValueError, match="Graph 2 has 2 rows in 'length' and 3 nodes"):
        write([ring(4), ring(3), path], tmp_path / "edges", buffer_bytes=1)
    with pytest.raises(ValueError, match="as many rows in 'length' as edges as nodes"):
        write([ring(4), ring(3)], tmp_path / "sorted", sort_edges=True, buffer_bytes=1)


def labelled(n: int, name: str) -> Data:
    data = Data(x=torch.ones(n, 1), edge_index=torch.zeros(2, n - 1).long())
    data[name] = torch.ones(n)
    return data


@pytest.mark.parametrize("name", ["charge", "y", "weight"])
@pytest.mark.parametrize("levels", [None, {"extra": "graph"}])
def test_a_collater_keeps_what_it_has_learned(name, levels):
    atoms, molecules = [labelled(1, name)] * 2, [labelled(3, name), labelled(4, name)]
    collate = FixedSizeCollater(FixedSizeOptions(20, 20, 3), levels=levels)
    assert collate(molecules)[name].shape == (20,) == collate(atoms)[name].shape
    collate = FixedSizeCollater(FixedSizeOptions(20, 20, 3), levels=levels)
    assert collate(atoms)[name].shape == (3,)
    with pytest.raises(ValueError, match=f"In graph 0 '{name}' has 3 rows, one per node.*Pass levels="):
        collate(molecules)
    told = FixedSizeCollater(FixedSizeOptions(20, 20, 3), levels={name: "node"})
    assert told(atoms)[name].shape == (20,) == told(molecules)[name].shape


def test_a_collater_asks_about_rings_also_in_a_later_batch():
    collate = FixedSizeCollater(FixedSizeOptions(9, 4, 3), trim_edges=True)
    assert collate([ring(4)]).length.shape == (9,)
    with pytest.raises(ValueError, match="as many rows in 'length' as edges as nodes"):
        collate([ring(4), ring(3)])  # some of these edges go
