"""`popgeo predict` for files of structures: labels are not needed, and `--keep` keeps invalid structures."""

import numpy as np
import pandas as pd
import pytest
import torch

from popgeo.__main__ import main
from popgeo.deploy.force_field import ForceField

pytest.importorskip("ase")


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    references = torch.full((100,), torch.nan)
    references[[0, 1, 8]] = torch.tensor([0.0, -13.6, -2041.0])
    ForceField("schnet", {"hidden_channels": 8, "num_interactions": 1, "cutoff": 5.0}, references).save(
        tmp_path / "m.pt"
    )
    return tmp_path / "m.pt"


def frame(rows="O 0 0 0\nH 0 0 1\n", header="", count=None):
    return f"{rows.count(chr(10)) if count is None else count}\nProperties=species:S:1:pos:R:3 {header}\n{rows}"


@pytest.mark.parametrize(
    "wrong",
    [
        frame("O 0 0 0\nH 0 0 1e\n"),
        frame("O 0 0 0\nQq 0 0 1\n"),
        frame("O 0 0 0\nX 0 0 1\n"),
        frame("O 0 0 0\nCu 0 0 1\n"),
        frame("O 0 0 0\nH 0 0 0\n"),
        frame("O 0 0 0\nH 0 0 nan\n"),
        frame("O 0 0 0\nH 0 0 1e9\n"),
        frame(header='pbc="x y z"'),
        frame(header='pbc="T T T"'),
    ],
    ids=["garbled", "symbol", "dummy", "element", "one place", "nan", "far", "pbc", "no cell"],
)
@pytest.mark.parametrize("place", [0, 1])
def test_keep_goes_on_whatever_is_wrong_with_a_structure(tmp_path, model, capsys, wrong, place):
    texts = [frame(), frame()]
    texts.insert(place, wrong)
    (tmp_path / "a.xyz").write_text("".join(texts))
    command = ["predict", str(model), str(tmp_path / "a.xyz"), "--out", str(tmp_path / "out.csv")]
    assert main(command) == 2
    assert str(place) in capsys.readouterr().err
    assert main([*command, "--keep"]) == 1
    energies = pd.read_csv(tmp_path / "out.csv")["energy"]
    assert energies.isna().tolist() == [i == place for i in range(3)]


def test_labels_are_neither_needed_nor_looked_at(tmp_path, model):
    (tmp_path / "a.xyz").write_text(frame(header="energy=nan") + frame(header="dft_energy=3") + frame())
    command = ["predict", str(model), str(tmp_path / "a.xyz"), "--out", str(tmp_path / "out.csv")]
    assert main(command) == 0
    assert len(pd.read_csv(tmp_path / "out.csv")) == 3


def test_the_stress_of_a_structure_without_a_volume_is_nan(tmp_path, model):
    cell = 'Lattice="4 0 0 0 4 0 0 0 4" pbc="T T T"'
    (tmp_path / "a.xyz").write_text(frame() + frame(header=cell))
    command = ["predict", str(model), str(tmp_path / "a.xyz"), "--out", str(tmp_path / "out.npz")]
    assert main(command) == 0
    stress = np.load(tmp_path / "out.npz")["stress"]
    assert np.isnan(stress[0]).all()
    assert np.isfinite(stress[1]).all()
