"""Damaged and crafted files of every kind end as they should; `scripts/fuzz_files.py` runs as many as one likes."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.fuzz.damage_files import damage
from tests.fuzz.file_formats import FORMATS


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/fuzz_files.py", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)


def test_no_damaged_file_runs_code_crashes_or_is_read_wrong():
    kinds = ["kept step", "checkpoint", "report"]
    ended = fuzz("--cases", "36", "--seed", "suite", "--kinds", *kinds)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search("^36 cases$", ended.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", ["report", "store"])
def test_damage_changes_a_file_and_nothing_beside_the_folder(tmp_path: Path, name: str):
    (tmp_path / "folder").mkdir()
    FORMATS[name].make(tmp_path / "folder")
    files = [path for path in (tmp_path / "folder").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    kinds = {
        damage(FORMATS[name], tmp_path / "folder", tmp_path / "outside", random.Random(seed)) for seed in range(12)
    }
    assert {"flip", "field"} <= kinds
    assert any(path.read_bytes() != data for path, data in before.items())
    assert not (tmp_path / "outside").exists()
