"""Every key of a file that looks like a label is read, reported or refused; its meaning decides what it belongs to."""

import re

import numpy as np
import pytest
import torch

from popgeo.__main__ import main
from popgeo.convert import read_atoms
from popgeo.data import FlatStore
from tests.support.write_atoms import structure, write_xyz

ase = pytest.importorskip("ase")

BOHR, HARTREE = 0.529177210903, 27.211386245988


@pytest.mark.parametrize("name", ["energy", "Energy", "ENERGY", "REF_energy", "ref_Energy"])
def test_the_letter_case_of_a_key_and_ref_do_not_matter(tmp_path, name):
    assert read_atoms(write_xyz(tmp_path / "a.xyz", f"{name}=-3.5"))[0].energy.tolist() == [-3.5]


@pytest.mark.parametrize("name", ["Stress", "STRESS", "REF_stress", "virial", "Virial", "VIRIALS", "ref_virials"])
def test_stress_is_read_under_any_letter_case_and_from_virials(tmp_path, name):
    path = write_xyz(tmp_path / "a.xyz", f'energy=-1 {name}="1 0 0 0 2 0 0 0 3"')
    sign = -125.0 if "virial" in name.lower() else 1.0
    assert read_atoms(path)[0].stress[0, :3].tolist() == pytest.approx([1 / sign, 2 / sign, 3 / sign])


@pytest.mark.parametrize(
    "name",
    [
        "dft_energy",
        "MACE_energy",
        "total_energy",
        "E_tot",
        "TOTEN",
        "U0",
        "free_energy",
        "energies",
        "dft_forces",
        "MACE_Forces",
        "gradient",
        "force_x",
        "dft_stress",
        "dft_virial",
        "DFT_virials",
        "stress_tensor",
        "virial_MACE",
    ],
)
def test_a_label_under_a_name_that_is_not_certain_is_asked_about(tmp_path, name):
    with pytest.raises(ValueError, match=rf"structure 0: it has \['{name}'\]. Pass keys="):
        read_atoms(write_xyz(tmp_path / "a.xyz", f"{name}=1"))


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("dft_energy", "energy=dft_energy"),
        ("MACE_forces", "forces=MACE_forces"),
        ("charge", "charge=charge"),
        ("total_charge", "total_charge=total_charge"),
        ("sample_weight", "weight=sample_weight"),
        ("config_dipole_weight", "weight=config_dipole_weight"),
    ],
)
def test_a_key_beside_the_label_is_reported_with_the_option_that_reads_it(tmp_path, key, option):
    path = write_xyz(
        tmp_path / "a.xyz", f"energy=-1 {key}=2", rows=("Cu 0 0 0 1 2 3",), columns="species:S:1:pos:R:3:forces:R:3"
    )
    with pytest.warns(UserWarning, match=rf"keys that are not read: {key} \(--key {option}\)") as told:
        read_atoms(path)
    assert told[0].filename == __file__  # the line of the caller
    name = option.split("=")[0]
    assert name in read_atoms(path, keys={name: key} if name != "forces" else {"forces": "forces"})[0]


@pytest.mark.parametrize("header", ['pbc="T T F"', 'PBC="T T F"', 'pbc="t t f"', "pbc=TTF", 'Pbc="[True, True, False]"',
                                    'pbc=".true. .true. .false."', 'pbc="1 1 0"', "pbc=[T, T, F]"])  # fmt: skip
def test_periodicity_is_read_in_any_spelling(tmp_path, header):
    assert read_atoms(write_xyz(tmp_path / "a.xyz", f"energy=1 {header}"))[0].pbc.tolist() == [[True, True, False]]


@pytest.mark.parametrize("header", ['pbc="x y z"', 'pbc="T F"', "pbc=maybe", 'periodic="T T T"', 'boundary_pbc="T"'])
def test_periodicity_that_is_not_understood_is_refused(tmp_path, header):
    with pytest.raises(ValueError, match=r'Write pbc="T T F"'):
        read_atoms(write_xyz(tmp_path / "a.xyz", f"energy=1 {header}"))


@pytest.mark.parametrize("name", ["lattice", "LATTICE"])
def test_a_lattice_in_other_letters_is_the_cell(tmp_path, name):
    path = write_xyz(tmp_path / "a.xyz", f'{name}="5 0 0 1 5 0 0 0 5" energy=1', lattice=False)
    (one, _) = read_atoms(path)
    assert one.cell[0].tolist() == [[5, 0, 0], [1, 5, 0], [0, 0, 5]]
    assert one.pbc.all()


@pytest.mark.parametrize("header", ['Cell="5 0 0 0 5 0 0 0 5"', "box=5", 'unit_cell="5 5 5"', 'lattice="5 5 5"'])
def test_a_cell_under_another_name_is_refused(tmp_path, header):
    with pytest.raises(ValueError, match=r"which is not read as its cell|9-long"):
        read_atoms(write_xyz(tmp_path / "a.xyz", f"energy=1 {header}", lattice=False))


@pytest.mark.parametrize(
    ("header", "energy"),
    [
        ("energy_unit=Hartree", HARTREE),
        ("energy_units=kcal/mol", 0.0433641),
        ("Units=kJ/mol", 0.01036427),
        ("units=metal", 1.0),
        ("unit=Ry", HARTREE / 2),
    ],
)
def test_units_that_a_header_names_are_converted(tmp_path, header, energy):
    assert read_atoms(write_xyz(tmp_path / "a.xyz", f"energy=1 {header}"))[0].energy.item() == pytest.approx(energy)


@pytest.mark.parametrize("header", ["energy_unit=parsec", "units=lj", "Units", "forces_unit=eV", "length_unit=ell"])
def test_units_that_are_not_known_are_refused(tmp_path, header):
    path = write_xyz(tmp_path / "a.xyz", f"energy=1 {header}", "species:S:1:pos:R:3:forces:R:3", ("H 0 0 0 1 1 1",))
    with pytest.raises(ValueError, match=r"unit"):
        read_atoms(path)


def test_units_that_the_user_states_hold_for_all_that_follows_from_them(tmp_path):
    path = write_xyz(tmp_path / "a.xyz", 'energy=1 virial="1 0 0 0 1 0 0 0 1"', "species:S:1:pos:R:3:forces:R:3",
                     ("H 0 0 0 1 1 1", "H 0 0 2 1 1 1"))  # fmt: skip
    one = read_atoms(path, units={"energy": "Hartree", "length": "bohr"}, double=True)[0]
    assert one.pos[1, 2].item() == pytest.approx(2 * BOHR)
    assert one.cell[0, 0, 0].item() == pytest.approx(5 * BOHR)
    assert one.forces[0, 0].item() == pytest.approx(HARTREE / BOHR)
    assert one.stress[0, 0].item() == pytest.approx(-HARTREE / (5 * BOHR) ** 3)
    command = ["convert", str(path), str(tmp_path / "store"), "--units", "energy=kcal/mol", "forces=kcal/mol/Ang"]
    assert main(command) == 0
    assert FlatStore.open(tmp_path / "store")[0].forces[0, 0].item() == pytest.approx(0.0433641, rel=1e-5)


def database(path, metadata, **results):
    from ase.db import connect

    with connect(str(path)) as rows:
        rows.metadata = metadata
        for count in (2, 3):
            atoms = structure(count)
            atoms.calc = None
            rows.write(atoms, data={"energy": np.array([-10.0]), **results, "forces": np.ones((count, 3))})
    return path


def test_units_in_the_metadata_of_a_database_are_converted_or_asked_for(tmp_path):
    units = {"energy": "Hartree", "forces": "Hartree/Bohr"}
    path = database(tmp_path / "a.db", {"_property_unit_dict": units, "_distance_unit": "Bohr", "atomrefs": {}})
    one = read_atoms(path)[0]
    assert one.energy.item() == pytest.approx(-10 * HARTREE)
    assert one.forces[0, 0].item() == pytest.approx(HARTREE / BOHR)
    assert one.pos[1, 2].item() == pytest.approx(1.5 * BOHR)
    path = database(tmp_path / "b.db", {"_property_unit_dict": {"energy": "Hartree"}, "_distance_unit": "Ang"})
    with pytest.raises(ValueError, match=r"names units of .*, but none of forces"):
        read_atoms(path)
    assert read_atoms(path, units={"forces": "eV/Ang", "energy": "Ha"})[0].forces[0, 0].item() == 1.0
    with pytest.raises(ValueError, match="the file has energy in 'Hartree', --units says 'eV'"):
        read_atoms(path, units={"energy": "eV"})
    path = database(tmp_path / "c.db", {"atomrefs": {"energy": [0.0, -13.6]}})
    with pytest.warns(UserWarning, match=r"not read: atomrefs \(--E0s"):
        read_atoms(path)


@pytest.mark.parametrize("name", ["a.extxyz", "a.traj", "a.db", "a.json"])
@pytest.mark.parametrize("num_atoms", [1, 3, 6, 9])
def test_the_level_of_a_label_is_what_it_means(tmp_path, name, num_atoms):
    from ase.io import write

    given = {"charges": np.arange(num_atoms) + 0.5, "forces": np.ones((num_atoms, 3)), "stress": np.arange(6) / 8}
    made = [structure(num_atoms, dipole=np.arange(3.0), magmoms=np.ones(num_atoms), **given) for _ in range(2)]
    write(tmp_path / name, made)
    command = ["convert", str(tmp_path / name), str(tmp_path / "store")]
    for key in ("q=charges", "m=magmoms", "d=dipole"):
        command += ["--key", key]
    assert main(command) == 0
    axes = {one.name: one.axis.level.value for one in FlatStore.open(tmp_path / "store").attributes}
    assert {axes[name] for name in ("q", "m", "forces", "z", "pos")} == {"node"}
    assert {axes[name] for name in ("d", "stress", "energy", "cell", "pbc")} == {"graph"}
    one = FlatStore.open(tmp_path / "store")[0]
    assert one.q.tolist() == given["charges"].tolist()
    assert one.d.tolist() == [[0, 1, 2]]


def test_arrays_beside_a_row_are_of_atoms_by_name_or_by_request(tmp_path):
    from ase.db import connect

    with connect(str(tmp_path / "a.db")) as rows:
        rows.write(structure(3), data={"mulliken_charges": np.arange(3.0), "vector": np.arange(3.0)})
    assert read_atoms(tmp_path / "a.db", keys={"q": "mulliken_charges"})[0].q.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"may belong to atoms or to the structure. Pass levels="):
        read_atoms(tmp_path / "a.db", keys={"v": "vector", "charge": None})
    read = {
        level: read_atoms(tmp_path / "a.db", keys={"v": "vector", "charge": None}, levels={"vector": level})
        for level in ("node", "graph")
    }
    assert [read[level][0].v.shape for level in read] == [(3,), (1, 3)]


@pytest.mark.parametrize("kind", ["xyz", "h5"])
def test_weights_of_labels_come_along(tmp_path, kind):
    if kind == "h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            group = file.create_group("config_batch_0/config_0")
            group["atomic_numbers"], group["positions"] = [29], np.zeros((1, 3))
            group["cell"], group["pbc"], group["weight"] = np.eye(3) * 4, [True] * 3, 2.0
            group["properties/energy"], group["properties/forces"] = -1.0, np.zeros((1, 3))
            group["properties/virials"] = np.eye(3)
            group["property_weights/energy"], group["property_weights/forces"] = 0.0, 3.0
            group["property_weights/virials"], group["property_weights/dipole"] = 0.5, 1.0
        path = tmp_path / "a.h5"
    else:
        weights = "config_weight=2 config_energy_weight=0 config_forces_weight=3 config_virials_weight=0.5"
        path = write_xyz(
            tmp_path / "a.xyz",
            f'energy=-1 virials="1 0 0 0 1 0 0 0 1" {weights}',
            "species:S:1:pos:R:3:forces:R:3",
            ("Cu 0 0 0 0 0 0",),
        )
    one = read_atoms(path)[0]
    weights = [one[f"{name}weight"].tolist() for name in ("", "energy_", "forces_", "stress_")]
    assert weights == [[2], [0], [3], [0.5]]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("energy=abc", "energy that is not a finite number: 'abc'"),
        ("energy=T", "energy that is not a finite number"),
        ('energy="1 2"', r"energy of shape \[2\]; energy needs \[1\]"),
        ('energy=1 stress="0 1 0 0 0 0 0 0 0"', "stress that is not symmetric"),
        ("energy=1 config_weight=-1", "config_weight of -1; a weight is at least 0"),
        ("energy=1 config_weight=nan", "config_weight that is not a finite number"),
        ('energy=1 config_weight="1 2"', r"config_weight of shape \[2\]; weight needs \[1\]"),
    ],
)
def test_a_label_that_is_not_what_it_says_is_refused_by_structure_and_key(tmp_path, header, message):
    with pytest.raises(ValueError, match=f"a.xyz, structure 0: it has {message}"):
        read_atoms(write_xyz(tmp_path / "a.xyz", header))


@pytest.mark.parametrize("label", ['stress="1 0 0 0 1 0 0 0 1"', 'virial="1 0 0 0 1 0 0 0 1"'])
def test_stress_without_a_volume_is_refused(tmp_path, label):
    path = write_xyz(tmp_path / "a.xyz", f"energy=1 {label}", lattice=False)
    with pytest.raises(ValueError, match=r"its cell has no volume. Pass --key stress="):
        read_atoms(path)
    assert "stress" not in read_atoms(path, keys={"stress": None})[0]


def test_partial_labels_are_nan_and_no_labels_are_read_if_none_are_wanted(tmp_path):
    path = tmp_path / "a.xyz"
    texts = [write_xyz(path, header, count=1).read_text() for header in ("energy=1", "config_type=x", "energy=nan")]
    path.write_text("".join(texts))
    with pytest.raises(ValueError, match="structure 1: it has 'nothing' as energy"):
        list(read_atoms(path))
    partial = list(read_atoms(path, labels="partial"))
    assert torch.stack([one.energy for one in partial]).isnan().flatten().tolist() == [False, True, True]
    assert all(one.forces.isnan().all() and one.stress.shape == (1, 6) for one in partial)
    assert [sorted(one.keys()) for one in read_atoms(path, labels="none")] == [["cell", "pbc", "pos", "z"]] * 3


@pytest.mark.parametrize("header", ["energy=1 energy=2", 'pbc="T T T" PBC="F F F"'])
def test_a_key_that_is_there_twice_is_refused(tmp_path, header):
    with pytest.raises(ValueError, match=r"it has \['\w+'\] twice"):
        read_atoms(write_xyz(tmp_path / "a.xyz", header))


def test_info_lists_which_key_is_read_as_what_and_which_is_not(tmp_path, capsys):
    header = "REF_energy=-1 energy_unit=Hartree MACE_energy=-2 charge=1"
    path = write_xyz(tmp_path / "a.xyz", header, "species:S:1:pos:R:3:forces:R:3", ("Cu 0 0 0 1 1 1", "Cu 0 0 2 1 1 1"))
    assert main(["info", str(path)]) == 0
    assert "but none of forces" in capsys.readouterr().out
    assert main(["info", str(path), "--units", "forces=Hartree/Bohr"]) == 0
    printed = capsys.readouterr().out
    for words in (
        r"REF_energy +energy \(times 27.2114\)",
        r"forces +forces \(times 51.4221\)",
        r"MACE_energy +not read \(--key energy=MACE_energy\)",
        r"charge +not read \(--key charge=charge\)",
    ):
        assert re.search(words, printed), printed


@pytest.mark.parametrize(
    "header",
    [
        "coordinates_unit=bohr", "lattice_unit=bohr", "cell_units=nm", "e_unit=Hartree", "dft_energy_unit=Hartree",
        "energyUnit=a.u.", "units=a.u.", "energy_unit=2*eV", "energy_unit=1e-3*eV", "energy_unit=MeV",
        "unit_of_energy=J", "stress_unit=mbar",
    ],
)  # fmt: skip
def test_no_unit_that_a_file_names_is_passed_over(tmp_path, header):
    stress = 'stress="1 0 0 0 1 0 0 0 1"'
    path = write_xyz(tmp_path / "a.xyz", f"energy=-1 {stress} {header}")
    with pytest.raises(ValueError, match="unit"):
        read_atoms(path)


@pytest.mark.parametrize(
    ("header", "energy", "stress"),
    [
        ("unit_of_energy=Hartree", HARTREE, -HARTREE / 125),
        ("energyUnit=Hartree virial_unit=Hartree", HARTREE, -HARTREE / 125),
        ("EnergyUnits=eV virials_unit=Hartree", 1.0, -HARTREE / 125),
        ("ecut=30 ecut_unit=Ry time_unit=fs cell_unit=angstrom num_units=4", 1.0, -1 / 125),
    ],
)
def test_units_of_energies_and_virials_have_several_names(tmp_path, header, energy, stress):
    virial = 'virials="1 0 0 0 1 0 0 0 1"'
    one = read_atoms(write_xyz(tmp_path / "a.xyz", f"energy=1 {virial} {header}"), double=True)[0]
    assert one.energy.item() == pytest.approx(energy)
    assert one.stress[0, 0].item() == pytest.approx(stress)


@pytest.mark.parametrize(
    ("header", "keys", "message"),
    [
        ("energy=1 energy_unit=Hartree energy_units=eV", {}, "units 'Hartree' and 'eV' of energy"),
        ("energy=1 units=eV energy_unit=kcal/mol", {}, "units 'eV' and 'kcal/mol' of energy"),
        ("energy=1 length_unit=bohr distance_unit=Ang", {}, "units 'bohr' and 'Ang' of length"),
        ('energy=1 virial="1 0 0 0 1 0 0 0 1" stress_unit=GPa', {}, "virial and a unit of stress"),
        ("energy_per_atom=1", {"energy": "energy_per_atom"}, "but the total energy is needed"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, header, keys, message):
    with pytest.raises(ValueError, match=message):
        read_atoms(write_xyz(tmp_path / "a.xyz", header), keys=keys)


def test_a_unit_of_stress_is_not_passed_over_where_there_are_virials_only(tmp_path):
    path = write_xyz(tmp_path / "a.xyz", 'energy=1 virial="1 0 0 0 1 0 0 0 1"')
    with pytest.raises(ValueError, match="virial and a unit of stress"):
        read_atoms(path, units={"stress": "GPa"})


_FORCES, _STRESS = np.arange(12.0), np.array([1.0, 2, 3, 4, 5, 6])
_MATRIX = np.array([[1.0, 6, 5], [6, 2, 4], [5, 4, 3]])


@pytest.mark.parametrize(
    ("label", "value", "is_right"),
    [
        *[("forces", _FORCES.reshape(shape), True) for shape in ((12,), (4, 3), (1, 4, 3), (4, 1, 3), (1, 12))],
        *[("forces", _FORCES.reshape(shape), False) for shape in ((3, 4), (2, 6), (2, 2, 3), (6, 2))],
        *[("stress", _STRESS.reshape(shape), True) for shape in ((6,), (1, 6), (6, 1))],
        *[("stress", _STRESS.reshape(shape), False) for shape in ((2, 3), (3, 2))],
        *[("stress", _MATRIX.reshape(shape), True) for shape in ((3, 3), (9,), (1, 3, 3), (1, 9))],
    ],
)
def test_labels_are_read_in_shapes_with_one_meaning(tmp_path, capsys, label, value, is_right):
    from ase.db import connect

    connect(tmp_path / "a.db").write(
        ase.Atoms("Cu4", np.eye(4)[:, :3] * 2, cell=np.eye(3) * 4, pbc=True), data={label: value}
    )
    if is_right:
        assert (
            read_atoms(tmp_path / "a.db")[0][label].flatten().tolist()
            == (_FORCES if label == "forces" else _STRESS).tolist()
        )
    else:
        with pytest.raises(ValueError, match=f"it has {label} of shape"):
            read_atoms(tmp_path / "a.db")
    main(["info", str(tmp_path / "a.db")])
    assert ("energies, forces or stress of a wrong size" in capsys.readouterr().out) is not is_right


@pytest.mark.parametrize("name", ["z", "pos", "cell", "pbc", "edge_index", "edge_shift", "cutoff"])
def test_no_key_takes_the_place_of_the_atoms(tmp_path, name):
    path = write_xyz(tmp_path / "a.xyz", "energy=1 level=7")
    assert read_atoms(path, keys={"level": "level"}, cutoff=3.0)[0].level.tolist() == [7]
    with pytest.raises(ValueError, match=rf"\['{name}'\] come from the atoms and not from keys"):
        read_atoms(path, keys={name: "level"}, cutoff=3.0)
