"""README's comparison rests on what the packages say when asked, not on memory."""

import importlib.util
import re

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture
def compared():
    specification = importlib.util.spec_from_file_location("compared", REPOSITORY / "benchmarks" / "compared.py")
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    return script


def test_the_installed_pyg_is_as_every_row_of_readme_says(compared, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["compared.py"])
    assert compared.main() == 0
    assert capsys.readouterr().out.count("as README says  ") == len(compared.ROWS)


def test_the_rows_are_those_of_readme(compared):
    table = (REPOSITORY / "README.md").read_text().split("## Compared")[1].split("## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)
    assert rows == list(compared.ROWS)


def test_a_row_that_does_not_hold_ends_the_run_with_a_status(compared, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["compared.py"])
    monkeypatch.setattr(compared, "ROWS", {"framework": lambda: (False, "JAX")})
    assert compared.main() == 1
    assert "NOT AS README SAYS framework: JAX" in capsys.readouterr().out
