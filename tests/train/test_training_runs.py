"""What counts in a training run: weights alike everywhere, any label alone, the same data when it is resumed."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from torch.overrides import TorchFunctionMode

from popgeo import plots
from popgeo.__main__ import main
from popgeo.data import write
from popgeo.deploy import ForceField
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.resume import load_checkpoint, save_checkpoint
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn.atom_targets import element_energies
from popgeo.train.fit import Fit
from popgeo.train.training_set import as_training_set
from tests.support.fake_cuda import WAITS
from tests.train.test_train_command import SMALL, molecules, train


def changed(number=12, **values):
    """Molecules with further attributes, or other values of those that they have, by a function of their number."""
    made = molecules(number)
    for i, one in enumerate(made):
        for name, value in values.items():
            one[name] = value(i, one)
    return made


def half_wrong(i, one):
    return one.energy + (1000.0 if i % 2 else 0.0)


def saved(made, folder):
    write(made, folder)
    return folder


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return the folder of a dataset and of a run on it; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("ended")
    store = saved(changed(weight=lambda i, one: torch.ones(1)), folder / "store")
    assert train(store, folder / "run")[0] == 0
    return folder


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
@pytest.mark.parametrize("weights", [(1, 0), (3, 1), (1, 1)])
@pytest.mark.parametrize("names", [("weight",), ("energy_weight", "forces_weight")])
def test_weights_count_alike_in_training_validation_and_tables(tmp_path, loss, weights, names):
    of_all = {name: lambda i, one: torch.tensor([float(weights[i % 2])]) for name in names}
    store = saved(changed(energy=half_wrong, **of_all), tmp_path / "store")
    command = ["--valid", str(store), "--valid-fraction", "0", "--test-fraction", "0", "--lr", "0", "--epochs", "1"]
    status, printed = train(store, tmp_path / "run", *command, "--loss", loss, "--E0s", "{1: -13.6, 8: -2041.8}")
    assert status == 0
    (row,) = pd.read_csv(tmp_path / "run" / "log.csv").to_dict("records")
    assert row["train loss"] == pytest.approx(row["valid loss"], rel=1e-5)
    assert (row["train loss"] < 100) == (row["energy meV/atom MAE"] < 1e4) == (weights[1] == 0)
    assert "errors are weighted as the loss is" in printed


def test_a_structure_that_counts_for_nothing_changes_no_energy_of_an_element(tmp_path):
    store = saved(changed(energy=half_wrong, energy_weight=lambda i, one: torch.tensor([1.0 - i % 2])), tmp_path / "a")
    assert train(store, tmp_path / "run")[0] == 0
    found = ForceField.load(tmp_path / "run" / "model.pt").references[[1, 8]]
    torch.testing.assert_close(found, torch.tensor([-13.6, -2041.8], dtype=torch.float64), atol=3.0, rtol=0)


def test_energies_of_elements_are_exact_where_normal_equations_are_not():
    counts = torch.tensor([[1000, 999], [999, 998], [1, 1]])  # a condition number of 4e6, squared 2e13
    z = torch.cat([torch.tensor([1] * a + [8] * b) for a, b in counts.tolist()])
    batch = torch.arange(3).repeat_interleave(counts.sum(1))
    energy = counts.double() @ torch.tensor([-13.6, -2041.8], dtype=torch.float64)
    found = element_energies(z, batch, energy)[[1, 8]]
    torch.testing.assert_close(found, torch.tensor([-13.6, -2041.8], dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("without", ["energy", "forces"])
def test_one_label_alone_is_trained_on_with_the_other_in_the_file_or_not(tmp_path, without):
    made = molecules(12)
    for place, there in (("with", True), ("without", False)):
        if not there:
            for one in made:
                del one[without]
        store = saved(made, tmp_path / place)
        status, printed = train(store, tmp_path / f"run-{place}", f"--{without}-weight", "0")
        assert status == 0
        assert f"'{without}'" not in printed
    assert train(store, tmp_path / "none", "--energy-weight", "0", "--forces-weight", "0")[0] == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"energy": lambda i, one: one.energy * torch.nan}, "structure 0: it has energy that is not a finite number"),
        (
            {"forces": lambda i, one: torch.full_like(one.forces, torch.inf)},
            "structure 0: it has forces that is not a finite",
        ),
        ({"energy": lambda i, one: "low"}, "structure 0: it has energy of 'low', not a tensor of numbers"),
        ({"weight": lambda i, one: torch.tensor([-1.0])}, "structure 0: it has weight of -1"),
        ({"weight": lambda i, one: torch.tensor([1.0, 2.0])}, r"structure 0: it has weight of shape \[2\]"),
        ({"z": lambda i, one: torch.cat([one.z[:-1], torch.tensor([0])])}, "structure 0: it has atoms of number 0"),
        (
            {"z": lambda i, one: torch.cat([one.z[:-1], torch.tensor([110])])},
            "structure 0: it has the atomic number 110",
        ),
        ({"pos": lambda i, one: one.pos * torch.nan}, "structure 0: Positions or the cell are not finite"),
    ],
)
def test_a_structure_that_cannot_be_trained_on_is_named(tmp_path, capsys, value, message):
    store = saved(changed(4, **value), tmp_path / "store")
    assert train(store, tmp_path / "run")[0] == 2
    assert re.search(message, capsys.readouterr().err)


def test_unknown_labels_are_nan_and_count_for_nothing_if_that_is_asked_for(tmp_path):
    def some(value, i):
        return value if i % 3 else torch.full_like(value, torch.nan)

    made = changed(energy=lambda i, one: some(one.energy, i), forces=lambda i, one: some(one.forces, i + 1))
    store = saved(made, tmp_path / "store")
    assert train(store, tmp_path / "refused")[0] == 2
    status, _ = train(store, tmp_path / "run", "--partial-labels")
    assert status == 0
    assert np.isfinite(pd.read_csv(tmp_path / "run" / "log.csv")[["train loss", "valid loss"]].to_numpy()).all()


@pytest.mark.parametrize("name", ["energy", "forces", "pos", "weight", "order"])
def test_a_run_is_resumed_only_with_the_data_that_it_was_started_with(ended, tmp_path, capsys, name):
    shutil.copytree(ended / "run", tmp_path / "run")
    made = changed(weight=lambda i, one: torch.ones(1))
    other = made[::-1] if name == "order" else made
    if name != "order":
        other[3][name] = other[3][name] * 1.01
    saved(other, tmp_path / "store")
    settings = tmp_path / "run" / "settings.json"
    settings.write_text(settings.read_text().replace(str(ended / "store"), str(tmp_path / "store")))
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--epochs", "4"]) == 2
    assert "have changed since the run in" in capsys.readouterr().err


def test_a_run_is_resumed_without_typing_a_setting_again(tmp_path, capsys, monkeypatch):
    store = saved(molecules(12), tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "store", *SMALL, "--epochs", "1", "--out", "run", "--loss", "huber", "--lr", "0.01"]) == 0
    monkeypatch.chdir("/")
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--epochs", "3"]) == 0
    assert train(store, tmp_path / "whole", "--loss", "huber", "--lr", "0.01")[0] == 0
    logs = [pd.read_csv(tmp_path / name / "log.csv").drop(columns="seconds") for name in ("run", "whole")]
    pd.testing.assert_frame_equal(*logs, check_exact=True)
    capsys.readouterr()
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--lr", "0.5"]) == 2
    assert "--lr was 0.01, is 0.5" in capsys.readouterr().err
    for text in ("", "{}", "[]", "null", '{"lr": 1}'):
        (tmp_path / "run" / "settings.json").write_text(text)
        assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 2
        assert "settings.json was not written by `popgeo train`" in capsys.readouterr().err
    assert main(["train", "--out", str(tmp_path / "new")]) == 2
    assert "FILE is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.pop("checksums"),
        lambda content: content.update(checksums=3),
        lambda content: content.pop("plateau"),
        lambda content: content["plateau"].update(num_bad_epochs="many"),
        lambda content: content.update(history=[{"epoch": 7}]),
        lambda content: content["reached"].update(graphs=10**9),
        lambda content: content["reached"].update(best_epoch=-5),
        lambda content: content.update(average={}),
        lambda content: content.update(loader={}),
        lambda content: content.update(model={}),
        lambda content: content.clear(),
    ],
)
def test_a_checkpoint_that_holds_no_run_is_refused_by_name(ended, tmp_path, capsys, damage):
    shutil.copytree(ended / "run", tmp_path / "run")
    content = load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    content.pop("format", None)
    damage(content)
    save_checkpoint(tmp_path / "run" / "checkpoint.pt", content)
    capsys.readouterr()
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--epochs", "4"]) == 2
    said = capsys.readouterr().err
    assert "checkpoint.pt" in said
    assert said.count("\n") == 1


def test_a_run_from_other_weights_keeps_what_they_were_trained_with_or_fits_it_again(tmp_path, capsys):
    store = saved(molecules(12), tmp_path / "store")
    assert train(store, tmp_path / "first")[0] == 0
    init = ["--init", str(tmp_path / "first" / "model.pt"), "--lr", "0", "--epochs", "1", "--ema-decay", "0"]
    more = saved(changed(16, energy=lambda i, one: one.energy + 5.0 * len(one.z)), tmp_path / "more")
    first, fields = ForceField.load(tmp_path / "first" / "model.pt"), {}
    for name, options in (("kept", []), ("again", ["--recompute-E0s"])):
        assert main(["train", str(more), *init, *options, "--out", str(tmp_path / name)]) == 0
        fields[name] = ForceField.load(tmp_path / name / "model.pt")
        for own, before in zip(fields[name].net.parameters(), first.net.parameters(), strict=True):
            assert torch.equal(own, before)
    assert torch.equal(fields["kept"].references.nan_to_num(), first.references.nan_to_num())
    assert fields["again"].references[1] == pytest.approx(float(first.references[1]) + 5.0, abs=1.0)
    carbon = saved(molecules(12, elements=(1, 6)), tmp_path / "carbon")
    assert main(["train", str(carbon), *init, "--out", str(tmp_path / "new")]) == 0
    assert ForceField.load(tmp_path / "new" / "model.pt").elements == [1, 6, 8]
    capsys.readouterr()
    assert main(["train", str(more), *init, "--num-channels", "16", "--out", str(tmp_path / "other")]) == 2
    assert "--num-channels is 16, " in capsys.readouterr().err


def test_labels_that_contradict_each_other_are_reported_at_the_end(tmp_path):
    draw = np.random.default_rng(0)
    made = changed(forces=lambda i, one: torch.from_numpy(draw.normal(0, 5, tuple(one.forces.shape))))
    status, printed = train(saved(made, tmp_path / "store"), tmp_path / "run")
    assert status == 0
    assert "look at forces: predicting 0 would be" in printed


def test_structures_far_from_the_origin_train_like_those_near_it(tmp_path):
    logs = []
    for far in (0.0, 22_000.0):
        made = molecules(12)
        for one in made:
            one.pos = one.pos.double() + torch.tensor([far, -far, far])
        store = saved(made, tmp_path / f"store{far}")
        assert train(store, tmp_path / f"run{far}")[0] == 0
        logs.append(pd.read_csv(tmp_path / f"run{far}" / "log.csv")["train loss"])
    np.testing.assert_allclose(logs[1], logs[0], rtol=1e-3)


def test_a_label_that_one_part_lacks_is_named_with_the_way_out(tmp_path, capsys):
    pytest.importorskip("vesin")
    store = saved(changed(stress=lambda i, one: torch.zeros(1, 6), cell=cube), tmp_path / "store")
    valid = saved(molecules(4), tmp_path / "valid")
    assert train(store, tmp_path / "run", "--valid", str(valid))[0] == 2
    assert (
        "The structures of valid have no stress, the structures of train have it. Pass --stress-weight 0"
        in capsys.readouterr().err
    )
    assert train(store, tmp_path / "run", "--valid", str(valid), "--stress-weight", "0")[0] == 0


def cube(i, one):
    return 50.0 * torch.eye(3)[None]


def test_the_log_of_a_run_is_drawn_and_tensorboard_is_an_extra(tmp_path, capsys):
    store = saved(molecules(12), tmp_path / "store")
    status, _ = train(store, tmp_path / "run", "--tensorboard")
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        assert status == 2
        assert "--tensorboard needs tensorboard: pip install tensorboard." in capsys.readouterr().err
        assert train(store, tmp_path / "plain")[0] == 0
        return
    assert any((tmp_path / "run" / "tensorboard").iterdir())
    history = pd.read_csv(tmp_path / "run" / "log.csv")
    assert plots.loss_curve(history).get_yscale() == "log"
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["tensorboard"] is True


@pytest.mark.parametrize("count", [1, 3, 6, 9])
def test_stress_belongs_to_the_structure_whatever_its_number_of_atoms(count):
    pytest.importorskip("vesin")
    from popgeo.convert.atoms import with_pairs
    from tests.train.test_train_command import Data

    made = []
    for _ in range(2):
        pos = torch.rand(count, 3, dtype=torch.float64) * 9
        one = with_pairs(Data(z=torch.ones(count, dtype=torch.long), pos=pos, cell=10 * torch.eye(3)[None]), 1.0)
        one.cell, one.energy = one.cell.double(), torch.zeros(1, dtype=torch.float64)
        one.stress, one.forces = torch.zeros(1, 3, 3, dtype=torch.float64), torch.zeros(count, 3, dtype=torch.float64)
        made.append(one)
    data = as_training_set({"train": made[:1], "valid": made[1:], "test": []}, "none", torch.float32)
    axes = {one.name: one.axis.level.value for one in data.store.attributes}
    assert (axes["stress"], axes["forces"], axes["energy"]) == ("graph", "node", "graph")


def test_reads_of_tensors_in_a_run_do_not_grow_with_its_batches(tmp_path, monkeypatch):
    # Each read waits for a GPU. Loaders and compiled steps of the processor read as much as they like.
    class Reads(TorchFunctionMode):
        number = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Reads.number += getattr(func, "__name__", "") in WAITS
            return func(*args, **(kwargs or {}))

    def unseen(function):
        def call(*args, **kwargs):
            with torch._C.DisableTorchFunction():
                return function(*args, **kwargs)

        return call

    def run(self):
        with Reads():
            yield from whole(self)

    whole = Fit.run
    monkeypatch.setattr(Fit, "run", run)
    monkeypatch.setattr("popgeo.train.fit.READS_EACH", 1000.0)
    monkeypatch.setattr(CompiledStep, "__call__", unseen(CompiledStep.__call__))
    monkeypatch.setattr(
        FixedSizeDataLoader, "__iter__", unseen(lambda self, own=FixedSizeDataLoader.__iter__: iter([*own(self)]))
    )
    store, numbers = saved(molecules(24), tmp_path / "store"), []
    for size in ("4", "12"):
        before = Reads.number
        assert train(store, tmp_path / size, "--batch-size", size)[0] == 0
        numbers.append(Reads.number - before)
    assert 0 < numbers[0] == numbers[1]


def test_a_loss_that_is_not_finite_ends_the_run_with_its_value_and_keeps_the_checkpoint_before(tmp_path, capsys):
    store = saved(molecules(12), tmp_path / "store")
    assert train(store, tmp_path / "run", "--lr", "1e30")[0] == 2
    assert re.search("The loss is (nan|inf) in epoch 1. Lower --lr", capsys.readouterr().err)
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
