"""A model has one rule of neighbors: calculators and predictors follow it, or raise."""

import sys

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch_geometric.data import Data

from popgeo import FlatStore, Predictor, compile_forward, export, load
from popgeo.__main__ import main
from popgeo.convert import read_atoms
from popgeo.convert.periodic_pairs import NeighborList, list_pairs
from popgeo.data import FixedSizeOptions, write
from popgeo.deploy import Calculator
from popgeo.deploy.force_field import ForceField
from popgeo.ipu import inference_model
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import (
    KNNInteractionGraph,
    PaiNN,
    PairInteractionGraph,
    PrecomputeInteractionGraph,
    RadiusInteractionGraph,
    SchNet,
    energy_and_forces,
)

ase = pytest.importorskip("ase", reason="ase is not installed: pip install '.[atoms]' in a clone")
NONE = np.zeros(3, bool)
SEARCHES = {
    "knn": lambda: {"interaction_graph": KNNInteractionGraph(4, 4.0)},
    "max_num_neighbors": lambda: {"max_num_neighbors": 3},
    "pairs, shorter": lambda: {"interaction_graph": PairInteractionGraph(2.5)},
    "radius, longer": lambda: {"interaction_graph": RadiusInteractionGraph(9.0, 400)},
    "knn, shorter": lambda: {"interaction_graph": KNNInteractionGraph(6, 2.3)},
    "default": dict,
}


def net_of(kind=SchNet, **settings):
    torch.manual_seed(0)
    return kind(8, num_interactions=2, **{"cutoff": 4.0, **settings}).eval()


def molecule(name="C6H6"):
    from ase.build import molecule

    return molecule(name)


def copper(pbc=True, seed=0):
    from ase.build import bulk

    cell = bulk("Cu", cubic=True)
    cell.rattle(0.05, seed=seed)
    cell.pbc = pbc
    return cell


@pytest.mark.parametrize("compile", [None, inference_model], ids=["eager", "compiled"])
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", [SchNet, PaiNN])
def test_a_calculator_takes_the_neighbors_that_the_model_takes(kind, search, compile):
    net, atoms = net_of(kind, **SEARCHES[search]()), molecule()
    z, pos = torch.tensor(atoms.numbers), torch.tensor(atoms.positions, dtype=torch.float32)
    energy, forces = energy_and_forces(net, z, pos, num_graphs=1)
    atoms.calc = Calculator(net, compile=compile)
    assert_close(atoms.get_potential_energy(), energy.item(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-5)


def test_a_calculator_of_a_model_with_a_search_of_its_own_uses_the_search():
    def chain(pos, batch):
        first = torch.arange(len(pos) - 1)
        edges = torch.cat([torch.stack([first, first + 1]), torch.stack([first + 1, first])], dim=1)
        return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=1)

    net, atoms = net_of(interaction_graph=chain), molecule("CH3CH2OH")
    pos = torch.tensor(atoms.positions, dtype=torch.float32)
    atoms.calc = Calculator(net)
    expected = net(torch.tensor(atoms.numbers), pos, num_graphs=1).item()
    assert_close(atoms.get_potential_energy(), expected, rtol=1e-5, atol=1e-5)
    atoms.cell, atoms.pbc = np.eye(3) * 9, True
    with pytest.raises(ValueError, match="takes an unknown number of them"):
        atoms.get_potential_energy()


def test_the_default_limit_is_said_where_it_leaves_out_neighbors_of_a_molecule():
    atoms = ase.Atoms("H40", np.random.default_rng(0).uniform(0, 3, (40, 3)))
    net = net_of()
    pos = torch.tensor(atoms.positions, dtype=torch.float32)
    atoms.calc = Calculator(net)
    with pytest.warns(UserWarning, match="39 neighbors within 4.0 angstrom; the 32 nearest are used"):
        energy = atoms.get_potential_energy()
    assert_close(energy, net(torch.tensor(atoms.numbers), pos, num_graphs=1).item(), rtol=1e-5, atol=1e-5)
    atoms.calc = Calculator(net_of(interaction_graph=PairInteractionGraph(4.0)))
    assert abs(atoms.get_potential_energy() - energy) > 1e-3


def test_a_limit_is_refused_where_atoms_have_more_listed_neighbors_and_harmless_where_not():
    net = net_of(interaction_graph=KNNInteractionGraph(4, 4.0))
    atoms = copper()
    atoms.calc = Calculator(net)
    with pytest.raises(ValueError, match="An atom has 18 neighbors within 4, and the model takes the nearest 4"):
        atoms.get_potential_energy()
    z, pos = torch.tensor([6, 1, 1, 1, 1, 1]), torch.randn(6, 3)
    for half in (False, True):
        one = PrecomputeInteractionGraph(4.0, half_list=half)(Data(z=z, pos=pos))
        with pytest.raises(ValueError, match="An atom has 5 neighbors"):
            net(z, pos, edge_index=one.edge_index, half_list=half, num_graphs=1)
        few = one.edge_index[:, (one.edge_index < 5).all(0)]
        assert_close(
            net(z[:5], pos[:5], edge_index=few, half_list=half, num_graphs=1), net(z[:5], pos[:5], num_graphs=1)
        )
    with pytest.raises(ValueError, match="a force field uses all neighbors"):
        ForceField("schnet", {"max_num_neighbors": 4, "hidden_channels": 8}, torch.zeros(100))


@pytest.mark.parametrize("pbc", [(1, 1, 1), (1, 1, 0), (0, 0, 1)], ids=["bulk", "sheet", "wire"])
@pytest.mark.parametrize("kind", [SchNet, PaiNN])
def test_what_repeats_is_refused_without_listed_pairs_and_right_with_them(tmp_path, capsys, kind, pbc):
    from ase.io import write as write_atoms

    net, file = net_of(kind), tmp_path / "a.xyz"
    structures = [copper(pbc, seed) for seed in range(2)]
    write_atoms(file, structures)
    expected = []
    for atoms in structures:
        atoms.calc = Calculator(net)
        expected.append(atoms.get_potential_energy())
    for cutoff, reason in ((None, "A structure repeats"), (3.0, "listed up to 3, and the model's cutoff is 4")):
        graphs = list(read_atoms(file, cutoff=cutoff))
        store = write(graphs, tmp_path / f"store {cutoff}")
        for some in (graphs, store):
            with pytest.raises(ValueError, match=f"Graph 0: .*{reason}"):
                Predictor(net, backend="none")(some)
        with pytest.raises(ValueError, match=reason):
            Predictor(net, forces=True, backend="none")(FlatStore.open(tmp_path / f"store {cutoff}"))
        batch = next(iter(FixedSizeDataLoader(graphs, batch_size=2)))
        assert compile_forward(net)(batch)[0].isnan().all()
    assert main(["info", str(tmp_path / "store 3.0")]) == 0
    assert "listed up to 3 (cutoff)" in capsys.readouterr().out
    for cutoff in (4.0, 4.6):
        graphs = list(read_atoms(file, cutoff=cutoff))
        assert_close(Predictor(net)(graphs)["out"].flatten().double().tolist(), expected, rtol=1e-5, atol=1e-5)
        batch = next(iter(FixedSizeDataLoader(graphs, batch_size=2)))
        assert_close(compile_forward(net)(batch)[0].item(), expected[0], rtol=1e-5, atol=1e-5)
    if kind is PaiNN or not all(pbc):
        return  # an export takes seconds
    sizes = FixedSizeOptions(num_nodes=12, num_edges=400, num_graphs=3)
    export(net, sizes, tmp_path / "net.pt2", graphs=graphs)
    assert_close(load(tmp_path / "net.pt2")(graphs)["out"].flatten().tolist(), expected, rtol=1e-5, atol=1e-5)


def test_a_cell_without_pbc_repeats_and_shifts_belong_to_edges_of_a_crystal():
    atoms, net = copper(), net_of()
    pos, z = torch.tensor(atoms.positions, dtype=torch.float32), torch.tensor(atoms.numbers)
    cell, pbc = torch.tensor(atoms.cell.array)[None].float(), torch.ones(1, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="A structure repeats"):
        net(z, pos, num_graphs=1, cell=cell)
    assert net(z, pos, num_graphs=1, cell=cell, pbc=~pbc).isfinite().all()
    edges, _ = list_pairs(pos.double().numpy(), np.zeros((3, 3)), NONE, 4.0)
    with pytest.raises(ValueError, match="A structure repeats"):
        net(z, pos, edge_index=edges, num_graphs=1, pbc=pbc)


@pytest.mark.parametrize("far", [3_000.0, 30_000.0, 900_000.0])
@pytest.mark.parametrize("compile", [None, inference_model], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", [SchNet, PaiNN, "field"])
def test_fragments_far_apart_have_the_forces_of_each_alone(kind, compile, far):
    if kind == "field":
        torch.manual_seed(0)
        net = ForceField("schnet", {"hidden_channels": 8, "cutoff": 4.0}, torch.zeros(100)).eval()
    else:
        net = net_of(kind)
    one = molecule()
    other = one.copy()
    other.rotate(40, "y")
    other.positions += [far, far / 3, 0]
    together = one + other
    together.calc = Calculator(net, compile=compile)
    forces = together.get_forces()
    for part, found in ((one, forces[:12]), (other, forces[12:])):
        part = part.copy()
        part.positions -= part.positions.mean(axis=0)
        part.calc = Calculator(net)
        np.testing.assert_allclose(found, part.get_forces(), atol=1e-5)


def test_fragments_are_moved_near_the_origin_one_by_one_with_whole_cells_between_atoms():
    one = molecule()
    other = one.copy()
    other.positions += [30_000, 0, 0]
    crystal = copper((True, True, False))
    crystal.positions[2] += 400 * crystal.cell.array[1] + [0, 0, 5_000]
    for atoms in (one + other, crystal):
        pos, edges, shift = NeighborList(4.0, 0.5).near_origin(atoms, by_fragment=True)
        assert np.abs(pos).max() < 10
        expected, found = list_pairs(atoms.positions, atoms.cell.array, atoms.pbc, 4.0)
        assert np.sort(edges.T, axis=0).tolist() == np.sort(expected.numpy().T, axis=0).tolist()
        lengths = np.linalg.norm(pos[edges[0]] - pos[edges[1]] + shift, axis=1)
        wanted = np.linalg.norm(atoms.positions[expected[0]] - atoms.positions[expected[1]] + found.numpy(), axis=1)
        np.testing.assert_allclose(np.sort(lengths), np.sort(wanted), atol=1e-9)
        steps = shift @ np.linalg.pinv(atoms.cell.array)
        np.testing.assert_allclose(steps, steps.round(), atol=1e-9)


@pytest.mark.parametrize("double", [False, True])
def test_energies_are_sums_in_float64_if_positions_are(double):
    atoms = copper().repeat((9, 9, 9))
    net = net_of(num_filters=8, num_gaussians=8, cutoff=2.8)
    torch.nn.init.constant_(net.lin2.bias, -37.7)
    exact = net_of(num_filters=8, num_gaussians=8, cutoff=2.8).double()
    exact.load_state_dict(net.state_dict())
    net = net.double() if double else net
    energies = []
    for one in (net, exact):
        atoms.calc = Calculator(one)
        energies.append(atoms.get_potential_energy())
    assert abs(energies[0] - energies[1]) < 1e-3
    structure = Data(z=torch.tensor(atoms.numbers), pos=torch.tensor(atoms.positions))
    edges, shift = list_pairs(atoms.positions, atoms.cell.array, atoms.pbc, 2.8)
    structure.edge_index, structure.edge_shift = edges, shift
    assert abs(Predictor(net)([structure])["out"].item() - energies[1]) < 1e-3


@pytest.mark.parametrize("model", ["float32", "float64", "bfloat16"])
def test_the_command_gives_a_model_positions_in_float64(tmp_path, monkeypatch, model):
    from ase.io import write as write_atoms

    (tmp_path / "nets_of_the_test.py").write_text(
        "import torch\nfrom popgeo.nn import SchNet\n"
        f"def net():\n    torch.manual_seed(0)\n    return SchNet(8, 8, 1, cutoff=4.0).to(torch.{model})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nets_of_the_test", raising=False)
    one = molecule()
    other = one.copy()
    other.positions += [3_000.3, 0, 0]
    write_atoms(tmp_path / "a.xyz", one + other)
    command = ["predict", "nets_of_the_test:net", str(tmp_path / "a.xyz"), "--out", str(tmp_path / "a.npz")]
    assert main([*command, "--forces", "--cutoff", "4"]) == 0
    forces = np.load(tmp_path / "a.npz")["forces"]
    np.testing.assert_allclose(forces[:12], forces[12:], atol=5e-2 if model == "bfloat16" else 2e-6)


def test_a_program_in_a_file_takes_graphs_that_do_not_state_their_cutoff(tmp_path):
    model = SchNet(8, 8, 1, 8, cutoff=3.0)
    chains = [Data(z=torch.ones(n, dtype=torch.long), pos=torch.arange(3.0 * n).reshape(n, 3) / 3) for n in (2, 3, 4)]
    graphs = [PrecomputeInteractionGraph(3.0)(one) for one in chains]
    sizes = FixedSizeOptions(num_nodes=16, num_edges=64, num_graphs=4)
    export(model, sizes, tmp_path / "a.pt2", graphs=graphs, forces=True)
    plain = [{name: one[name] for name in ("z", "pos", "edge_index")} for one in graphs]
    found, expected = (load(tmp_path / "a.pt2", backend="none")(of) for of in (plain, graphs))
    assert torch.equal(found["energy"], expected["energy"])
    assert torch.equal(found["forces"], expected["forces"])


@pytest.mark.parametrize("forces", [False, True])
def test_a_program_in_a_file_refuses_graphs_that_its_model_would_refuse(tmp_path, forces):
    from ase.io import write as write_atoms

    model = net_of(num_filters=8, num_gaussians=8)
    sizes = FixedSizeOptions(num_nodes=24, num_edges=1600, num_graphs=4)
    write_atoms(tmp_path / "crystals.xyz", [copper(), copper(seed=1)])
    write_atoms(tmp_path / "molecules.xyz", [molecule("H2O"), molecule("CH4")])
    crystals, short, bare = (list(read_atoms(tmp_path / "crystals.xyz", cutoff=c)) for c in (4.0, 3.0, None))
    molecules = list(read_atoms(tmp_path / "molecules.xyz"))
    plain = [Data(z=one.z, pos=one.pos) for one in molecules]
    export(model, sizes, tmp_path / "molecules.pt2", graphs=plain, forces=forces)
    export(model, sizes, tmp_path / "crystals.pt2", graphs=crystals, forces=forces)
    of_molecules, of_crystals = (load(tmp_path / f"{name}.pt2", "none") for name in ("molecules", "crystals"))
    result = "energy" if forces else "out"
    assert torch.equal(of_molecules(molecules)[result], of_molecules(plain)[result])  # a cell of 0 says nothing
    bonds = [PrecomputeInteractionGraph(4.0)(one) for one in plain]
    for wrong, what in ((crystals, "cell"), (bare, "cell"), (bonds, "edge_index")):
        for some in (wrong, FlatStore.from_dataset(wrong)):
            with pytest.raises(ValueError, match=f"has {what}, which the model takes and the other graphs lack"):
                of_molecules(some)
        kept = of_molecules([plain[0], wrong[0], plain[1]], errors="keep")
        assert list(kept.errors) == [1]
        assert torch.equal(kept[result][[0, 2]], of_molecules(plain)[result])
    both = FlatStore.from_dataset([*crystals, *short])
    assert torch.equal(of_crystals(both.view([1, 0]))[result], of_crystals(crystals[::-1])[result])
    for some in (short, both.view([0, 2])):
        with pytest.raises(ValueError, match="listed up to 3, and the model's cutoff is 4"):
            of_crystals(some)
    assert list(of_crystals([crystals[0], short[1]], errors="keep").errors) == [1]


def test_a_predictor_compares_a_cutoff_that_the_first_graphs_did_not_state(tmp_path):
    from ase.io import write as write_atoms

    write_atoms(tmp_path / "a.xyz", [copper()])
    crystals, short = (list(read_atoms(tmp_path / "a.xyz", cutoff=cutoff)) for cutoff in (4.0, 3.0))
    unstated = crystals[0].clone()
    del unstated.cutoff
    predictor = Predictor(net_of(), backend="none")
    assert torch.equal(predictor([unstated])["out"], predictor(crystals)["out"])
    with pytest.raises(ValueError, match="listed up to 3, and the model's cutoff is 4"):
        predictor(short)
