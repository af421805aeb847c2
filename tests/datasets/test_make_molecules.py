"""The script that makes the molecules: its file can be made again, and its targets computed again."""

import sys
from collections.abc import Iterator
from importlib import resources
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from popgeo.datasets import Molecules

Chem = pytest.importorskip("rdkit.Chem", reason="rdkit is not installed: pip install '.[molecules]' in a clone")
pytest.importorskip("tblite.interface", reason="tblite is not installed: pip install '.[molecules]' in a clone")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    if not SCRIPTS.is_dir():
        pytest.skip(f"{SCRIPTS} is absent")
    sys.path.insert(0, str(SCRIPTS))
    import make_molecules

    yield make_molecules
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def shipped() -> dict[str, np.ndarray]:
    with resources.files("popgeo.datasets").joinpath("molecules.npz").open("rb") as file, np.load(file) as npz:
        return dict(npz)


@pytest.fixture(scope="module")
def molecules() -> Molecules:
    return Molecules()


@pytest.mark.parametrize("index", [0, 1, 777, 4_000, 19_999])
def test_targets_come_out_again_at_the_stored_positions(script, molecules, index):
    data = molecules[index]
    homo, lumo, dipole, energy = script.compute_targets(data.z.numpy(), data.pos.double().numpy())
    # float32 holds an energy of -1,000 eV to 6e-5; another version of tblite may stop its iterations elsewhere.
    np.testing.assert_allclose(data.y[0].numpy(), [homo, lumo, lumo - homo, dipole, energy], atol=2e-3, rtol=0)


def test_targets_follow_the_positions(script, molecules):
    data = molecules[0]
    stretched = script.compute_targets(data.z.numpy(), 1.03 * data.pos.double().numpy())
    assert abs(stretched[3] - float(data.y[0, 4])) > 0.05


@pytest.mark.parametrize("index", [0, 5, 12_345])
def test_bonds_spell_the_smiles(molecules, index):
    data = molecules[index]
    mol = Chem.RWMol()
    for z in data.z.tolist():
        mol.AddAtom(Chem.Atom(z))
    kinds = (Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE, Chem.BondType.AROMATIC)
    for (a, b), kind in zip(data.edge_index.T.tolist(), data.edge_attr.argmax(dim=1).tolist(), strict=True):
        if a < b:
            mol.AddBond(a, b, kinds[kind])
            if kinds[kind] == Chem.BondType.AROMATIC:
                mol.GetAtomWithIdx(a).SetIsAromatic(True)
                mol.GetAtomWithIdx(b).SetIsAromatic(True)
    for atom in mol.GetAtoms():
        atom.SetNoImplicit(True)
    Chem.SanitizeMol(mol)
    assert Chem.MolToSmiles(Chem.RemoveHs(mol)) == data.smiles


def test_the_seed_grows_the_shipped_molecules_again(script, shipped):
    assert shipped["versions"].tolist()[0].startswith("rdkit ")
    if shipped["versions"].tolist()[0] != f"rdkit {version('rdkit')}":
        pytest.skip(f"the file was made with {shipped['versions'][0]}, here is {version('rdkit')}")
    again = list(islice(script.records(int(shipped["seed"])), 6))
    assert [record.smiles for record in again] == [smiles.decode() for smiles in shipped["smiles"][:6]]
    pos = np.concatenate([record.pos for record in again])
    # Another processor may round the last step of a relaxation differently; 20 steps of the grid are 0.01 angstrom.
    np.testing.assert_allclose(pos, shipped["pos"][: len(pos)], atol=20)


def test_the_same_seed_gives_the_same_file_and_another_seed_another(script, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        script.main(["--seed", str(seed), "--count", "5", "--out", str(tmp_path / name)])
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    with np.load(tmp_path / "a") as npz:
        assert len(npz["smiles"]) == 5


def test_a_molecule_that_falls_apart_is_noticed(script):
    mol = script.relaxed("CCO", 0)
    assert script.keeps_its_bonds(mol)
    conformer = mol.GetConformer()
    conformer.SetAtomPosition(0, [value + 1.0 for value in conformer.GetAtomPosition(0)])
    assert not script.keeps_its_bonds(mol)


def test_the_lowest_conformer_avoids_trans_fused_small_rings(script):
    # Vinylhousane: cis-fused it lies about 18 kcal/mol below trans-fused, and only the latter has a gap near 1 eV.
    homo, lumo, *_ = script.make_record("C=CC12CCC1C2", 0).targets * script.TARGET_STEP
    assert lumo - homo > 3


@pytest.mark.parametrize("smiles", ["COOC", "NN", "OCO", "C=C=C", "C1=CC1", "OF", "NNN", "C1CC2=CC1C2", "C=CO", "N=O"])
def test_what_would_not_survive_is_not_grown(script, smiles):
    assert not script.grow.is_plausible(Chem.MolFromSmiles(smiles))


@pytest.mark.parametrize(
    "smiles", ["CC(N)=O", "c1ccoc1", "Cc1nc[nH]n1", "C1CC2CC1CO2", "CC#N", "CON=CC", "c1ccc2occc2c1"]
)
def test_what_stands_on_shelves_may_be_grown(script, smiles):
    assert script.grow.is_plausible(Chem.MolFromSmiles(smiles))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count", "0"], "at least 1"),
        (["--seed", "-1"], "0 to"),
        (["--out", "/nowhere/at/all.npz"], "does not exist; make it first"),
    ],
)
def test_wrong_options_get_one_clear_line(script, capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        script.main(arguments)
    assert message in capsys.readouterr().err.splitlines()[-1]
