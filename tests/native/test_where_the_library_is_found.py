"""Kernels run in a source folder too, or one message names the reason and a remedy."""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import popgeo
from popgeo.__main__ import main
from popgeo.native import library
from popgeo.ops import sum_on_device
from tests.conftest import REPOSITORY

SAYS = (  # popgeo may be installed next to torch, so that folder is no longer searched once popgeo is imported
    "import site, sys, warnings; warnings.simplefilter('always'); import torch, popgeo;"
    "from popgeo.native import library; scatter = popgeo.scatter;"
    "sys.path[:] = [one for one in sys.path if one not in site.getsitepackages()];"
    "sums = [scatter(torch.ones(2, 1), torch.tensor([0, 1]), 0, dim_size=2) for _ in range(2)];"
    "print(popgeo.__file__, library.is_available(), library.reason(), sep='\\n')"
)
WARNING = "popgeo runs without its compiled kernels"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a source folder without a compiled library."""
    folder = tmp_path_factory.mktemp("clone")
    without = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(REPOSITORY / "popgeo", folder / "popgeo", ignore=without)
    shutil.copy(REPOSITORY / "setup.py", folder)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed, compiled package."""
    if not library.is_available():
        pytest.skip(library.reason())
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(REPOSITORY / "popgeo", folder / "popgeo", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def python_in(folder: Path, site: Path | None = None) -> tuple[list[str], str]:
    """Return the output and the warnings of Python in a folder, with or without an installed copy of the package."""
    environment = os.environ | {"PYTHONPATH": "" if site is None else str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, "-c", SAYS], cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines(), run.stderr


def test_python_in_a_clone_uses_the_library_of_the_installed_copy(clone: Path, site: Path):
    (file, is_available, *_), warned = python_in(clone, site)
    assert (file, is_available) == (str(clone / "popgeo" / "__init__.py"), "True")
    assert warned == ""


def test_a_clone_without_an_installed_copy_warns_once_with_the_remedy(clone: Path, tmp_path: Path):
    (file, is_available, reason), warned = python_in(clone)
    assert (file, is_available) == (str(clone / "popgeo" / "__init__.py"), "False")
    assert f"Run `pip install -e .` in {clone}" in reason
    assert "_popgeo.so is missing" in reason
    assert warned.count(WARNING) == 1
    assert reason in warned


def test_an_installed_library_of_other_sources_is_not_used_in_a_clone(clone: Path, site: Path, tmp_path: Path):
    changed = tmp_path / "clone"
    shutil.copytree(clone, changed)
    (changed / "popgeo" / "native" / "csrc" / "of_tomorrow.h").write_text("// of tomorrow\n")
    (_, is_available, reason), warned = python_in(changed, site)
    assert is_available == "False"
    assert f"{site / 'popgeo' / 'native' / '_popgeo.so'} was built from other sources" in reason
    assert f"Run `pip install -e .` in {changed}" in reason
    assert warned.count(WARNING) == 1


def test_an_installed_copy_without_a_library_says_that_it_needs_a_compiler_and_does_not_warn(
    clone: Path, tmp_path: Path
):
    shutil.copytree(clone / "popgeo", tmp_path / "site" / "popgeo")
    (_, is_available, reason), warned = python_in(tmp_path, tmp_path / "site")
    assert is_available == "False"
    assert "Install a C++17 compiler, GCC or Clang, and then popgeo again" in reason
    assert warned == ""


def test_info_without_a_file_says_whether_kernels_are_in_use(capsys: pytest.CaptureFixture[str]):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["info"]) == 0
        shown = capsys.readouterr().out
        with library.without_native():
            assert main(["info"]) == 0
    assert f"popgeo {popgeo.__version__} in {REPOSITORY / 'popgeo'}" in shown
    expected = "in use" if library.is_available() else f"not in use. {library.reason()}"
    assert f"compiled kernels: {expected}\n" in shown
    assert "compiled kernels: not in use. It is switched off by without_native()." in capsys.readouterr().out


@pytest.mark.parametrize("has_triton", [True, False])
def test_info_names_the_gpu_and_the_kernels_that_serve_it(
    has_triton: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    monkeypatch.setattr(sum_on_device, "triton_kernels", lambda: "kernels" if has_triton else None)
    assert main(["info"]) == 0
    by = "Triton kernels, as cfconv" if has_triton else r"torch.segment_reduce (Triton is not installed)"
    assert f"GPU: NVIDIA H100, sums by {by}" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["info"]) == 0
    assert "GPU: torch finds none\n" in capsys.readouterr().out
