"""Files of atoms are read as what they say, in every format and under every name, or refused by structure."""

import importlib
import re
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from popgeo import data
from popgeo.convert import read_atoms
from popgeo.convert.atoms import LEVELS
from tests.support.write_atoms import structure, write_xyz

ase = pytest.importorskip("ase")

HARTREE = 27.211386245988


@pytest.mark.parametrize(
    ("symbol", "message"), [("X", "atoms of number 0"), ("D", "'D' is not the symbol"), ("O1", "'O1'"), ("8", "'8'")]
)
def test_an_atom_that_is_not_an_element_is_refused_by_name(tmp_path, symbol, message):
    with pytest.raises(ValueError, match=rf"structure 0: .*{message}"):
        read_atoms(write_xyz(tmp_path / "a.xyz", "energy=1", rows=(f"{symbol} 0 0 0",)))


@pytest.mark.parametrize("name", ["Properties", "properties", "PROPERTIES"])
def test_columns_are_read_whatever_letters_their_list_has_and_none_is_dropped(tmp_path, name):
    text = "1\n{}=species:S:1:pos:R:3{} energy=1\nH 0 0 0 1 2 3\n"
    (tmp_path / "a.xyz").write_text(text.format(name, ":forces:R:3"))
    assert read_atoms(tmp_path / "a.xyz")[0].forces.tolist() == [[1, 2, 3]]
    for header in (text.format(name, ""), "1\nplain\nH 0 0 0 1 2 3\n"):
        (tmp_path / "a.xyz").write_text(header)
        with pytest.raises(ValueError, match="rows have 7 columns, Properties names 4"):
            read_atoms(tmp_path / "a.xyz")


@pytest.mark.parametrize("text", ["10000000000\n\n", "-3\n\nH 0 0 0\n", "0\n\n", "5\n\nH 0 0 0\n"])
def test_a_count_of_atoms_that_the_file_cannot_hold_is_refused(tmp_path, text):
    (tmp_path / "a.xyz").write_text(text)
    with pytest.raises(ValueError, match=r"declares|cut off"):
        read_atoms(tmp_path / "a.xyz")


@pytest.mark.parametrize(
    ("header", "count"),
    [('Lattice="0.001 0 0 0 0.001 0 0 0 0.001"', 1), ("", 40_000), ('Lattice="9 0 0 0 9 0 0 0 9"', 40_000)],
)
def test_pairs_are_counted_before_they_are_listed(tmp_path, header, count):
    write_xyz(tmp_path / "a.xyz", header, rows=("H 0 0 0",) * count, count=1, lattice=False)
    with pytest.raises(ValueError, match=r"more than [\d,]+ pairs of atoms"):
        read_atoms(tmp_path / "a.xyz", cutoff=5.0)


def test_float32_holds_structures_far_from_the_origin(tmp_path):
    pytest.importorskip("vesin")
    atoms = structure(4)
    near = atoms.positions.copy()
    for far in (np.array([2e4, -3e4, 4e4]), np.array([[0, 0, 0], [20000, 0, 0], [0, -200, 0], [0, 0, 4000]])):
        for periodic in (True, False) if far.ndim == 1 else (True,):
            atoms.pbc, atoms.positions = periodic, near + far
            ase.io.write(tmp_path / "a.traj", [atoms])
            one = read_atoms(tmp_path / "a.traj", cutoff=4.0)[0]
            source, destination = one.edge_index
            lengths = (one.pos[source] + one.edge_shift - one.pos[destination]).norm(dim=1)
            wanted = (one.edge_index[0] - one.edge_index[1]).abs() * 1.5
            assert len(lengths) == 10
            torch.testing.assert_close(lengths, wanted, atol=1e-5, rtol=0)


def test_a_trajectory_that_grows_is_read_anew(tmp_path):
    from ase.io import write

    write(tmp_path / "a.traj", [structure(2)])
    first = read_atoms(tmp_path / "a.traj")
    assert len(first) == 1
    write(tmp_path / "a.traj", [structure(3), structure(4)])
    assert [len(one.z) for one in read_atoms(tmp_path / "a.traj")] == [3, 4]


def test_rows_of_an_aselmdb_are_found_whatever_was_deleted(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    import zlib

    from ase.db.row import AtomsRow
    from ase.io.jsonio import encode

    with (
        lmdb.open(str(tmp_path / "a.aselmdb"), subdir=False, map_size=2**22, lock=False) as file,
        file.begin(write=True) as writing,
    ):
        for number in (2, 5, 11):
            row = AtomsRow(structure(number % 4 + 1))
            entry = {name: row[name] for name in row if name not in ("id", "unique_id")} | {"unique_id": "u"}
            writing.put(
                str(number).encode(), zlib.compress(encode({**entry, "data": {}, "key_value_pairs": {}}).encode())
            )
        writing.put(b"bomb", zlib.compress(b"0" * 10))
    assert [len(one.z) for one in read_atoms(tmp_path / "a.aselmdb")] == [3, 2, 4]
    with (
        lmdb.open(str(tmp_path / "a.aselmdb"), subdir=False, map_size=2**22, lock=False) as file,
        file.begin(write=True) as writing,
    ):
        writing.put(b"1", zlib.compress(b"1" * (1 << 27)))
    with pytest.raises(ValueError, match=r"larger than .* bytes when unpacked"):
        read_atoms(tmp_path / "a.aselmdb")


def test_what_hdf5_links_to_or_only_declares_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")

    def damaged(damage):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            group = file.create_group("config_batch_0/config_0")
            group["atomic_numbers"], group["cell"], group["pbc"] = [29], np.eye(3) * 4, [True] * 3
            group["positions"], group["properties/energy"] = np.zeros((1, 3)), -1.0
            damage(group)
        return tmp_path / "a.h5"

    assert read_atoms(damaged(lambda group: None))[0].energy.tolist() == [-1]
    for damage, message in (
        (lambda group: group.create_dataset("properties/forces", (1 << 40,), "f8", chunks=(1 << 20,)), "declares"),
        (lambda group: group.__setitem__("properties/forces", h5py.ExternalLink("b.h5", "/x")), "is a link"),
        (lambda group: group.__setitem__("properties/forces", h5py.SoftLink("/x")), "is a link"),
        (
            lambda group: group.create_dataset("properties/forces", (1, 3), "f8", external=[("/etc/passwd", 0, 24)]),
            "another file",
        ),
    ):
        with pytest.raises(ValueError, match=re.compile(message)):
            read_atoms(damaged(damage))


@pytest.mark.parametrize("packed", ["gz", "bz2", "xz"])
def test_a_compressed_file_is_read_unless_it_unpacks_to_far_more_than_its_size(tmp_path, packed):
    module = importlib.import_module({"gz": "gzip", "bz2": "bz2", "xz": "lzma"}[packed])
    path = tmp_path / f"a.xyz.{packed}"
    for line, fits in (("plain", True), (" " * (1 << 24), False)):
        with module.open(path, "wb") as file:
            file.write(f"1\n{line}\nH 0 0 0\n".encode())
        if fits:
            assert len(read_atoms(path)) == 1
        else:
            with pytest.raises(ValueError, match="unpacks to more than a hundred times its size"):
                read_atoms(path)


@pytest.mark.parametrize("called", ["a.xyz", "A.XYZ", "a.extxyz", "a.xyz.gz", "a.extxyz.xz", "a.xyz.bz2"])
def test_extended_xyz_is_read_alike_under_every_name(tmp_path, called):
    unpacked = {"gz": "gzip", "bz2": "bz2", "xz": "lzma"}.get(called.split(".")[-1])
    write_to = importlib.import_module(unpacked).open if unpacked else open
    columns = 'Properties=species:S:1:pos:R:3 Lattice="5 0 0 0 5 0 0 0 5"'
    path = tmp_path / called
    for header, energies in (
        (f'{columns} pbc="t f .false." energy=-1', [-1.0, -1.0]),
        (f'{columns} pbc="T T T" energy=-1 energy=-2', None),
        (f'{columns} pbc="T T T" energy=-1 stress="1 2 3 4 5 6 7 8 9"', None),
        (f'{columns} pbc="T T maybe" energy=-1', None),
    ):
        with write_to(path, "wt") as file:
            file.write(2 * f"1\n{header}\nH 0 0 0\n")
        if energies is None:
            with pytest.raises(ValueError, match=r"twice|not symmetric|not understood"):
                read_atoms(path)
        else:
            structures = read_atoms(path)
            assert [one.energy.item() for one in structures] == energies
            assert all(one.pbc.tolist() == [[True, False, False]] for one in structures)


@pytest.mark.parametrize("ending", ["db", "json"])
def test_a_database_is_read_alike_in_both_of_its_formats(tmp_path, ending):
    from ase.db import connect

    path = tmp_path / f"a.{ending}"
    with connect(path) as rows:
        for energy in (-1.0, -2.0):
            rows.write(ase.Atoms("H"), REF_energy=energy, data={"REF_forces": np.full((1, 3), energy)})
        rows.metadata = {"_property_unit_dict": {"REF_energy": "Hartree", "REF_forces": "Hartree/Ang"}}
    structures = read_atoms(path)
    assert [one.energy.item() for one in structures] == pytest.approx([-HARTREE, -2 * HARTREE])
    assert structures[1].forces.tolist() == [pytest.approx([-2 * HARTREE] * 3)]


@pytest.mark.parametrize("columns", ["species:S:1:scaled_positions:R:3", "species:S:1:Pos:R:3", "element:S:1:pos:R:3"])
def test_atoms_without_positions_or_elements_are_refused(tmp_path, columns):
    path = write_xyz(tmp_path / "a.xyz", "energy=1", columns)
    with pytest.raises(ValueError, match="it has no positions or no elements"):
        read_atoms(path)


@pytest.mark.parametrize("first", ["species:S:1:Z:I:1", "Z:I:1:species:S:1", "numbers:I:1:symbols:S:1"])
@pytest.mark.parametrize(("symbol", "number", "is_right"), [("O", 8, True), ("Ow", 8, True), ("C", 8, False)])
def test_symbols_and_numbers_of_atoms_agree(tmp_path, first, symbol, number, is_right):
    row = [symbol, number] if first.startswith("species") else [number, symbol]
    path = tmp_path / "a.xyz"
    path.write_text(f"1\nProperties={first}:pos:R:3\n{row[0]} {row[1]} 0 0 0\n")
    if is_right:
        assert read_atoms(path)[0].z.tolist() == [8]
    else:
        with pytest.raises(ValueError, match="an atom is C by its symbol and O by its number"):
            read_atoms(path)


@pytest.mark.parametrize(
    "text", ["\ufeff1\n\nH 0 0 0\n", "1\n\nH 0 0 0\nH 0 0 1\n", "1\r\rH 0 0 0\r", "a\n\nH 0 0 0\n"]
)
def test_a_line_in_place_of_the_number_of_atoms_is_shown(tmp_path, text):
    (tmp_path / "a.xyz").write_bytes(text.encode())
    with pytest.raises(ValueError, match=r"structure \d begins with b.*, not with its number of atoms"):
        read_atoms(tmp_path / "a.xyz")


def test_a_folder_leaves_no_file_of_structures_out(tmp_path):
    from ase.io import write

    for count, name in enumerate(["a.xyz", "b.XYZ", "c.extxyz.gz", "d.db", "e.xyz.xz"], start=1):
        write(tmp_path / name, ase.Atoms(f"H{count}", [[0, 0, i] for i in range(count)]))
    (tmp_path / "notes.txt").write_text("not structures")
    with pytest.warns(UserWarning, match=r"notes.txt are left out: of a folder, files that end in .xyz, .* are read"):
        structures = read_atoms(tmp_path)
    assert [len(one.z) for one in structures] == [1, 2, 3, 4, 5]


ROUNDED = {"all electrons": (-2.1e6, 4, True), "two atoms": (-8e4, 2, True), "positive": (9e5, 8, True),
           "more atoms": (-1.5e4, 12, False), "small": (-500.0, 4, False)}  # fmt: skip


@pytest.mark.parametrize(("energy", "num_atoms", "is_rounded"), ROUNDED.values(), ids=ROUNDED)
def test_energies_that_float32_rounds_are_warned_of_when_read_and_when_trained_on(
    tmp_path, energy, num_atoms, is_rounded
):
    from ase.io import write

    from popgeo.train.training_set import read_structures

    write(tmp_path / "a.xyz", [structure(num_atoms, energy=energy + i) for i in range(2)])
    options = {"keys": {}, "units": {}, "levels": {}, "labels": "all"}
    with pytest.warns(UserWarning, match="rounded by more than 0.1 meV") if is_rounded else nullcontext():
        graphs = list(read_atoms(tmp_path / "a.xyz"))
    data.write(graphs, tmp_path / "store", levels=LEVELS)
    with pytest.warns(UserWarning, match="rounded by more than 0.1 meV") if is_rounded else nullcontext():
        read_structures(tmp_path / "store", 2.0, options, ["energy"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_atoms(tmp_path / "a.xyz", double=True)[0].energy.item() == energy


@pytest.mark.parametrize("sizes", [(3, 3, 1), (3, 1, 3), (2, 4, 1), (1, 1, 1), (12, 1)])
def test_groups_of_an_hdf5_file_may_have_any_size(tmp_path, sizes):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for batch, size in enumerate(sizes):
            for number in range(size):
                group = file.create_group(f"config_batch_{batch}/config_{number}")
                group["atomic_numbers"], group["positions"] = [1], np.zeros((1, 3))
                group["cell"], group["pbc"] = np.zeros((3, 3)), [False] * 3
                group.create_group("properties")["energy"] = float(sum(sizes[:batch]) + number)
    assert [one.energy.item() for one in read_atoms(tmp_path / "a.h5")] == list(range(sum(sizes)))
