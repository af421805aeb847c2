"""The comparison in docs/compared.md agrees with the installed packages."""

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


def test_the_installed_pyg_is_as_every_row_of_the_page_says(compared, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["compared.py"])
    assert compared.main() == 0
    assert capsys.readouterr().out.count("as the page says  ") == len(compared.ROWS)


def test_the_rows_are_those_of_the_table_with_pyg(compared):
    table, *_ = (REPOSITORY / "docs" / "compared.md").read_text().split("\n## ")
    rows = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)
    assert rows == list(compared.ROWS)


def test_a_row_that_does_not_hold_ends_the_run_with_a_status(compared, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["compared.py"])
    monkeypatch.setattr(compared, "ROWS", {"framework": lambda: (False, "JAX")})
    assert compared.main() == 1
    assert "NOT AS THE PAGE SAYS framework: JAX" in capsys.readouterr().out
