"""`import popgeo.extensions` makes PyG's extensions importable, and PyG reports and uses them."""

import importlib
import multiprocessing
import subprocess
import sys

import pytest
import torch
from torch_geometric import backend, typing
from torch_geometric.nn import pool
from torch_geometric.utils import _scatter, segment

from popgeo import extension_path
from popgeo.extension_path import engines, provide, withdraw
from popgeo.inspect_command import info
from tests.support import quick_python

POINTS = torch.tensor([[0.0], [1.0], [5.0]])


@pytest.fixture
def nothing_provided(_extensions):
    withdraw()
    yield
    provide()


def run(code: str, *before: str, python: tuple[str, ...] = (sys.executable,), **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([*python, *before, *(["-c", code] if code else [])], capture_output=True, text=True, **kwargs)


def test_one_import_before_pyg_or_after_it_switches_the_extensions_on():
    show = (
        "from torch_geometric import typing as t; print(t.WITH_TORCH_SCATTER, t.WITH_PYG_LIB, t.WITH_KNN, t.WITH_GMM);"
    )
    switch = "import popgeo.extensions;"
    for code in (f"{switch} {show}", f"import torch_geometric.nn; {switch} {show}", f"{switch} import pyg_lib; {show}"):
        ran = run(
            f"{code} import torch_scatter, torch_cluster, pyg_lib", "-W", "error::DeprecationWarning:torch_cluster"
        )
        assert ran.stdout == "True True True False\n", ran.stderr
        assert ran.stderr.count("popgeo.extensions: torch_scatter: popgeo, torch_cluster: popgeo, pyg_lib: popgeo") == 1


def test_pyg_uses_the_extensions_only_while_they_are_provided(nothing_provided):
    with pytest.raises(ImportError, match="pyg-lib"):
        pool.knn(POINTS, POINTS, 1)
    assert _scatter.torch_scatter is object
    heuristic = backend.use_segment_matmul_heuristic
    provide()
    assert backend.use_segment_matmul_heuristic is not heuristic
    assert pool.knn(POINTS, POINTS, 2).tolist() == [[0, 0, 1, 1, 2, 2], [0, 1, 1, 0, 2, 1]]
    assert segment(POINTS, torch.tensor([[0, 1, 3]]).T[:, 0], reduce="max").tolist() == [[0.0], [5.0]]
    assert _scatter.torch_scatter is importlib.import_module("torch_scatter")
    withdraw()
    assert backend.use_segment_matmul_heuristic is heuristic
    assert not typing.WITH_KNN
    assert _scatter.torch_scatter is object
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torch_scatter")


def test_an_installed_package_wins_unless_it_shall_be_shadowed(nothing_provided, tmp_path, monkeypatch):
    (tmp_path / "torch_cluster.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    provide()
    assert importlib.import_module("torch_cluster").real
    assert engines()["torch_cluster"] == f"installed in {tmp_path}"
    assert engines()["torch_scatter"] == "popgeo"
    with pytest.raises(ValueError, match=r"torch_cluster is already imported from .*torch_cluster\.py"):
        provide(shadow=True)
    del sys.modules["torch_cluster"]
    provide(shadow=True)
    assert not hasattr(importlib.import_module("torch_cluster"), "real")
    withdraw()
    assert importlib.import_module("torch_cluster").real
    withdraw()
    del sys.modules["torch_cluster"]


def test_a_missing_function_is_an_error_with_its_name(torch_scatter):
    with pytest.raises(AttributeError, match="'torch_scatter' has no attribute 'scatter_median'"):
        _ = torch_scatter.scatter_median


def test_spawned_processes_find_the_extensions():
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        assert workers.apply(eval, ("__import__('torch_scatter').__file__",)).startswith(extension_path.FOLDER)


def test_info_names_the_engine_of_each_package(nothing_provided, capsys):
    info([])
    assert "torch_scatter: popgeo, after `import popgeo.extensions`" in capsys.readouterr().out
    provide()
    info([])
    assert "pyg_lib: popgeo\n" in capsys.readouterr().out
    withdraw()


def test_a_script_or_a_module_runs_with_the_extensions(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys, torch_scatter, here; print(torch_scatter.__version__, sys.argv[1:], here.name)\n")
    (tmp_path / "here.py").write_text("name = __name__\nprint('here', __name__)\n")
    python = quick_python.command()
    ran = run("", "-m", "popgeo.extensions", str(script), "-x", "3", python=python)
    assert ran.stdout == "here here\n2.1.2 ['-x', '3'] here\n", ran.stderr
    ran = run("", "-m", "popgeo.extensions", "-m", "here", python=python, cwd=tmp_path)
    assert ran.stdout == "here __main__\n", ran.stderr
    ran = run("", "-m", "popgeo.extensions", str(tmp_path / "no.py"), python=python)
    assert ran.returncode == 2
    assert "no.py does not exist" in ran.stderr
