"""The wheel that a user installs: it is complete, and runs the main job without the source."""

import importlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import popgeo
from popgeo.native import library

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from the source and the wheel from the sdist; return the folder."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    # Compile each file only once and without optimisation, since the speed does not matter here.
    quickly = os.environ | {"CXXFLAGS": "-O0", "POPGEO_ISAS": "none"}
    run = subprocess.run(command, env=quickly, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


def test_the_wheel_serves_every_python_and_holds_code_and_data(dist: Path):
    (wheel,) = dist.glob("*.whl")
    assert "-py3-none-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "popgeo/__main__.py",
        "popgeo/py.typed",
        "popgeo/datasets/molecules.npz",
        "popgeo/capture/capture.py",
    ):
        assert name in names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "scripts"))]
    assert library.is_available() == ("popgeo/native/_popgeo.so" in names)


def test_the_wheel_alone_runs_the_main_job(dist: Path, tmp_path: Path):
    (wheel,) = dist.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    small = [
        "--limit",
        "100",
        "--epochs",
        "1",
        "--hidden-channels",
        "8",
        "--num-interactions",
        "1",
        "--batch-size",
        "8",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "popgeo", *small],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "popgeo-run" / "loss.png").exists()


def test_the_version_is_one_and_the_same_everywhere():
    version = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), flags=re.MULTILINE)[1]
    assert popgeo.__version__ == version
    assert f"\nversion: {version}\n" in (REPOSITORY / "CITATION.cff").read_text()
    assert f'\n  version: "{version}"\n' in (REPOSITORY / "conda" / "recipe.yaml").read_text()
    assert f"\n## [{version}], " in (REPOSITORY / "CHANGELOG.md").read_text()


def test_hooks_and_workflows_run_what_contributors_run():
    pinned = re.search(r"^ruff==(.+)$", (REPOSITORY / "requirements.txt").read_text(), flags=re.MULTILINE)[1]
    assert f"rev: v{pinned} " in (REPOSITORY / ".pre-commit-config.yaml").read_text()
    workflow = (REPOSITORY / ".github" / "workflows" / "check.yml").read_text()
    oldest = re.search(r'requires-python = ">=(.+)"', (REPOSITORY / "pyproject.toml").read_text())[1]
    assert f'"{oldest}"' in workflow
    assert "make check" in workflow


def test_the_names_that_type_checkers_see_are_those_that_are_imported():
    stub = (REPOSITORY / "popgeo" / "__init__.pyi").read_text()
    for home, name in re.findall(r"from (popgeo\S*) import (\w+) as", stub):
        source = importlib.import_module(home)
        found = importlib.import_module(f"popgeo.{name}") if home == "popgeo" else getattr(source, name)
        assert getattr(popgeo, name) is found, name
    assert set(popgeo.__all__) <= set(re.findall(r" as (\w+)", stub))
