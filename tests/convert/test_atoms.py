"""Files of structures as others write them: each read alone, its labels found by name, and refused by its index."""

import pickle

import numpy as np
import pytest
import torch

from popgeo import FixedSizeDataLoader
from popgeo.__main__ import main
from popgeo.convert import read_atoms
from popgeo.convert.periodic_pairs import list_pairs
from popgeo.data import FlatStore

ase = pytest.importorskip("ase")


def frames(count=4, prefix=""):
    from ase.calculators.singlepoint import SinglePointCalculator

    made = []
    for step in range(count):
        positions = [[0, 0, 0], [1.8 + step / 10, 1.8, 0], [0, 1.8, 1.8]][: 2 + step % 2]
        atoms = ase.Atoms(["Cu"] * len(positions), positions=positions, cell=[3.6] * 3, pbc=True)
        forces = np.full((len(atoms), 3), 0.25 * step)
        if prefix:
            atoms.info[f"{prefix}energy"], atoms.arrays[f"{prefix}forces"] = -1.0 - step, forces
        else:
            values = {"energy": -1.0 - step, "forces": forces, "stress": np.arange(6) / 8}
            atoms.calc = SinglePointCalculator(atoms, **values)
        made.append(atoms)
    return made


def mace_hdf5(path, structures):
    """Write a file like `mace.data.save_configurations_as_HDF5`, with two groups of structures."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for number, atoms in enumerate(structures):
            group = file.require_group(f"config_batch_{number // 2}").create_group(f"config_{number % 2}")
            group["atomic_numbers"], group["positions"] = atoms.numbers, atoms.positions
            group["cell"], group["pbc"] = atoms.cell.array, atoms.pbc
            group["weight"], group["config_type"] = 0.5, "Default"
            properties, weights = group.create_group("properties"), group.create_group("property_weights")
            for name, value in atoms.calc.results.items():
                properties[name], weights[name] = value, 1.0
            properties["dipole"] = "None"


def aselmdb(path, structures):
    """As `ase_db_backends` writes it: compressed JSON of ASE's rows, with one row deleted."""
    lmdb = pytest.importorskip("lmdb")
    import zlib

    from ase.db.row import AtomsRow
    from ase.io.jsonio import encode

    with lmdb.open(str(path), subdir=False, map_size=2**24, lock=False) as file, file.begin(write=True) as writing:

        def put(key, value):
            writing.put(key.encode(), zlib.compress(encode(value).encode()))

        for number, atoms in enumerate([structures[0], *structures], start=1):
            row = AtomsRow(atoms)
            entry = {name: row[name] for name in row if name not in ("id", "unique_id")} | {"unique_id": "u"}
            put(str(number), {**entry, "data": {"charge": number}, "key_value_pairs": {}})
        put("nextid", len(structures) + 2)
        put("deleted_ids", [1])


def save(path, structures):
    if path.suffix == ".h5":
        mace_hdf5(path, structures)
    elif path.suffix == ".aselmdb":
        aselmdb(path, structures)
    else:
        from ase.io import write

        write(path, structures)
    return path


@pytest.mark.parametrize("name", ["all.extxyz", "all.h5", "all.aselmdb", "all.db", "all.traj", "all.json"])
def test_a_structure_of_any_file_is_read_alone_and_as_it_was_written(tmp_path, name):
    written = frames()
    keys = {"charge": None} if name == "all.aselmdb" else None
    structures = read_atoms(save(tmp_path / name, written), double=True, keys=keys)
    assert len(structures) == 4
    for index in (3, 0, 2):
        one, atoms = structures[index], written[index]
        assert one.z.tolist() == atoms.numbers.tolist()
        assert one.pos.numpy() == pytest.approx(atoms.positions)
        assert one.cell[0].numpy() == pytest.approx(atoms.cell.array)
        assert one.energy.tolist() == pytest.approx([-1.0 - index])
        assert one.forces.numpy() == pytest.approx(atoms.calc.results["forces"])
        assert one.stress[0].numpy() == pytest.approx(np.arange(6) / 8)
    assert torch.equal(pickle.loads(pickle.dumps(structures))[1].pos, structures[1].pos)
    assert ("weight" in structures[0]) == (name == "all.h5")
    if name == "all.aselmdb":
        charged = read_atoms(tmp_path / name, keys={"charge": "charge", "stress": None})
        assert [one.charge.tolist() for one in charged] == [[2], [3], [4], [5]]
        assert "stress" not in charged[0]


def test_the_writers_of_mace_and_of_fairchem_are_understood(tmp_path):
    utils = pytest.importorskip("mace.data.utils", reason="mace-torch is not installed")
    backend = pytest.importorskip("ase_db_backends.aselmdb", reason="ase-db-backends is not installed")
    h5py = pytest.importorskip("h5py")
    keys = utils.KeySpecification(info_keys={"energy": "energy"}, arrays_keys={"forces": "forces"})
    for atoms in (written := frames()):
        atoms.info["energy"], atoms.arrays["forces"] = atoms.calc.results["energy"], atoms.calc.results["forces"]
    with h5py.File(tmp_path / "mace.h5", "w") as file:
        utils.save_configurations_as_HDF5([utils.config_from_atoms(one, keys) for one in written], 0, file)
    database = backend.LMDBDatabase(str(tmp_path / "fairchem.aselmdb"))
    for atoms in written:
        database.write(atoms)
    database.close()
    for name in ("mace.h5", "fairchem.aselmdb"):
        read = [read_atoms(tmp_path / name)[index] for index in range(4)]
        assert [one.energy.item() for one in read] == [-1, -2, -3, -4]
        assert [one.forces[-1, 0].item() for one in read] == [0, 0.25, 0.5, 0.75]


def test_a_folder_of_files_is_one_dataset_and_a_loader_takes_it(tmp_path):
    pytest.importorskip("vesin")
    (tmp_path / "shards").mkdir()
    save(tmp_path / "shards" / "a.xyz", frames(3))
    save(tmp_path / "shards" / "b.xyz", frames(2))
    structures = read_atoms(tmp_path / "shards", cutoff=3.0)
    assert [one.energy.item() for one in structures] == [-1, -2, -3, -1, -2]
    assert main(["convert", str(tmp_path / "shards"), str(tmp_path / "store"), "--cutoff", "3"]) == 0
    store = FlatStore.open(tmp_path / "store")
    assert torch.equal(store[4].pos, structures[4].pos)
    with pytest.warns(UserWarning, match="fetched again"):
        loader = FixedSizeDataLoader(structures, num_nodes=12, num_edges=200, batch_size=4)
    assert sum(int(batch.graphs_mask.sum()) for batch in loader) == 5
    with (
        pytest.warns(UserWarning, match="fetched again"),
        pytest.raises(ValueError, match="largest graph is 1 with 3"),
    ):
        list(FixedSizeDataLoader(structures, num_nodes=3, num_edges=200, batch_size=3))


def test_labels_have_the_names_that_the_file_says_or_that_are_asked_for(tmp_path):
    (path,) = [save(tmp_path / "ref.xyz", frames(prefix="REF_"))]
    assert read_atoms(path)[1].energy.tolist() == [-2.0]
    other = save(tmp_path / "dft.xyz", frames(prefix="dft_"))
    with pytest.raises(ValueError, match=r"has \['dft_(energy|forces)'\]. Pass keys"):
        read_atoms(other)
    keys = {"energy": "dft_energy", "forces": "dft_forces", "weight": "config_weight"}
    assert read_atoms(other, keys=keys)[2].energy.tolist() == [-3.0]
    assert read_atoms(other, keys=keys)[2].weight.tolist() == [1.0]
    command = ["convert", str(other), str(tmp_path / "store"), "--key", "energy=dft_energy", "--key", "forces="]
    assert main(command) == 0
    assert "forces" not in FlatStore.open(tmp_path / "store")[0]
    both = frames()
    for atoms in both:
        atoms.info["REF_energy"] = 1.0
    with pytest.raises(ValueError, match=r"has \['REF_energy', 'energy'\]. Pass keys"):
        read_atoms(save(tmp_path / "both.xyz", both))


def test_virials_become_the_stress_and_a_tensor_voigts_order(tmp_path):
    structures = frames(prefix="REF_")
    tensor = np.array([[1.0, 6, 5], [6, 2, 4], [5, 4, 3]])
    for atoms in structures:
        atoms.info["REF_stress"], atoms.info["REF_virials"] = tensor, -tensor * atoms.get_volume()
    path = save(tmp_path / "all.xyz", structures)
    with pytest.warns(UserWarning, match=r"not read: REF_virials \(--key stress=REF_virials\)"):
        assert read_atoms(path)[0].stress.tolist() == [[1, 2, 3, 4, 5, 6]]
    of_virials = read_atoms(path, keys={"stress": "REF_virials"})[0].stress
    assert of_virials[0].tolist() == pytest.approx([1, 2, 3, 4, 5, 6])
    for atoms in structures:
        atoms.info["virial"] = atoms.info.pop("REF_virials")
        del atoms.info["REF_stress"]
    by_itself = read_atoms(save(tmp_path / "virial.xyz", structures))[0].stress
    assert by_itself[0].tolist() == pytest.approx([1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda atoms: atoms.calc.results.pop("forces"),
            r"structure 2: it has 'nothing' as forces, the first has 'forces'",
        ),
        (lambda atoms: atoms.calc.results["forces"].fill(1e6), r"structure 2: it has forces of 1e\+06 eV/angstrom"),
        (lambda atoms: atoms.calc.results.update(energy=1e9), r"structure 2: it has energy of 5e\+08 eV per atom"),
        (
            lambda atoms: atoms.calc.results.update(energy=np.nan),
            "structure 2: it has energy that is not a finite number",
        ),
        (lambda atoms: atoms.calc.results.update(stress=np.zeros(4)), "structure 2: .*9-long"),
        (lambda atoms: atoms.positions.fill(0.0), "structure 2: it has two atoms 0 angstrom from each other"),
        (
            lambda atoms: atoms.info.update(config_weight=2.0),
            "structure 2: it has 'config_weight' as weight",
        ),
    ],
    ids=["missing", "forces", "energy", "nan", "shape", "one place", "weight"],
)
def test_what_cannot_be_is_refused_with_its_index(tmp_path, capsys, change, message):
    pytest.importorskip("vesin")
    structures = frames()
    change(structures[2])
    path = save(tmp_path / "all.extxyz", structures)
    with pytest.raises(ValueError, match=message):
        list(read_atoms(path, cutoff=3.0))
    assert main(["convert", str(path), str(tmp_path / "store"), "--cutoff", "3"]) == 2
    assert "structure 2" in capsys.readouterr().err


def test_a_damaged_file_and_an_empty_one_are_said(tmp_path):
    path = save(tmp_path / "all.extxyz", frames())
    text = path.read_text()
    path.write_text(text[: text.rindex("Cu")])
    with pytest.raises(ValueError, match="cut off in structure 3"):
        read_atoms(path)
    for name, content in (("a.xyz", ""), ("a.h5", "no"), ("a.aselmdb", "no"), ("a.db", "no"), ("a.traj", "no")):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=f"{name} (cannot be read|contains no structure)|needs"):
            read_atoms(tmp_path / name)
    with pytest.raises(ValueError, match=r"structure 0: it has no \['e'\], but"):
        read_atoms(save(tmp_path / "b.xyz", frames()), keys={"energy": "e"})
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="has no file with one of"):
        read_atoms(tmp_path / "none")


@pytest.mark.parametrize("cutoff", [None, 3.0])
@pytest.mark.parametrize(("cell", "pos"), [("4", "nan"), ("nan", "0"), ("4", "1e30"), ("4", "-inf")])
def test_a_structure_that_stands_nowhere_is_refused_with_and_without_pairs(tmp_path, cell, pos, cutoff):
    lattice = f'Lattice="{cell} 0 0 0 4 0 0 0 4"'
    atoms = f"2\n{lattice} Properties=species:S:1:pos:R:3 energy=-1\nCu {pos} 0 0\nCu 0 0 2\n"
    (tmp_path / "a.extxyz").write_text(atoms)
    with pytest.raises(ValueError, match="structure 0: Positions or the cell are not finite and below"):
        read_atoms(tmp_path / "a.extxyz", cutoff=cutoff)[0]


@pytest.mark.parametrize(("place", "value"), [((0, 2), np.inf), ((1, 1), np.nan), ((0, 0), 1e308), ((1, 2), -3e9)])
def test_atoms_that_stand_nowhere_are_refused_before_pairs_are_listed(place, value):
    pytest.importorskip("vesin")
    pos, cell = np.zeros((2, 3)), np.diag([4.0, 5.0, 6.0])
    pos[place] = value
    with pytest.raises(ValueError, match="Positions or the cell are not finite and below"):
        list_pairs(pos, cell, np.array([True] * 3), 1.5)
    cell[place] = value
    with pytest.raises(ValueError, match="Positions or the cell are not finite"):
        list_pairs(np.zeros((2, 3)), cell, np.array([True] * 3), 1.5)


def test_what_stands_behind_an_empty_line_of_an_xyz_file_is_not_left_out(tmp_path):
    pytest.importorskip("ase")
    (tmp_path / "two.xyz").write_text("1\n\nH 0 0 0\n\n1\n\nH 0 0 1\n")
    with pytest.raises(ValueError, match="more follows an empty line where structure 1 would begin"):
        read_atoms(tmp_path / "two.xyz")
