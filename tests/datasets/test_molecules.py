"""The molecules that ship with the package: what their data card promises, and how they behave as a PyG dataset."""

import copy
from importlib import resources

import pytest
import torch
from torch.testing import assert_close
from torch_geometric.data import InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import Compose, Distance

from popgeo.datasets import Molecules, SelectTarget

VALENCE = torch.tensor([1, 4, 3, 2, 1])  # H, C, N, O, F
BOND_ORDER = torch.tensor([1.0, 2.0, 3.0, 1.5])
FEW = slice(0, 300)


@pytest.fixture(scope="module")
def molecules() -> Molecules:
    return Molecules()


@pytest.fixture
def few(molecules: Molecules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit filters and transforms to the first molecules."""
    data, slices = InMemoryDataset.collate([molecules[i] for i in range(600)])
    monkeypatch.setattr("popgeo.datasets.molecules._read", lambda: (data.clone(), {**slices}))


def is_small_oxide(data):
    return bool((data.z == 8).any()) and data.num_nodes <= 12


def in_nanometres(data):
    data.pos = data.pos / 10
    return data


def test_file_is_at_most_4_mb():
    assert len(resources.files("popgeo.datasets").joinpath("molecules.npz").read_bytes()) <= 4_000_000


def test_sizes_are_those_of_qm9(molecules):
    num_atoms = molecules.slices["z"].diff().double()
    assert len(molecules) == 20_000
    assert num_atoms.mean() == pytest.approx(18.0, abs=0.2)
    assert num_atoms.std() == pytest.approx(2.94, abs=0.2)
    heavy = torch.tensor([int((data.z > 1).sum()) for data in molecules[:2000]])
    assert heavy.max() == 9


def test_molecules_are_distinct(molecules):
    assert len(set(molecules.smiles)) == len(molecules)


def test_each_molecule_has_the_promised_shapes(molecules):
    for data in molecules[FEW]:
        n, num_edges = data.num_nodes, data.num_edges
        assert data.z.shape == (n,)
        assert data.z.dtype == torch.int64
        assert data.pos.shape == (n, 3)
        assert data.pos.dtype == torch.float32
        assert data.edge_index.shape == (2, num_edges)
        assert data.edge_index.dtype == torch.int64
        assert data.edge_attr.shape == (num_edges, 4)
        assert data.x.shape == (n, 11)
        assert data.y.shape == (1, len(Molecules.targets))
        assert isinstance(data.smiles, str)
        data.validate(raise_on_error=True)
        assert data.is_undirected()
        assert not data.has_self_loops()


def test_only_h_c_n_o_f_and_every_one_of_them(molecules):
    assert molecules.z.unique().tolist() == [1, 6, 7, 8, 9]


def test_every_bond_kind_occurs_and_an_edge_has_one(molecules):
    assert (molecules.edge_attr.sum(dim=1) == 1).all()
    assert (molecules.edge_attr.mean(dim=0) > 0.005).all()


def test_every_valence_is_full(molecules):
    for data in molecules[FEW]:
        order = data.edge_attr @ BOND_ORDER
        aromatic = data.x[:, 6] == 1
        valence = torch.zeros(data.num_nodes).index_add(0, data.edge_index[1], order)
        expected = VALENCE[data.x[:, :5].argmax(dim=1)].float()
        assert_close(valence[~aromatic], expected[~aromatic])
        # 1.5 per aromatic bond is a convention: furan's oxygen adds up to 3, pyrrole's nitrogen to 4.
        assert ((valence - expected)[aromatic].abs() <= 1).all()


def test_edges_are_sorted_and_each_bond_is_there_both_ways_with_one_kind(molecules):
    for data in molecules[FEW]:
        key = data.edge_index[0] * data.num_nodes + data.edge_index[1]
        assert (key.diff() > 0).all()
        back = (data.edge_index[1] * data.num_nodes + data.edge_index[0]).argsort()
        assert_close(data.edge_attr[back], data.edge_attr)


def test_node_features_of_ethanol_by_hand(molecules):
    data = molecules[molecules.smiles.index("CCO")]
    oxygen = data.x[data.z == 8][0]
    assert oxygen.tolist() == [0, 0, 0, 1, 0, 8, 0, 0, 0, 1, 1]
    methyl = data.x[data.z == 6][0]
    assert methyl.tolist() == [0, 1, 0, 0, 0, 6, 0, 0, 0, 1, 3]
    assert data.x[data.z == 1][0].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_no_two_atoms_collide_and_bonds_are_bond_lengths(molecules):
    for data in molecules[FEW]:
        assert torch.pdist(data.pos).min() > 0.7
        length = (data.pos[data.edge_index[0]] - data.pos[data.edge_index[1]]).norm(dim=1)
        assert length.min() > 0.9
        assert length.max() < 1.7
        assert_close(data.pos.mean(dim=0), torch.zeros(3), atol=1e-3, rtol=0)


def test_gap_is_lumo_minus_homo_and_targets_are_physical(molecules):
    homo, lumo, gap, dipole, energy = molecules.y.T
    assert_close(gap, lumo - homo, atol=2e-6, rtol=0)
    assert gap.min() >= 1
    assert dipole.min() >= 0
    assert energy.max() < -100
    assert homo.max() < -5


def test_a_mean_predictor_misses_the_gap_by_electronvolts(molecules):
    gap = molecules.y[:, Molecules.target_index("gap")]
    assert (gap - gap.mean()).abs().mean() > 1


def test_flat_storage_is_what_pyg_collates_itself(molecules):
    data, slices = InMemoryDataset.collate([molecules[i] for i in range(300)])
    for name in ("x", "edge_index", "edge_attr", "y", "pos", "z"):
        stored = molecules._data[name]
        assert_close(
            data[name],
            stored.narrow(data.__cat_dim__(name, stored), 0, data[name].shape[1 if name == "edge_index" else 0]),
        )
        assert_close(slices[name], molecules.slices[name][:301])
    assert data.smiles == molecules.smiles[:300]


def test_indexing_splitting_and_shuffling(molecules, generator):
    order = torch.randperm(len(molecules), generator=generator)
    train, valid = molecules[order[:100]], molecules[order[100:150]]
    assert (len(train), len(valid)) == (100, 50)
    assert train[3].smiles == molecules[int(order[3])].smiles == molecules.smiles[int(order[3])]
    assert not {data.smiles for data in train} & {data.smiles for data in valid}
    assert {data.smiles for data in molecules[:50].shuffle()} == set(molecules.smiles[:50])


def test_pyg_dataloader_batches_them(molecules):
    batch = next(iter(DataLoader(molecules[:8], batch_size=8)))
    assert batch.num_graphs == 8
    assert batch.num_nodes == sum(data.num_nodes for data in molecules[:8])
    assert_close(batch.y, molecules.y[:8])
    assert batch.smiles == molecules.smiles[:8]


def test_reading_and_transforming_leave_the_dataset_as_it_was(molecules):
    before = copy.deepcopy(molecules[0].to_dict())
    dataset = Molecules(transform=Compose([SelectTarget("gap"), Distance()]))
    first = dataset[0]
    assert first.y.shape == (1,)
    assert_close(first.y, molecules[0].y[:, 2])
    assert dataset[0].y.shape == (1,)
    assert dataset.get(0).y.shape == (1, 5)
    for name, value in before.items():
        assert value == molecules[0][name] if isinstance(value, str) else torch.equal(value, molecules[0][name])


def test_without_root_filter_and_transform_run_in_memory_and_nothing_is_written(few, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = Molecules(pre_filter=is_small_oxide, pre_transform=in_nanometres)
    assert 0 < len(dataset) < 600
    assert all(is_small_oxide(data) for data in dataset)
    assert dataset.pos.abs().max() < 1.5
    assert list(tmp_path.iterdir()) == []


def test_root_keeps_the_result_and_force_reload_makes_it_anew(few, tmp_path):
    options = {"root": str(tmp_path), "pre_filter": is_small_oxide}
    first = Molecules(**options)
    assert (tmp_path / "processed" / "molecules.pt").is_file()
    again = Molecules(**options, pre_transform=None)
    assert again.smiles == first.smiles
    assert_close(again[1].pos, first[1].pos)
    with pytest.warns(UserWarning, match="pre_transform"):
        stale = Molecules(**options, pre_transform=in_nanometres)
    assert_close(stale.pos, first.pos)
    fresh = Molecules(**options, pre_transform=in_nanometres, force_reload=True)
    assert_close(fresh.pos, first.pos / 10)


def test_a_filter_that_leaves_nothing_is_refused(few):
    with pytest.raises(ValueError, match="none of 600 molecules"):
        Molecules(pre_filter=lambda data: False)


@pytest.mark.parametrize("ask", [Molecules.target_index, SelectTarget])
def test_an_unknown_target_is_named_with_the_known_ones(ask):
    with pytest.raises(ValueError, match="no target 'gapp'; it has homo, lumo, gap, dipole, energy"):
        ask("gapp")


def test_targets_cannot_be_changed():
    with pytest.raises(TypeError):
        Molecules.targets["gap"] = "hartree"


def test_data_card_states_the_sizes_of_the_file(molecules):
    num_atoms = molecules.slices["z"].diff()
    num_bonds = molecules.slices["edge_index"].diff() / 2
    card = " ".join(Molecules.__doc__.split())
    assert f"{len(molecules):,} distinct" in card
    assert f"{num_atoms.min()} to {num_atoms.max()} atoms" in card
    assert f"mean {num_atoms.double().mean():.1f}, standard deviation {num_atoms.double().std():.1f}" in card
    assert f"{num_bonds.mean():.1f} bonds on average" in card
    aromatic = torch.segment_reduce(molecules.x[:, 6], "max", lengths=num_atoms).mean()
    ring = (num_bonds >= num_atoms).double().mean()  # one connected piece: a tree has one bond fewer than atoms
    assert f"{100 * aromatic:.0f} % have an aromatic ring" in card
    assert f"{100 * ring:.0f} % a ring of any kind" in card
    gap = molecules.y[:, 2].double()
    assert f"gap has mean {gap.mean():.2f}, standard deviation {gap.std():.2f} eV" in card
    assert f"wrong by {(gap - gap.mean()).abs().mean():.2f} eV on average" in card
