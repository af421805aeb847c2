"""Runs of `popgeo train` next to each other: compared, printed, started from the settings of another run."""

import json
import re
import subprocess

import pandas as pd
import pytest
import torch

from popgeo import command_parsers, plots
from popgeo.__main__ import main
from popgeo.deploy import ForceField
from popgeo.deploy.force_field import MODELS
from popgeo.train import evaluate
from popgeo.train.force_loss import LOSSES
from tests.conftest import REPOSITORY
from tests.support import quick_python
from tests.train.test_train_command import molecules, train
from tests.train.test_training_runs import saved


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that differ in their rate, and the folder that has them."""
    folder = tmp_path_factory.mktemp("runs")
    store = saved(molecules(20), folder / "store")
    for name, rate in (("slow", "0.001"), ("fast", "0.01")):
        assert train(store, folder / name, "--lr", rate, "--epochs", "2")[0] == 0
    return folder


def test_compared_runs_are_a_table_with_what_differs_and_a_picture(runs, capsys):
    assert main(["compare", str(runs / "slow"), str(runs / "fast"), "--out", str(runs / "both.png")]) == 0
    printed = capsys.readouterr().out
    table, settings = printed.split("settings that differ\n")
    assert all(name in table for name in ("slow", "fast", "best epoch", "valid loss", "test forces meV/A MAE"))
    assert settings.splitlines()[0].split() == ["lr"]
    assert (runs / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--seed", "1"], ["structures for valid", "structures for test"]), (["--loss", "mae"], ["loss differ"]),
     (["--valid-fraction", "0.2"], ["structures for valid"]), (["--forces-weight", "1"], ["forces_weight differ"])],
)  # fmt: skip
def test_numbers_that_do_not_compare_models_are_noted(options, says, runs, tmp_path, capsys):
    assert train(runs / "store", tmp_path / "other", "--epochs", "1", *options)[0] == 0
    capsys.readouterr()
    for other, has_note in ((tmp_path / "other", True), (runs / "slow", False)):
        assert main(["compare", str(runs / "fast"), str(other), "--out", str(tmp_path / "a.png")]) == 0
        printed = capsys.readouterr().out
        assert ("note: " in printed) is has_note
        assert all(words in printed for words in says) is has_note


@pytest.mark.parametrize("name", ["store", "nothing"])
def test_a_folder_that_is_no_run_is_named(runs, name, capsys):
    assert main(["compare", str(runs / "slow"), str(runs / name), "--out", str(runs / "a.png")]) == 2
    assert f"{runs / name} has no completed epoch of popgeo train" in capsys.readouterr().err


def test_equal_names_of_runs_are_told_apart_by_their_paths(runs, capsys):
    other = runs / "again" / "slow"
    other.parent.mkdir()
    other.symlink_to(runs / "slow")
    paths = [str(runs / "slow"), str(other)]
    assert main(["compare", *paths[:1], paths[1], "--out", str(runs / "a.png")]) == 0
    assert all(path in capsys.readouterr().out for path in paths[:1])


def test_info_of_a_run_and_of_a_model_tell_elements_cutoff_units_and_errors(runs, capsys):
    assert main(["info", str(runs / "fast")]) == 0
    of_run = capsys.readouterr().out
    assert "settings: " in of_run
    assert "lr=0.01" in of_run
    assert "if 0 were predicted" in of_run
    assert main(["info", str(runs / "fast" / "model.pt")]) == 0
    of_model = capsys.readouterr().out
    assert of_model.strip() == repr(ForceField.load(runs / "fast" / "model.pt"))
    for words in ("schnet", "elements: H O; cutoff: 4 angstrom", "energy eV, forces eV/A", "forces meV/A MAE"):
        assert words in of_model
        assert words in of_run
    log = pd.read_csv(runs / "fast" / "log.csv")
    best = log.loc[log["valid loss"].idxmin()]
    errors = ForceField.load(runs / "fast" / "model.pt").errors
    assert errors == pytest.approx({name: best[name] for name in errors})


def test_a_force_field_that_was_not_trained_says_that_its_errors_are_not_known():
    assert "errors in validation: not known" in repr(ForceField("schnet", {}, torch.full((100,), torch.nan)))


def test_settings_of_a_run_start_another_one_and_options_win(runs):
    settings = json.loads((runs / "fast" / "settings.json").read_text())
    words = ["--config", str(runs / "fast" / "settings.json"), "--out", str(runs / "third"), "--epochs", "1"]
    assert main(["train", *words]) == 0
    own = json.loads((runs / "third" / "settings.json").read_text())
    assert own == {**settings, "epochs": 1}
    logs = [pd.read_csv(runs / name / "log.csv").drop(columns="seconds") for name in ("fast", "third")]
    pd.testing.assert_frame_equal(logs[0][:1], logs[1])


CONFIGS = {
    "flag": ({"recompute_E0s": True}, ["--recompute-E0s"]),
    "switched off": ({"tensorboard": False, "valid": None, "key": []}, []),
    "list": ({"key": ["a=b", "c="]}, ["--key", "a=b", "--key", "c="]),
    "constant": ({"labels": "partial"}, ["--partial-labels"]),
    "default": ({"labels": "all"}, []),
    "file": ({"source": "a.xyz"}, ["a.xyz"]),
}


@pytest.mark.parametrize(("settings", "words"), CONFIGS.values(), ids=CONFIGS)
def test_each_kind_of_setting_is_its_option(settings, words, tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(settings))
    of_file = command_parsers.train(["--config", str(tmp_path / "c.json")])
    assert {**vars(of_file), "config": None} == vars(command_parsers.train(words))


@pytest.mark.parametrize("words", [["b.xyz"], ["--lr", "1", "b.xyz"], ["b.xyz", "--units", "length=nm"]])
@pytest.mark.parametrize("own", [{}, {"units": ["energy=meV"], "source": "a.xyz"}, {"source": "a.xyz", "units": []}])
def test_a_file_on_the_command_line_wins_over_the_file_in_settings_whatever_options_are_next_to_it(
    words, own, tmp_path
):
    (tmp_path / "c.json").write_text(json.dumps({"epochs": 3, **own}))
    asked = command_parsers.train(["--config", str(tmp_path / "c.json"), *words])
    assert (str(asked.source), asked.epochs) == ("b.xyz", 3)
    assert asked.units == (["length=nm"] if "--units" in words else own.get("units", []))


def test_a_run_that_began_with_settings_in_a_file_is_resumed_with_them_and_not_with_others(runs, tmp_path, capsys):
    for own, status in (({"lr": 0.01, "epochs": 3}, 0), ({"lr": 0.02}, 2)):
        (tmp_path / "c.json").write_text(json.dumps(own))
        words = ["--config", str(tmp_path / "c.json"), "--out", str(runs / "third"), "--resume"]
        if not (runs / "third").exists():
            store = str(runs / "store")
            assert main(["train", store, "--config", str(runs / "fast" / "settings.json"), *words[2:4]]) == 0
        assert main(["train", *words]) == status
    assert "has other settings: --lr was 0.01, is 0.02" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "is not JSON"), ("[1]", "has list"), ('{"lr_": 1}', r"has \['lr_'\]; its settings are source, out"),
     ('{"recompute_E0s": "true"}', 'has "true" as recompute_E0s; it is true or false'),
     ('{"labels": "Partial"}', 'has "Partial" as labels; it is "partial" or "all"'),
     ('{"forces_weight": false}', "invalid float value: 'False'"), ('{"epochs": []}', "epochs"),
     ('{"lr": "fast"}', "--lr: invalid float value"), ('{"model": "gin"}', "--model: invalid choice")],
)  # fmt: skip
def test_settings_that_no_option_takes_are_refused(text, says, tmp_path, capsys):
    (tmp_path / "c.json").write_text(text)
    try:
        status = main(["train", "--config", str(tmp_path / "c.json")])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.parametrize("option", ["--config", "--conf", "--con"])
def test_a_file_on_the_command_line_wins_over_that_of_the_settings(option, tmp_path):
    (tmp_path / "c.json").write_text('{"source": "a.xyz", "lr": 0.5}')
    for words in (["b.xyz", option, str(tmp_path / "c.json")], [option, str(tmp_path / "c.json"), "b.xyz"]):
        found = vars(command_parsers.train(words)) | {"config": None}
        assert found == vars(command_parsers.train(["b.xyz", "--lr", "0.5"]))


def test_a_missing_name_of_settings_is_said_in_one_line(capsys):
    with pytest.raises(SystemExit):
        command_parsers.train(["b.xyz", "--config"])
    assert capsys.readouterr().err == (
        "popgeo train: argument --config: expected one argument; popgeo train --help lists the options\n"
    )


def test_names_that_the_parser_knows_are_those_of_the_package():
    assert set(command_parsers.MODEL_NAMES) == MODELS.keys()
    assert set(command_parsers.LOSS_NAMES) == LOSSES.keys()


@pytest.mark.parametrize("words", [["train", "--help"], ["train", "--epoch", "x"], ["info", "--nothing"]])
def test_help_and_a_wrong_option_answer_without_torch(words):
    code = f"import sys; sys.argv = ['popgeo', *{words}]\nfrom popgeo.__main__ import command\n"
    code += "import atexit; atexit.register(lambda: print('torch' in sys.modules))\ncommand()"
    done = subprocess.run([*quick_python.command()[:1], "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout.endswith("False\n"), done.stderr


def test_curves_of_a_log_have_one_picture_for_the_loss_and_one_for_each_error(runs):
    log = pd.read_csv(runs / "fast" / "log.csv")
    axes = plots.training.error_curves(log)
    assert [one.get_ylabel() for one in axes] == [
        "loss", "energy: validation MAE (meV/atom)", "forces: validation MAE (meV/Å)"
    ]  # fmt: skip


def test_a_parity_tells_the_error_of_the_table_also_with_weights(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(evaluate, "draw", lambda ax, path: drawn.append(ax.get_title()))
    label, predicted, weight = torch.tensor([[0.0, 1.0, 2.0], [0.1, 1.0, 4.0], [1.0, 1.0, 0.0]])
    for weights in (weight, torch.ones(3)):
        pairs = {"forces": evaluate.LabelPair(label, predicted, weights)}
        evaluate.draw_parity(pairs, "", tmp_path / "a.png")
        error = float((weights * (predicted - label).abs()).sum() / weights.sum()) * 1000
        assert evaluate.errors_of(pairs)["forces meV/A MAE"] == pytest.approx(error)
        assert drawn.pop() == f"forces: MAE {error:.3g} meV/Å"


def test_both_axes_of_a_parity_have_one_scale_and_the_same_ticks():
    axes = plots.prediction_scatter([0.0, 1.0, 10.0], [0.5, 1.0, 4.0], unit="eV/Å")
    assert axes.get_xlim() == axes.get_ylim()
    assert axes.get_aspect() == 1.0
    assert [*axes.get_yticks()] == [
        tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]
    ]
