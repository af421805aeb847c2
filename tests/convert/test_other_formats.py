"""Files of other programs: all of their structures, and nothing that a format cannot hold."""

import gzip

import numpy as np
import pytest

from popgeo.convert import read_atoms
from popgeo.convert.smiles import read_smiles

ase = pytest.importorskip("ase")


def dump(path, columns, rows, periodic="pp pp pp"):
    head = f"ITEM: NUMBER OF ATOMS\n2\nITEM: BOX BOUNDS {periodic}\n0 5\n0 5\n0 5\nITEM: ATOMS {columns}\n"
    path.write_text("".join(f"ITEM: TIMESTEP\n{step}\n{head}" + "\n".join(rows) + "\n" for step in range(3)))
    return path


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("id type element x y z fx fy fz", ("2 1 Cu 0 0 0 1 2 3", "1 2 O 2 2 2 4 5 6")),
        ("id element xs ys zs fx fy fz", ("2 Cu 0 0 0 1 2 3", "1 O .4 .4 .4 4 5 6")),
        ("id type mass x y z fx fy fz", ("2 1 63.55 0 0 0 1 2 3", "1 2 16.0 2 2 2 4 5 6")),
    ],
)
def test_a_dump_with_elements_has_forces_and_no_energy(tmp_path, columns, rows):
    structures = read_atoms(dump(tmp_path / "a.lammpstrj", columns, rows, "pp ff pp"))
    assert len(structures) == 3
    for one in structures:
        assert one.z.tolist() == [8, 29]
        assert one.forces.tolist() == [[4, 5, 6], [1, 2, 3]]
        assert one.pbc.tolist() == [[True, False, True]]
        assert "energy" not in one


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        ("id type x y z fx fy fz", ("1 1 0 0 0 1 2 3", "2 2 2 2 2 4 5 6"), "types of atoms and not their elements"),
        ("type xs ys zs c_mass", ("1 0 0 0 1", "2 .4 .4 .4 1"), "types of atoms and not their elements"),
        ("id type mass x y z", ("1 1 14.027 0 0 0", "2 2 72.0 2 2 2"), "which no element has"),
    ],
)
def test_a_dump_without_elements_is_refused_packed_or_not(tmp_path, columns, rows, message):
    path = dump(tmp_path / "a.dump", columns, rows)
    with pytest.raises(ValueError, match=message):
        read_atoms(path)
    packed = tmp_path / "b.dump.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        read_atoms(packed)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("a.cube", lambda text: text, "the box of a grid"),
        ("a.gro", lambda text: text, "elements can only be guessed"),
        ("a.con", lambda text: text, "not which directions repeat"),
        ("a.pdb", lambda text: "\n".join(line[:76] for line in text.splitlines()), "without an element in columns 77"),
        (
            "a.pdb",
            lambda text: "CRYST1    1.000    1.000    1.000  90.00  90.00  90.00 P 1\n" + text,
            "means that there",
        ),
        ("a.pdb", lambda text: text.replace("  1.00  0.00", "  0.50  0.00"), "partially occupied sites"),
        ("a.cif", lambda text: text.replace("1.0000", "0.7500"), "partially occupied sites"),
        ("a.gen", lambda text: text + text, "several structures"),
        ("POSCAR", lambda text: text + text, "several structures"),
        ("coord", lambda text: text + text, "several structures"),
        ("a.cfg", lambda text: text + text, "several structures"),
        (
            "a.data",
            lambda text: "x\n\n2 atoms\n1 atom types\n\n0 5 xlo xhi\n\nAtoms\n\n1 1 0 0 0\n",
            "neither elements nor",
        ),
    ],
)
def test_nothing_that_a_reader_makes_up_is_taken(tmp_path, name, change, message):
    from ase.io import write

    atoms = ase.Atoms("NaCl", [[0, 0, 0], [0, 0, 2.5]], cell=[6, 6, 6], pbc=True)
    formats = {"a.gen": "gen", "a.data": "xyz", "a.pdb": "proteindatabank", "a.con": "eon"}
    more = {"data": np.zeros((2, 2, 2))} if name == "a.cube" else {}
    write(tmp_path / name, atoms, format=formats.get(name), **more)
    if name in ("a.gen", "POSCAR", "coord", "a.cfg"):
        assert read_atoms(tmp_path / name)[0].z.tolist() == [11, 17]
    (tmp_path / name).write_text(change((tmp_path / name).read_text()))
    with pytest.raises(ValueError, match=message):
        read_atoms(tmp_path / name)


def molecule(symbols, version="V2000", dimension="3D"):
    head = f"name\n  program 0101240000{dimension}\n\n"
    if version == "V2000":
        rows = "".join(f"{i:10.4f}{0:10.4f}{-1234.5:10.4f} {symbol:3} 0  0\n" for i, symbol in enumerate(symbols))
        return f"{head}{len(symbols):3}  0  0  0  0  0  0  0  0  0999 V2000\n{rows}M  END\n> <note>\n1\n\n"
    rows = "".join(f"M  V30 {i + 1} {symbol} {i} 0 -1234.5 0\n" for i, symbol in enumerate(symbols))
    table = f"M  V30 BEGIN CTAB\nM  V30 COUNTS {len(symbols)} 0 0 0 0\nM  V30 BEGIN ATOM\n{rows}M  V30 END ATOM\n"
    return f"{head}  0  0  0     0  0            999 V3000\n{table}M  V30 END CTAB\nM  END\n> <note>\n1\n\n"


@pytest.mark.parametrize("version", ["V2000", "V3000"])
@pytest.mark.parametrize("end", ["$$$$\n", "", "$$$$\n\n\n"])
@pytest.mark.parametrize("name", ["a.sdf", "a.sdf.gz", "A.SDF"])
def test_all_molecules_of_an_sdf_are_read(tmp_path, version, end, name):
    texts = [molecule(["C", "O", "Cl"][: 1 + i % 3] * (60 if i == 4 else 1), version) for i in range(7)]
    content = ("$$$$\n".join(texts) + end).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    structures = read_atoms(tmp_path / name)
    assert [len(one.z) for one in structures] == [1, 2, 3, 1, 120, 3, 1]
    assert structures[2].z.tolist() == [6, 8, 17]
    assert not structures[5].pbc.any()
    assert structures[2].pos[2, 0] - structures[2].pos[0, 0] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (molecule(["C", "O"], dimension="2D"), "it is a drawing"),
        (molecule(["C", "R#"]), "is not the symbol of an element"),
        (molecule(["C", "*"], "V3000"), "is not the symbol of an element"),
        (molecule(["C", "O"])[:100], "it is cut off"),
        (molecule(["C", "O"], "V3000").replace("COUNTS 2", "COUNTS 3"), "declares 3 atoms and has 2"),
    ],
)
@pytest.mark.parametrize("suffix", ["sdf", "mol"])
def test_a_wrong_molecule_is_named_by_its_number(tmp_path, text, message, suffix):
    before = "" if suffix == "mol" else molecule(["C"]) + "$$$$\n"
    (tmp_path / f"a.{suffix}").write_text(before + text)
    with pytest.raises(ValueError, match=f"structure {int(suffix == 'sdf')}: .*{message}"):
        list(read_atoms(tmp_path / f"a.{suffix}"))


@pytest.mark.parametrize("smiles", ["[Na+].[Cl-]", "CCO.O", "c1ccccc1.c1ccccc1.O", "[Cu+2].[O-]C=O.[O-]C=O"])
def test_molecules_that_smiles_only_lists_get_no_positions(tmp_path, smiles):
    pytest.importorskip("rdkit")
    (tmp_path / "a.csv").write_text(f"smiles\nCCO\n{smiles}\nC\n")
    with pytest.raises(ValueError, match=r"row 1: .* consists of several molecules"):
        list(read_smiles(tmp_path / "a.csv", positions=True))
    with pytest.warns(UserWarning, match="1 of 3 rows"):
        assert [one.smiles for one in read_smiles(tmp_path / "a.csv", positions=True, skip=True)] == ["CCO", "C"]
    assert len(list(read_smiles(tmp_path / "a.csv"))) == 3
