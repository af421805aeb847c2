"""`python -m popgeo.compat` runs scripts and notebooks as Python and Jupyter do, with the old names."""

import json
import sys

import pytest
import torch

from popgeo.compat.__main__ import main
from popgeo.compat.notebook import python_lines, run_notebook
from tests.support.old_names import take_names_back


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command in this process, and return its status and output."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["__main__.py", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        try:
            status = main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    yield run
    take_names_back()


def write_notebook(path, *cells):
    kinds = [{"cell_type": "code", "source": source} for source in cells]
    path.write_text(json.dumps({"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "# Title"}, *kinds]}))
    return path


def test_a_script_runs_with_its_arguments_and_shows_its_own_lines_when_it_fails(run, tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "old.py").write_text(
        "import sys\nimport poptorch\nfrom beside import NAME\n"
        "print(__name__, sys.argv[1:], NAME, poptorch.Options().device_iterations)\n"
        "def fail():\n    open('missing file')\nfail()\n"
    )
    status, printed, errors = run("old.py", "--epochs", "3")
    assert printed == "__main__ ['--epochs', '3'] beside 1\n"
    assert status == 1
    lines = errors.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "old.py" in lines[1]
    assert "in <module>" in lines[1]
    assert lines[-1].startswith("FileNotFoundError")
    assert "popgeo" not in errors


def test_a_script_ends_with_the_status_that_it_chooses(run, tmp_path):
    (tmp_path / "old.py").write_text("import sys\nsys.exit(7)\n")
    assert run("old.py") == (7, "", "")


def test_a_missing_file_is_one_line(run):
    status, _, errors = run("none.py")
    assert status == 2
    assert errors.count("\n") == 1
    assert "file none.py does not exist" in errors


def test_a_notebook_runs_in_its_folder_and_says_what_it_leaves_out(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)
    (tmp_path / "data.txt").write_text("17")
    path = write_notebook(
        tmp_path / "old.ipynb",
        "%pip install \\\n  poptorch\nimport pickle",
        [
            "class Thing:\n",
            "    pass\n",
            "import pathlib\nnumber = int(pathlib.Path('data.txt').read_text())\n",
            "number + 1",
        ],
        "%%bash\nexit 1",
        "%%time\nsize = len(pickle.dumps(Thing()))\nsize > 0;",
        "if number:\n    !ls\ntext = '''\n!kept\n'''\ndisplay(text)\nfiles = !ls\nnumber?",
    )
    run_notebook(path)
    shown = capsys.readouterr()
    assert shown.out == "18\n\n!kept\n\n"
    skipped = [line.partition("skipped ")[2] for line in shown.err.splitlines()]
    assert skipped == ["%pip install \\", "poptorch", "%%bash", "%%time", "!ls", "files = !ls", "number?"]
    assert "old.ipynb: cell 1: skipped" in shown.err


def test_a_notebook_has_no_file_that_a_new_process_would_run(tmp_path, capsys):
    run_notebook(write_notebook(tmp_path / "old.ipynb", "import sys\nhasattr(sys.modules['__main__'], '__file__')"))
    assert capsys.readouterr().out == "False\n"


def test_an_error_names_the_notebooks_cell(run, tmp_path):
    path = write_notebook(tmp_path / "old.ipynb", "import poptorch", "x = 1\nraise KeyError('gone')")
    status, _, errors = run(path)
    assert status == 1
    assert 'old.ipynb[cell 2]", line 2' in errors
    assert "raise KeyError('gone')" in errors
    assert "popgeo" not in errors


def test_what_is_no_notebook_is_refused(tmp_path):
    path = tmp_path / "old.ipynb"
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not a notebook of version 4"):
        run_notebook(path)


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("x = 10 \\\n  % 3", ["x = 10 \\", "  % 3"]),
        ("print(10\n% 3)", ["print(10", "% 3)"]),
        ("# is it?", ["# is it?"]),
        ("y = x  # why?", ["y = x  # why?"]),
    ],
)
def test_python_that_looks_like_a_magic_is_kept(source, kept):
    assert python_lines(source) == (kept, [])


def test_torch_is_as_before_when_a_program_has_run(tmp_path, monkeypatch):
    empty = torch.empty
    (tmp_path / "old.py").write_text("import torch\nassert not torch.empty(64).any()\n")
    monkeypatch.setattr(sys, "argv", ["__main__.py", str(tmp_path / "old.py")])
    assert main() is None
    assert torch.empty is empty


def test_pickles_of_a_program_are_read_if_its_files_are_trusted(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "")  # the command sets it for child processes
    torch.save(torch.nn.Linear(2, 3), tmp_path / "model.pt")
    (tmp_path / "old.py").write_text("import torch\nprint(torch.load('model.pt').out_features)\n")
    status, printed, errors = run("old.py")
    assert (status, printed) == (1, "")
    assert errors.endswith("If you trust the file: python -m popgeo.compat --trust-files old.py\n")
    with pytest.warns(UserWarning, match="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        assert run("--trust-files", "old.py")[:2] == (None, "3\n")
