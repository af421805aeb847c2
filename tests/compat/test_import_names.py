"""`import poptorch` finds popgeo's module, one module with two names, only between enable and disable."""

import importlib
import multiprocessing
import sys

import pytest

from popgeo import compat
from tests.support.old_names import take_names_back


@pytest.fixture(autouse=True)
def no_old_names_afterwards():
    yield
    take_names_back()


def test_nothing_is_importable_before_it_is_enabled():
    take_names_back()
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
    with pytest.raises(ValueError, match="is already imported"):
        compat.enable(shadow=True)
    del sys.modules["poptorch"]  # not by monkeypatch, which would restore it later
    compat.enable(shadow=True)
    assert not hasattr(importlib.import_module("poptorch"), "real")


def test_disabling_takes_the_names_back():
    compat.enable()
    importlib.import_module("poptorch_geometric")
    compat.disable()
    assert "poptorch_geometric" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("poptorch_geometric")


def test_a_library_that_enables_and_disables_takes_nothing_from_the_program_around_it():
    compat.enable()
    poptorch = importlib.import_module("poptorch")
    compat.enable()
    assert importlib.import_module("poptorch") is poptorch
    compat.disable()
    assert importlib.import_module("poptorch") is poptorch
    assert importlib.import_module("poptorch.optim").SGD is poptorch.optim.SGD
    compat.disable()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("poptorch")


def test_shadowing_ends_with_the_enabling_that_asked_for_it(tmp_path, monkeypatch):
    (tmp_path / "poptorch.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    compat.enable()
    compat.enable(shadow=True)
    assert not hasattr(importlib.import_module("poptorch"), "real")
    compat.disable()
    assert importlib.import_module("poptorch").real
    assert importlib.import_module("poptorch_geometric").__name__.startswith("popgeo.")
    del sys.modules["poptorch"]


def test_processes_started_anew_find_the_names_and_only_while_they_are_enabled():
    compat.enable()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(eval, ("__import__('poptorch.optim').optim.SGD.__module__",)).startswith("popgeo.compat.")
    compat.enable(shadow=True)
    assert sys.path[0].endswith("doors")
    compat.disable()
    assert sys.path[-1].endswith("doors")
    compat.disable()
    assert not any(folder.endswith("doors") for folder in sys.path)
