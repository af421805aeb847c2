"""Scripts end with one line after an external error and after Ctrl-C."""

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from popgeo.command_line import DefaultsFormatter, pyg_dataset, run
from popgeo.data import write
from tests.conftest import REPOSITORY
from tests.support import quick_python

SCRIPTS = sorted(
    path
    for folder in ("examples", "benchmarks")
    for path in (REPOSITORY / folder).glob("*.py")
    if "__main__" in path.read_text()
)
SLEEPER = "import time; from popgeo.command_line import run; run(lambda: print(1, flush=True) or time.sleep(60))"


def fails(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_ends_as_run_says(path: Path):
    assert re.search(r'if __name__ == "__main__":\n    run\(main\)\n$', path.read_text())


def test_a_file_that_cannot_be_reached_is_one_line():
    with pytest.raises(SystemExit) as ended:
        run(fails(FileNotFoundError(2, "No such file or directory", "data/QM9")))
    assert str(ended.value.code).endswith("No such file or directory: 'data/QM9'")
    assert "\n" not in str(ended.value.code)


def test_a_defect_keeps_its_trace():
    with pytest.raises(ZeroDivisionError):
        run(fails(ZeroDivisionError()))


def test_a_status_is_handed_on():
    run(lambda: 0)
    run(lambda: None)
    with pytest.raises(SystemExit) as ended:
        run(lambda: 3)
    assert ended.value.code == 3


def test_ctrl_c_ends_a_script_with_one_line():
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    script = subprocess.Popen(
        [*quick_python.command(), "-c", SLEEPER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "1\n"
    script.send_signal(signal.SIGINT)
    _, errors = script.communicate(timeout=30)
    assert script.returncode == 130
    assert errors.strip().endswith("stopped by Ctrl-C")
    assert "Traceback" not in errors


def test_a_dataset_that_is_nowhere_says_which_files_to_put_where():
    with pytest.raises(SystemExit) as ended:
        pyg_dataset(fails(OSError("no network")), "MUTAG_A.txt in data/MUTAG/raw")
    assert "(no network)" in str(ended.value.code)
    assert str(ended.value.code).endswith("Put MUTAG_A.txt in data/MUTAG/raw by hand.")


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\rb", "a\x9b2Jb", "a\u202eb", "a\x07b", "a\udc80b"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_a_file_holds_is_printed_without_control_characters(name, stream, capsys):
    run(lambda: print(f"{name}\n\tkept", file=getattr(sys, stream)))
    shown = getattr(capsys.readouterr(), stream[3:])
    assert shown == f"a{name[1:-1].encode('unicode_escape', 'surrogatepass').decode()}b\n\tkept\n"


def test_the_message_of_a_missing_file_has_no_control_characters():
    with pytest.raises(SystemExit, match=r"\\x1b\[31m"):
        run(fails(FileNotFoundError(2, "No such file \x1b[31m", "data")))


def test_the_columns_of_a_store_are_printed_without_control_characters(tmp_path):
    write(
        [Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 1).long(), **{"a\x1b[2Jb": torch.ones(1)})], tmp_path / "s"
    )
    ran = subprocess.run(
        [*quick_python.command(), "-m", "popgeo", "info", str(tmp_path / "s")], capture_output=True, check=True
    )
    assert b"\x1b" not in ran.stdout
    assert b"x1b[2Jb" in ran.stdout


def test_help_shows_a_default_of_zero_and_none_where_there_is_none():
    parser = argparse.ArgumentParser(formatter_class=DefaultsFormatter)
    for name, default in (("seed", 0), ("decay", 0.0), ("threads", None), ("key", []), ("quiet", False)):
        parser.add_argument(f"--{name}", default=default, help=f"of {name}")
    shown = parser.format_help()
    assert "of seed (default: 0)" in shown
    assert "of decay (default: 0.0)" in shown
    assert shown.count("default") == 2
