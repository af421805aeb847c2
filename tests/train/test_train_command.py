"""What `popgeo train` promises at a shell: a force field in one command, whatever interrupts it."""

import contextlib
import io
import os
import re
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close
from torch_geometric.data import Data

from popgeo.__main__ import main
from popgeo.convert.atoms import with_pairs
from popgeo.data import write
from popgeo.deploy import ForceField
from popgeo.nn import energy_and_forces
from popgeo.train import fit
from popgeo.train.training_set import read_structures
from tests.support.metals import metals

SMALL = [
    "--model",
    "schnet",
    "--num-channels",
    "8",
    "--num-interactions",
    "1",
    "--num-radial",
    "8",
    "--batch-size",
    "6",
    "--cutoff",
    "4",
]
ALONE = {1: -13.6, 8: -2041.8}  # eV


def molecules(number: int = 30, elements: tuple[int, ...] = (1, 8)) -> list[Data]:
    """Three to five atoms on springs, with energies and forces worked out by hand."""
    draw, made = np.random.default_rng(0), []
    for i in range(number):
        pos = torch.tensor(1.2 * np.arange(3 + i % 3)[:, None] + draw.normal(0, 0.2, (3 + i % 3, 3)))
        z = torch.tensor(draw.choice(elements, len(pos)))
        pos.requires_grad_()
        energy = 0.05 * (torch.pdist(pos) - 2.0).square().sum()
        (slope,) = torch.autograd.grad(energy, pos)
        total = energy.detach() + sum(ALONE.get(number, 0.0) for number in z.tolist())
        made.append(Data(z=z, pos=pos.detach(), energy=total.view(1), forces=-slope))
    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train") / "store"
    write(molecules(), folder)
    return folder


def train(store: Path, out: Path, *more: str) -> tuple[int, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(["train", str(store), *SMALL, "--epochs", "3", "--out", str(out), *more])
    return status, printed.getvalue()


@pytest.fixture(scope="module")
def run(store: Path) -> tuple[Path, str]:
    """One run: the folder it wrote and what it printed."""
    status, printed = train(store, store.parent / "run")
    assert status == 0, printed
    return store.parent / "run", printed


def test_a_run_writes_weights_log_errors_and_a_picture_and_says_how_to_go_on(run):
    folder, printed = run
    made = {
        "model.pt",
        "checkpoint.pt",
        "log.csv",
        "errors.csv",
        "summary.txt",
        "parity.png",
        "loss.png",
        "settings.json",
    }
    assert {path.name for path in folder.iterdir()} == made
    assert "24 for train, 3 for valid, 3 for test" in printed
    assert printed.splitlines()[-1] == f"use it: popgeo predict {folder}/model.pt FILE --out results.csv"
    errors = pd.read_csv(folder / "errors.csv", index_col="part")
    assert [*errors.index] == ["train", "valid", "test", "test, if 0 were predicted"]
    assert errors["forces meV/A RMSE"].gt(0).all()
    log = pd.read_csv(folder / "log.csv")
    assert log["epoch"].tolist() == [1, 2, 3]
    assert log["train loss"].iloc[-1] < log["train loss"].iloc[0]


def test_energies_of_elements_are_found_by_least_squares_and_forces_are_those_of_the_energy(run, store):
    field = ForceField.load(run[0] / "model.pt")
    assert field.elements == [1, 8]
    assert_close(field.references[[1, 8]], torch.tensor([*ALONE.values()], dtype=torch.float64), rtol=0, atol=3.0)
    assert main(["predict", str(run[0] / "model.pt"), str(store), "--out", str(store.parent / "out.npz")]) == 0
    found = np.load(store.parent / "out.npz")
    for i, one in enumerate(molecules(3)):
        one = with_pairs(one, field.cutoff)
        pos, shift = one.pos.float(), one.edge_shift.float()
        energy, forces = energy_and_forces(
            field, one.z, pos, torch.zeros_like(one.z), one.edge_index, edge_shift=shift, num_graphs=1
        )
        assert found["energy"].dtype == np.float64  # a total of thousands of eV, to the meV
        assert found["energy"][i, 0] == pytest.approx(energy.item(), abs=1e-5)
        of = slice(*found["forces.ptr"][i : i + 2])
        np.testing.assert_allclose(found["forces"][of], forces.detach().numpy(), atol=1e-5)


def test_after_ctrl_c_in_an_epoch_a_run_goes_on_as_if_it_had_not_happened(run, store, tmp_path, monkeypatch):
    batches, take = [], fit.taken_from

    def pressed(*arguments):
        batches.append(arguments)
        if len(batches) == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return take(*arguments)

    monkeypatch.setattr(fit, "taken_from", pressed)
    status, printed = train(store, tmp_path)
    assert status == 130
    assert "stopped in epoch 2" in printed
    assert ForceField.load(tmp_path / "model.pt").elements == [1, 8]
    assert len(pd.read_csv(tmp_path / "errors.csv")) == 4
    status, _ = train(store, tmp_path, "--resume")
    assert status == 0
    logs = [pd.read_csv(folder / "log.csv").drop(columns="seconds") for folder in (tmp_path, run[0])]
    pd.testing.assert_frame_equal(*logs, check_exact=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stress-weight", "1"], "has no stress, but energy, forces, pos, z; write a store that has it, "),
        (["--key", "forces="], "--key forces= leaves forces out; --forces-weight 0 trains without, or leave --key out"),
        (["--valid-fraction", "0"], "24 structures to train on and 0 to validate on|27 structures to train on and 0"),
        (["--E0s", "{1: -13.6}"], r"--E0s has no energy for the atomic numbers \[8\]"),
        (["--E0s", "most"], "--E0s is 'most'; write average, none, or energies such as"),
        (["--resume"], "holds no run to continue"),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_line(store, tmp_path, capsys, options, message):
    assert main(["train", str(store), "--out", str(tmp_path / "run"), *options]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert said.count("\n") == 1


def test_a_run_is_neither_overwritten_nor_gone_on_with_otherwise(run, store, capsys):
    assert train(store, run[0])[0] == 2
    assert "holds a run. Pass --resume" in capsys.readouterr().err
    assert train(store, run[0], "--resume", "--lr", "0.1")[0] == 2
    assert "--lr was 0.002, is 0.1" in capsys.readouterr().err


def test_elements_that_were_not_trained_on_are_told_and_never_given_a_number(run, store, tmp_path, capsys):
    write(molecules(5, elements=(1, 6)), tmp_path / "carbon")
    assert train(store, tmp_path / "run", "--valid", str(tmp_path / "carbon"))[0] == 2
    assert "Structure 0 of valid has the atomic numbers [6]" in capsys.readouterr().err
    assert main(["predict", str(run[0] / "model.pt"), str(tmp_path / "carbon"), "--out", str(tmp_path / "o.npz")]) == 2
    assert "has the atomic numbers [6], which the model was not trained on; it knows [1, 8]" in capsys.readouterr().err
    field, one = ForceField.load(run[0] / "model.pt"), with_pairs(molecules(1)[0], 4.0)
    z = torch.tensor([1, 6, 8])
    given = {"edge_shift": one.edge_shift.float(), "num_graphs": 1}
    found = energy_and_forces(field, z, one.pos.float(), torch.zeros_like(z), one.edge_index, **given)
    assert all(part.isnan().all() for part in found)


def test_a_file_that_is_no_force_field_is_refused(tmp_path):
    torch.save({"weights": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="is not a force field of popgeo"):
        ForceField.load(tmp_path / "other.pt")


def test_stress_of_periodic_structures_is_learned_from_the_file_of_ase(tmp_path, capsys):
    pytest.importorskip("ase", reason="ase is not installed: pip install '.[atoms]' in a clone")
    pytest.importorskip("vesin", reason="vesin is not installed: pip install '.[atoms]' in a clone")
    from ase.io import write as write_atoms

    crystals = [atoms for atoms in metals(40) if atoms.pbc.all()]
    write_atoms(tmp_path / "metals.xyz", crystals)
    status, printed = train(tmp_path / "metals.xyz", tmp_path / "run", "--batch_size=3", "--max_num_epochs", "1")
    assert status == 0, capsys.readouterr()
    assert "'stress': 1000.0" in printed
    assert "stress meV/A^3 MAE" in pd.read_csv(tmp_path / "run" / "errors.csv").columns
    assert train(tmp_path / "metals.xyz", tmp_path / "other", "--forces-key", "dft_forces")[0] == 2
    assert "it has no ['dft_forces'], but ['REF_energy'" in capsys.readouterr().err


@pytest.mark.parametrize(("cutoff", "status"), [("0.5", 2), ("1.2", 0), ("2.0", 0)])
def test_a_cutoff_without_neighbors_is_refused_and_one_with_few_is_named(tmp_path, capsys, cutoff, status):
    pytest.importorskip("ase", reason="ase is not installed")
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.io import write

    structures = []
    for i in range(6):  # one pair in eight atoms is 1 angstrom long, all others are 1.5 or more
        pos = [[0.0, 0, 0], [0, 0, 1 + 0.01 * i], *[[1.5 * j, 3, 0] for j in range(6)]]
        atoms = Atoms("H8", pos)
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0 - i, forces=np.full((8, 3), 0.1))
        structures.append(atoms)
    write(tmp_path / "a.xyz", structures)
    options = {"keys": {}, "units": {}, "levels": {}, "labels": "all"}
    if status == 2:
        assert main(["train", str(tmp_path / "a.xyz"), "--cutoff", cutoff, "--out", str(tmp_path / "run")]) == 2
    elif cutoff == "1.2":
        with pytest.warns(UserWarning, match=r"36 of 48 atoms .* no neighbor within the cutoff of 1\.2 angstrom"):
            read_structures(tmp_path / "a.xyz", 1.2, options, ["energy"])
    else:
        read_structures(tmp_path / "a.xyz", 2.0, options, ["energy"])
    error = capsys.readouterr().err
    assert ("48 of 48 atoms" in error and "cutoff of 0.5 angstrom" in error) == (status == 2)
