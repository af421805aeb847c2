"""The main job, from the command line to its files."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import popgeo
from popgeo import command_parsers
from popgeo.__main__ import COMMANDS, main
from popgeo.data import write
from popgeo.demo import split
from popgeo.ipu.report.report import Report
from tests.support import quick_python
from tests.support.graphs import graph

SMALL = ("--limit", "300", "--epochs", "2", "--hidden-channels", "8", "--num-interactions", "1", "--batch-size", "8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the main job once; return its folder and its output."""
    folder, printed = tmp_path_factory.mktemp("main") / "new" / "run", io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([*SMALL, "--out", str(folder)]) == 0
    return folder, printed.getvalue()


def test_a_run_shows_errors_fill_and_the_step(run: tuple[Path, str]):
    _, printed = run
    for words in (
        "240 for training, 30 for validation, 30 for test",
        "validation_mae",
        "mean_predictor_mae",
        "graphs_per_second",
        "of nodes",
        "of edges",
        "of graphs",
        "test:",
    ):
        assert words in printed, printed


def test_a_run_writes_pictures_metrics_report_and_weights_and_nothing_half_done(run: tuple[Path, str]):
    folder, _ = run
    names = {path.name for path in folder.iterdir()}
    of_report = {"report.txt", "report.html", "report.json"}
    assert names == {"loss.png", "predictions.png", "metrics.csv", "weights.pt"} | of_report
    assert all(path.stat().st_size > 0 for path in folder.iterdir())


def test_a_run_ends_with_the_line_that_says_which_file_to_open(run: tuple[Path, str]):
    folder, printed = run
    assert printed.splitlines()[-1] == f"open {folder}/report.html to see what the machine did"
    assert "<html" in (folder / "report.html").read_text()


def test_a_log_file_gets_one_line_an_epoch_and_no_progress_bars(tmp_path: Path):
    small = [*SMALL, "--out", str(tmp_path / "run")]
    ended = subprocess.run([*quick_python.command(), "-m", "popgeo", "demo", *small], capture_output=True, text=True)
    assert ended.stderr == ""
    lines = [line for line in ended.stdout.splitlines() if line.startswith("epoch ")]
    assert [re.sub(r"[\d,]+(?= meV| graphs)", "N", line) for line in lines] == [
        f"epoch {epoch}/2: training N meV, validation N meV, N graphs/s" for epoch in (1, 2)
    ]


def test_the_command_tells_its_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"popgeo {popgeo.__version__}\n"


def test_the_metrics_have_one_row_an_epoch(run: tuple[Path, str]):
    metrics = pd.read_csv(run[0] / "metrics.csv")
    assert metrics["epoch"].tolist() == [1, 2]
    assert (metrics[["train_mae", "validation_mae", "mean_predictor_mae", "graphs_per_second"]] > 0).all(axis=None)


def test_the_weights_load_without_running_code(run: tuple[Path, str]):
    weights = torch.load(run[0] / "weights.pt", weights_only=True)
    assert weights["embedding.weight"].shape == (100, 8)


def test_the_same_seed_gives_the_same_errors(run: tuple[Path, str], tmp_path: Path):
    main([*SMALL, "--out", str(tmp_path)])
    columns = ["train_mae", "validation_mae"]
    again, before = pd.read_csv(tmp_path / "metrics.csv"), pd.read_csv(run[0] / "metrics.csv")
    pd.testing.assert_frame_equal(again[columns], before[columns])


def test_neighbors_can_be_found_in_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([*SMALL, "--num-neighbors", "4", "--out", str(tmp_path)]) == 0
    assert " 0 edges" in capsys.readouterr().out  # the batches have none
    assert pd.read_csv(tmp_path / "metrics.csv")["validation_mae"].notna().all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epochs", "0"], "--epochs: 0 is too small, 1 is the least"),
        (["--epochs", "many"], "--epochs: invalid int value: 'many'"),
        (["--limit", "3"], "--limit: 3 is too small, 10 is the least"),
        (["--dataset", "qm8"], "--dataset: invalid choice: 'qm8'"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
        (["--lr", "inf"], "--lr: inf is too large"),
        (["train", "a.xyz", "--ema-decay", "2"], "--ema-decay: 2 is too large, 1 is the most"),
        (["train", "a.xyz", "--valid-fraction", "1.5"], "--valid-fraction: 1.5 is too large, 1 is the most"),
        (["train", "a.xyz", "--lr-factor", "3"], "--lr-factor: 3 is too large"),
        (["train", "a.xyz", "--energy-weight", "nan"], "--energy-weight: nan is too small"),
    ],
)
def test_a_wrong_option_is_one_clear_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    message = capsys.readouterr().err
    assert stop.value.code == 2
    assert words in message
    assert message.count("\n") == 1


def test_a_command_that_there_is_not_is_one_line_with_what_was_meant(capsys: pytest.CaptureFixture[str]):
    assert main(["convrt", "a", "b"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(
        "popgeo: there is no command 'convrt', but demo, convert, info, predict, report, train, compare."
    )
    assert "Did you mean 'convert'?" in message


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"popgeo {name}" in capsys.readouterr().out.replace("[demo]", "demo")


def test_info_tells_what_a_store_holds_and_which_batches_suit_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write([graph(n % 5 + 2, 2 * n % 7 + 1, seed=n) for n in range(40)], tmp_path / "store")
    assert main(["info", str(tmp_path / "store"), "--batch-size", "8"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("40 graphs")
    assert "edge_index" in told
    assert "2, all edges" in told
    assert "for 8 graphs a batch: FixedSizeOptions(num_nodes=" in told
    assert main(["info", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("popgeo: ")


def test_a_report_that_was_kept_is_printed_and_drawn(
    run: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["report", str(run[0] / "report.json"), "--html", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().out
    assert told.startswith(str(Report.from_json((run[0] / "report.json").read_text()))[:200])
    assert "<html" in (tmp_path / "page.html").read_text()
    (tmp_path / "page.json").write_text("{}")
    assert main(["report", str(tmp_path / "page.json")]) == 2


@pytest.mark.parametrize("root", [[], ["--root", "no/such/folder"]])
def test_a_missing_root_is_one_clear_line(root: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--dataset", "qm9", *root, "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "for --dataset qm9 name an existing folder" in message
    assert message.count("\n") == 1


def test_a_root_that_pyg_cannot_read_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "raw").mkdir()
    for name in ("gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt", "qm9_v3.pt"):
        (tmp_path / "raw" / name).touch()
    (tmp_path / "processed" / "data_v3.pt").mkdir(parents=True)  # a folder where PyG expects a file
    assert main(["--dataset", "qm9", "--root", str(tmp_path), "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "popgeo: PyG can neither read nor download QM9 in --root" in message
    assert "Traceback" not in message


def test_a_limit_draws_from_all_molecules():
    ids = split(1000, limit=50, seed=0)
    drawn = [i for part in ids.values() for i in part.tolist()]
    assert [len(part) for part in ids.values()] == [40, 5, 5]
    assert len(set(drawn)) == 50
    assert max(drawn) > 500
    assert sorted(i for part in split(1000, limit=None, seed=0).values() for i in part.tolist()) == list(range(1000))


def test_an_unwritable_folder_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("not a folder")
    assert main(["--out", str(tmp_path / "file" / "run")]) == 2
    message = capsys.readouterr().err
    assert "cannot be written to: Not a directory. Name another." in message
    assert message.count("\n") == 1


def test_help_lists_every_option_with_its_default(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0
    options = vars(command_parsers.demo([], popgeo.__version__))
    for option in options:
        assert f"--{option.replace('_', '-')}" in text
    assert text.count("(default: ") == len(options)


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["convrt"], ["--no-such-option"]])
def test_help_version_and_wrong_words_need_no_torch(words: list[str]):
    program = f"""
import sys, popgeo.__main__
try:
    popgeo.__main__.main({words!r})
except SystemExit:
    pass
sys.exit(int(bool({{"torch", "numpy", "torch_geometric"}} & sys.modules.keys())))
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("text", ["<html></html>", "", "[7]", '{"schema": "other"}'])
def test_a_file_that_is_no_report_is_named_with_the_function_that_makes_one(text, tmp_path, capsys):
    (tmp_path / "report.html").write_text(text)
    assert main(["report", str(tmp_path / "report.html")]) == 2
    assert "report.html is not the JSON of a report, which report.to_json() makes. " in capsys.readouterr().err
