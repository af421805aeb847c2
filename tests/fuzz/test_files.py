"""Damaged and crafted files of every kind are read or refused; `scripts/fuzz_files.py` runs more cases."""

import random
import re
import shutil
import warnings
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.fuzz.damage_files import damage
from tests.fuzz.file_formats import FORMATS
from tests.fuzz.structure_formats import WRITERS
from tests.support import quick_python


def test_no_damaged_file_runs_code_crashes_or_is_read_wrong(monkeypatch, capsys):
    damaged(monkeypatch, capsys, ["kept step", "checkpoint", "report", "store", "part of a store"], 25)


def test_no_damaged_file_of_structures_ends_the_process(monkeypatch, capsys):
    kinds = sorted({*WRITERS} & {*FORMATS})
    if not kinds:
        pytest.skip("ase, h5py and rdkit are not installed")
    damaged(monkeypatch, capsys, kinds, 78)


def damaged(monkeypatch, capsys, kinds: list[str], cases: int) -> None:
    """Damage files in a child process, and check that each is read or refused clearly."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import fuzz_files

    monkeypatch.setattr(fuzz_files, "PYTHON", quick_python.command())
    monkeypatch.setattr("sys.argv", ["fuzz_files.py", "--cases", str(cases), "--seed", "suite", "--kinds", *kinds])
    status, said = fuzz_files.main(), capsys.readouterr().out
    assert status == 0, said
    assert re.search(rf"^{cases} cases$", said, re.MULTILINE)


@pytest.mark.parametrize("name", ["report", "store"])
def test_damage_changes_one_file_and_nothing_beside_the_folder(tmp_path: Path, name: str):
    folder = tmp_path / "folder"
    folder.mkdir()
    FORMATS[name].make(folder)
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    kinds = set()
    for seed in range(12):
        for path, data in whole.items():
            path.write_bytes(data)
        kinds.add(damage(FORMATS[name], folder, tmp_path / "outside", random.Random(seed)))
        assert sum(path.read_bytes() != data for path, data in whole.items()) <= 1
    assert len(kinds) > 2
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["atoms", "molecules"])
def test_texts_of_others_are_read_or_refused_by_name(tmp_path: Path, name: str):
    if name not in FORMATS:
        pytest.skip(f"the package that reads {name} is not installed")
    form, whole, ends = FORMATS[name], tmp_path / "whole", set()
    whole.mkdir()
    form.make(whole)
    for seed in range(60):
        folder = Path(shutil.copytree(whole, tmp_path / str(seed)))
        damage(form, folder, tmp_path / "outside", random.Random(seed))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ends.add(bool(form.use(folder)))
        except ValueError as error:  # any other error, or an error without the file's name, fails the test
            ends.add(len(str(error)) > 20)
    assert ends == {True}
