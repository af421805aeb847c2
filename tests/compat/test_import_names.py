"""`import poptorch` finds popgeo's module, one module under two names, and only while it is asked to."""

import importlib
import sys

import pytest

from popgeo import compat


@pytest.fixture(autouse=True)
def take_names_back():
    yield
    compat.disable()


def test_nothing_is_importable_before_it_is_enabled():
    compat.disable()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("poptorch")


def test_both_names_are_one_module():
    compat.enable()
    poptorch = importlib.import_module("poptorch")
    assert poptorch is importlib.import_module("popgeo.compat.poptorch")
    assert poptorch.__spec__.name == "popgeo.compat.poptorch"


def test_an_installed_package_is_not_shadowed_unless_asked(tmp_path, monkeypatch):
    (tmp_path / "poptorch.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    compat.enable()
    assert importlib.import_module("poptorch").real
    with pytest.raises(ValueError, match="imported already"):
        compat.enable(shadow=True)
    monkeypatch.delitem(sys.modules, "poptorch")
    compat.enable(shadow=True)
    assert not hasattr(importlib.import_module("poptorch"), "real")


def test_disabling_takes_the_names_back():
    compat.enable()
    importlib.import_module("poptorch_geometric")
    compat.disable()
    assert "poptorch_geometric" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("poptorch_geometric")
