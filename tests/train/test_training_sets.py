"""Structures that serve what is asked of them, or a training that does not begin: labels, heads, weights, energies."""

import contextlib
import io
import re
import warnings

import numpy as np
import pandas as pd
import pytest

from popgeo.__main__ import main
from tests.train.test_train_command import SMALL

ase = pytest.importorskip("ase")
pytest.importorskip("vesin")


def structures(count=12, seed=0, labels=("energy", "forces", "stress"), **info):
    from ase.calculators.singlepoint import SinglePointCalculator

    draw, made = np.random.default_rng(seed), []
    for i in range(count):
        pos = np.arange(2 + i % 2)[:, None] * 1.4 + draw.normal(0, 0.1, (2 + i % 2, 3))
        atoms = ase.Atoms(["Cu", "O", "O"][: len(pos)], pos, cell=[7] * 3, pbc=True)
        energy = -3.0 - draw.random()
        results = {"energy": energy, "forces": draw.normal(size=pos.shape), "stress": draw.normal(size=6) / 100}
        results |= {"free_energy": energy - 0.3 * (i > 4)}  # not in the first structures
        atoms.calc = SinglePointCalculator(atoms, **{name: results[name] for name in labels})
        atoms.info |= {name: value(i) if callable(value) else value for name, value in info.items()}
        made.append(atoms)
    return made


def written(path, *arguments, **options):
    from ase.io import write

    path.parent.mkdir(exist_ok=True)
    write(path, structures(*arguments, **options))
    return path


@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run(tmp_path, *words):
    """Run a training and return its status, its output and its errors."""
    out, err = io.StringIO(), io.StringIO()
    folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    with quiet(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["train", *map(str, words), *SMALL, "--epochs", "1", "--out", str(folder)])
    return status, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("kept", [("energy",), ("energy", "stress"), ("energy", "forces"), ("forces", "stress")])
@pytest.mark.parametrize("place", ["first", "second", "tenth"])
def test_a_folder_of_which_one_file_lacks_a_label_is_refused(tmp_path, kept, place):
    for i in (1, 2, 10):
        lacks = i == {"first": 1, "second": 2, "tenth": 10}[place]
        written(tmp_path / "set" / f"s{i}.xyz", 5, i, kept if lacks else ("energy", "forces", "stress"))
    missing = min({"energy", "forces", "stress"} - {*kept})
    status, _, said = run(tmp_path, tmp_path / "set")
    assert status == 2
    assert f"as {missing}" in said
    assert f"s{ {'first': 2, 'second': 2, 'tenth': 10}[place] }.xyz, structure 0" in said
    assert f"--{missing}-weight 0" in said
    assert "--partial-labels" in said
    if place == "second" and missing != "energy":
        without = [f"--{name}-weight=0" for name in ("energy", "forces", "stress") if name not in kept]
        status, printed, _ = run(tmp_path, tmp_path / "set", *without)
        assert status == 0
        assert missing not in printed.split("learns ")[1].split("}")[0]


def test_files_of_a_folder_may_call_the_same_labels_otherwise(tmp_path):
    path = written(tmp_path / "set" / "b.xyz", 6, 1, ("energy", "forces"))
    path.write_text(path.read_text().replace("forces", "REF_forces").replace(" energy=", " REF_energy="))
    written(tmp_path / "set" / "a.xyz", 6, 2, ("energy", "forces"))
    status, printed, said = run(tmp_path, tmp_path / "set")
    assert status == 0, said
    assert "'energy': 100.0, 'forces': 100.0" in printed


@pytest.mark.parametrize("where", ["one file", "two files", "valid", "test", "one file without"])
def test_two_heads_are_not_trained_on_as_one(tmp_path, where):
    if where.startswith("one"):
        words = [written(tmp_path / "a.xyz", 20, head=lambda i: ["dft", "ccsd"][i == 19])]
    elif where == "two files":
        written(tmp_path / "set" / "a.xyz", 10, head="dft")
        words = [written(tmp_path / "set" / "b.xyz", 10, 1, head="ccsd").parent]
    else:
        words = [written(tmp_path / "a.xyz", head="dft"), f"--{where}", written(tmp_path / "b.xyz", 4, 1, head="ccsd")]
    if where == "one file without":
        status, printed, _ = run(tmp_path, *words, "--key", "head=")
        assert status == 0
        return
    status, printed, said = run(tmp_path, *words)
    assert status == 2
    assert "There are several heads: ccsd (structure" in said
    assert "--head NAME" in said
    status, _, said = run(tmp_path, *words, "--head", "mp2")
    assert status == 2
    assert "no structure of the head 'mp2'" in said
    status, printed, said = run(tmp_path, *words, "--head", "dft")
    if where in ("valid", "test"):
        assert status == 2
        assert "b.xyz has no structure of the head 'dft'; it has ['ccsd']" in said
    else:
        assert status == 0
        counts = [int(word) for word in printed.split("structures: ")[1].splitlines()[0].split() if word.isdecimal()]
        assert sum(counts) == (19 if where == "one file" else 10)


@pytest.mark.parametrize("part", ["train", "valid", "test"])
@pytest.mark.parametrize("key", ["config_weight", "each"])
def test_a_part_in_which_nothing_counts_is_refused(tmp_path, part, key):
    names = [key] if key != "each" else [f"config_{name}_weight" for name in ("energy", "forces", "stress")]
    good, idle = written(tmp_path / "good.xyz"), written(tmp_path / "idle.xyz", 4, 1, **dict.fromkeys(names, 0.0))
    status, printed, said = run(tmp_path, *{"train": [idle, "--valid", good]}.get(part, [good, f"--{part}", idle]))
    assert status == 2
    assert f"of {part}" in said
    assert "weight" in said
    assert printed.count("it is 0 in all structures") == len(names)


@pytest.mark.parametrize("label", ["energy", "forces", "stress"])
def test_a_label_that_counts_nowhere_in_one_part_is_named(tmp_path, label):
    weight = {f"config_{label}_weight": 0.0}
    good, idle = written(tmp_path / "good.xyz"), written(tmp_path / "idle.xyz", 4, 1, **weight)
    status, printed, _ = run(tmp_path, good, "--valid", idle)
    assert status == 0
    assert f"note: {label} counts in no structure for valid" in printed
    status, printed, said = run(tmp_path, idle, "--valid", good)
    assert status == 2
    assert f"{label} counts in no structure of train" in said
    assert f"--{label}-weight 0" in said


def test_a_stress_that_counts_nowhere_is_not_learned_unless_it_is_asked_for(tmp_path):
    idle = written(tmp_path / "idle.xyz", config_stress_weight=0.0)
    status, printed, _ = run(tmp_path, idle)
    assert status == 0
    assert "'stress'" not in printed
    assert run(tmp_path, idle, "--stress-weight", "1")[0] == 2


@pytest.mark.parametrize("value", [0.0, -7.25])
def test_energies_that_are_one_number_are_refused(tmp_path, value):
    from ase.io import write

    made = structures()
    for one in made:
        one.calc.results["energy"] = value
    write(tmp_path / "a.xyz", made)
    status, _, said = run(tmp_path, tmp_path / "a.xyz")
    assert status == 2
    assert f"energies to train on are {value:g} eV, though the structures differ" in said
    status, printed, _ = run(tmp_path, tmp_path / "a.xyz", "--energy-weight", "0")
    assert status == 0
    assert "'energy'" not in printed


@pytest.mark.parametrize(
    ("values", "table"),
    [
        (
            {"spin": lambda i: [1, 3][i > 6]},
            "spin not read (--key spin=spin); 1 in structure 0 of a.xyz, 3 in structure 7",
        ),
        ({"multiplicity": lambda i: 1 + i % 2}, "multiplicity not read (--key multiplicity=multiplicity); 1 in"),
        ({"total_spin": 2}, "total_spin not read (--key total_spin=total_spin)"),
        (
            {"solvent": lambda i: ["water", "none"][i == 11]},
            "solvent not read; 'water' in structure 0 of a.xyz, 'none' in",
        ),
        (
            {"field": lambda i: np.array([0.0, 0, i])},
            "field not read; [0.0, 0.0, 0.0] in structure 0 of a.xyz, [0.0, 0.0",
        ),
        ({"head": lambda i: ["dft", "ccsd"][i % 2]}, "head head; 'dft' in structure 0 of a.xyz, 'ccsd' in structure 1"),
        ({"note": "same"}, ""),
    ],
)
def test_info_and_train_print_one_table_of_what_is_not_read(tmp_path, capsys, values, table):
    path = written(tmp_path / "a.xyz", **values)
    with quiet():
        assert main(["info", str(path)]) == 0
    of_info = capsys.readouterr().out
    _, of_train, _ = run(tmp_path, path)
    for printed in (of_info, of_train):
        assert table in " ".join(printed.split())
        assert bool(table) or "note" not in printed.split("note: ")[0]


def test_a_value_that_differs_between_two_files_of_a_folder_is_found(tmp_path):
    written(tmp_path / "set" / "a.xyz", 6, 0, state=1)
    written(tmp_path / "set" / "b.xyz", 6, 1, state=2)
    printed = run(tmp_path, tmp_path / "set")[1]
    assert "state not read; 1 in structure 0 of a.xyz, 2 in structure 0 of b.xyz" in " ".join(printed.split())


@pytest.mark.parametrize("name", ["a.xyz", "a.traj", "a.db"])
def test_an_energy_that_forces_do_not_belong_to_is_told_with_the_option_that_reads_the_other(tmp_path, name):
    from popgeo.convert import read_atoms

    path = written(tmp_path / name, labels=("energy", "forces", "free_energy"))
    words = "free_energy (--key energy=free_energy; forces and stress are derivatives of it, energy is 0.3 eV from it)"
    structures = read_atoms(path)
    with pytest.warns(UserWarning, match="not read: free_energy") as told:
        before = [one.energy.item() for one in structures]
    assert words in str(told[0].message)
    after = [one.energy.item() for one in read_atoms(path, keys={"energy": "free_energy"})]
    assert np.subtract(before, after) == pytest.approx([0.0] * 5 + [0.3] * 7, abs=1e-4)
    assert len(list(read_atoms(path, keys={"energy": "energy"}))) == 12  # without a warning
    assert "free_energy not read (--key energy=free_energy" in " ".join(run(tmp_path, path)[1].split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--key", "charge=charge"], "--key charge=charge names something that no model of popgeo train takes"),
        (["--level", "charge=graph"], "--level charge=graph names something"),
        (["--key", "weight=wieght"], "No structure has 'wieght', the requested key of weight"),
        (["--key", "forces_weight=w"], "No structure has 'w', the requested key of forces_weight"),
    ],
)
def test_an_option_that_would_not_be_used_is_refused(tmp_path, words, message):
    status, _, said = run(tmp_path, written(tmp_path / "a.xyz", charge=0), *words)
    assert status == 2
    assert message in said


@pytest.mark.parametrize("words", [["--energy-key", "dft_energy"], ["--units", "energy=kcal/mol"], ["--key", "head=h"]])
def test_options_on_keys_and_units_are_not_lost_on_a_store(tmp_path, words):
    assert main(["convert", str(written(tmp_path / "a.xyz")), str(tmp_path / "store")]) == 0
    status, _, said = run(tmp_path, tmp_path / "store", *words)
    assert status == 2
    assert f"is a store of popgeo, and {'--units' if '--units' in words else '--key'}" in said


@pytest.mark.parametrize(
    ("kind", "part"), [("same", "valid"), ("copy", "test"), ("link", "valid"), ("moved", "test"), ("store", "valid")]
)
def test_structures_that_are_trained_on_and_judged_by_are_told(tmp_path, kind, part):
    path = other = written(tmp_path / "a.xyz")
    if kind == "copy":
        other = written(tmp_path / "b.xyz")
    elif kind == "link":
        other = tmp_path / "c.xyz"
        other.symlink_to(path)
    elif kind == "moved":
        other = written(tmp_path / "folder" / "d.xyz").parent
    elif kind == "store":
        other = tmp_path / "store"
        assert main(["convert", str(path), str(other)]) == 0
    printed = run(tmp_path, path, f"--{part}", other)[1]
    assert f"note: 11 of 12 structures for {part} are among those for train, too" in printed
    if kind == "same":
        assert "among those" not in run(tmp_path, path, f"--{part}", written(tmp_path / "e.xyz", seed=5))[1]


def test_energies_of_elements_that_do_not_follow_are_told(tmp_path, capsys):
    path = written(tmp_path / "a.xyz", 3)  # CuO, CuO2
    one = tmp_path / "b.xyz"
    one.write_text("".join(f"2\nenergy={-1 - i / 10}\nCu 0 0 0\nO 0 0 {2 + i / 10}\n" for i in range(12)))
    for words, told in (([one], True), ([path, "--valid", path], False), ([one, "--E0s", "{8: -1, 29: -2}"], False)):
        status, printed, said = run(tmp_path, *words, *(["--forces-weight", "0"] if words[0] == one else []))
        assert status == 0, said
        assert ("note: Energies of the elements 8, 29 do not follow" in printed) == told
    assert main(["info", str(one)]) == 0
    assert "Energies of the elements 8, 29 do not follow" in capsys.readouterr().out


def test_a_table_of_keys_has_the_unit_of_each_file_and_one_row_for_files_that_agree(tmp_path, capsys):
    for name, info in (("a", {"energy_unit": "kcal/mol"}), ("b", {}), ("c", {}), ("d", {})):
        written(tmp_path / "set" / f"{name}.xyz", 4, ord(name), ("energy",), **info)
    assert main(["info", str(tmp_path / "set")]) == 0
    rows = {" ".join(row.split()) for row in capsys.readouterr().out.splitlines()}
    assert f"{tmp_path}/set/a.xyz energy energy (times 0.0433641)" in rows
    assert f"{tmp_path}/set/b.xyz and 2 more energy energy" in rows


@pytest.mark.parametrize("units", ["length=bohr", "forces=eV/angstrom", ""])
def test_a_unit_in_the_name_of_a_key_is_not_settled_by_the_unit_of_something_else(tmp_path, units):
    path = written(tmp_path / "a.xyz", labels=("energy", "forces"))
    path.write_text(path.read_text().replace(" energy=", " E_kcal="))
    status, _, said = run(tmp_path, path, "--energy-key", "E_kcal", *(["--units", units] if units else []))
    assert status == 2
    assert "the name of 'E_kcal' says kcal, and no unit of energy is given" in said


@pytest.mark.parametrize(
    ("label", "name", "unit"),
    [
        ("energy", "energy_kcal", "energy=kcal/mol"),
        ("energy", "dft_energy_Hartree", "energy=eV"),
        ("energy", "E_ha", ""),
    ],
)
def test_a_unit_in_the_name_of_a_key_is_not_passed_over(tmp_path, label, name, unit):
    path = written(tmp_path / "a.xyz", labels=("energy", "forces"))
    path.write_text(path.read_text().replace(" energy=", f" {name}="))
    status, _, said = run(tmp_path, path, f"--{label}-key", name)
    assert status == 2
    assert f"the name of {name!r} says" in said
    assert "--units energy=" in said
    if unit:
        assert run(tmp_path, path, f"--{label}-key", name, "--units", unit)[0] == 0


def test_files_come_in_natural_order_and_results_name_them(tmp_path):
    for i in (10, 2, 1):
        written(tmp_path / "set" / f"s{i}.xyz", 3 + i, i)
    (tmp_path / "set" / "notes.txt").write_text("nothing")
    assert run(tmp_path, tmp_path / "set" / "s10.xyz")[0] == 0
    (model,) = tmp_path.glob("*/model.pt")
    for ending in ("csv", "npz"):
        with pytest.warns(UserWarning, match="notes.txt are left out"):
            assert main(["predict", str(model), str(tmp_path / "set"), "--out", str(tmp_path / f"o.{ending}")]) == 0
    expected = ["s1.xyz"] * 4 + ["s2.xyz"] * 5 + ["s10.xyz"] * 13
    assert pd.read_csv(tmp_path / "o.csv")["file"].tolist() == expected
    assert np.load(tmp_path / "o.npz")["files"].tolist() == expected
    of_nodes = pd.read_csv(tmp_path / "o.nodes.csv")
    assert of_nodes["file"].tolist() == [expected[graph] for graph in of_nodes["graph"]]
    assert main(["predict", str(model), str(tmp_path / "set" / "s2.xyz"), "--out", str(tmp_path / "one.csv")]) == 0
    assert "file" not in pd.read_csv(tmp_path / "one.csv")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.xyz", "There is no file or folder"),
        ("run", "is a run of popgeo train, not a set of structures: see"),
        ("model.pt", "popgeo predict .*model.pt FILE uses a model"),
        ("a.npz", "UnknownFileTypeError.*Files that end in .xyz, .extxyz, .*can be read"),
        ("store.d", "has no file with one of the endings"),
    ],
)
@pytest.mark.parametrize("command", ["info", "train"])
def test_what_cannot_be_read_is_said_once_with_what_can(tmp_path, capsys, command, name, message):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.pt").write_text("")
    (tmp_path / "store.d").mkdir()
    (tmp_path / "model.pt").write_text("x")
    np.savez(tmp_path / "a.npz", a=1)
    words = [] if command == "info" else ["--out", str(tmp_path / "out")]
    assert main([command, str(tmp_path / name), *words]) == 2
    printed = capsys.readouterr()
    assert len(re.findall(message, printed.out + printed.err)) == 1
