"""Readers of weights compare checksums, and refuse files that declare more than they hold."""

import io
import os
import random
import stat
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from popgeo import Predictor
from popgeo.deploy.force_field import MODELS, ForceField
from popgeo.engine.resume import load_checkpoint, save_checkpoint
from popgeo.nn import GIN
from popgeo.sealed_file import kind_of, sealed, unsealed
from popgeo.torch_archive import entries_of, read_format, write_format, written_again

SETTINGS = {"hidden_channels": 8, "num_interactions": 1, "cutoff": 5.0}


def field(name: str = "schnet") -> ForceField:
    torch.manual_seed(0)
    return ForceField(name, SETTINGS, torch.zeros(100))


def small() -> GIN:
    torch.manual_seed(0)
    return GIN(4, 8, 2, out_channels=1, readout="sum")


READERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "force field": (lambda path: field().save(path), ForceField.load),
    "checkpoint": (lambda path: save_checkpoint(path, {"model": small().state_dict()}), load_checkpoint),
    "force field as weights": (
        lambda path: field().save(path), lambda path: Predictor.from_checkpoint(path, field()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_one_flipped_bit_is_found_wherever_it_is(name: str, tmp_path: Path):
    write, read = READERS[name]
    path = tmp_path / "file.pt"
    write(path)
    read(path)
    whole, draw = path.read_bytes(), random.Random(0)
    last = range(8 * (len(whole) - 120), 8 * len(whole), 7)  # the seal
    for bit in (*draw.sample(range(8 * len(whole)), 60), *last):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"file\.pt is not a .*, or it is damaged: "):
            read(path)


def outputs(path: Path) -> dict[str, torch.Tensor]:
    predictor = Predictor.from_checkpoint(path, small(), backend="none")
    assert predictor._maker is not None
    return dict(predictor._maker.model.state_dict())


def test_a_flipped_bit_in_what_torch_wrote_is_found_or_changes_no_weight(tmp_path: Path):
    path = tmp_path / "plain.pt"
    torch.save(small().state_dict(), path)
    expected, whole = outputs(path), path.read_bytes()
    found = 0
    for bit in random.Random(0).sample(range(8 * len(whole)), 120):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            loaded = outputs(path)
        except ValueError as error:
            found += str(path) in str(error)
            continue
        assert all(torch.equal(loaded[key], expected[key]) for key in expected), bit
    assert found > 30


def test_a_file_of_a_different_kind_or_version_is_named(tmp_path: Path):
    save_checkpoint(tmp_path / "a.pt", {"model": {}})
    with pytest.raises(
        ValueError, match=r"a\.pt is not a force field of popgeo .*: its format is 'popgeo checkpoint 4'"
    ):
        ForceField.load(tmp_path / "a.pt")
    data = sealed(b"one", "note", 1)
    assert kind_of(data) == ("note", 1)
    with pytest.raises(ValueError, match=r"a\.note is a note of version 1; a note of version 2 is needed"):
        unsealed(data, "a.note", "note", 2)
    with pytest.raises(ValueError, match="is a note of version 1; a page of version 1 is needed"):
        unsealed(data, "a.note", "page", 1)
    for end in range(len(data)):
        with pytest.raises(ValueError, match="truncated, damaged or not a note"):
            unsealed(data[:end], "a.note", "note", 1)


def test_a_force_field_from_before_there_were_seals_is_read(tmp_path: Path):
    old = field()
    content = {"name": "schnet", "settings": SETTINGS, "state_dict": old.state_dict()}
    torch.save({"format": "popgeo force field 1", **content}, tmp_path / "old.pt")
    assert torch.equal(ForceField.load(tmp_path / "old.pt").net.lin1.weight, old.net.lin1.weight)
    torch.save({"format": "popgeo force field 2", **content}, tmp_path / "old.pt")
    with pytest.raises(ValueError, match="its checksum is missing"):
        ForceField.load(tmp_path / "old.pt")


def test_a_force_field_is_written_with_the_permissions_of_the_umask_and_never_half(tmp_path: Path, monkeypatch):
    before = os.umask(0o027)
    try:
        field().save(tmp_path / "model.pt")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.pt").stat().st_mode) == 0o640
    whole = (tmp_path / "model.pt").read_bytes()

    def fail(*of_the_system: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        field().double().save(tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


ABSURD: dict[str, Any] = {
    "num_interactions": 10**9, "hidden_channels": 10**6, "num_filters": 10**5, "max_num_neighbors": 10**12,
    "cutoff": "far", "readout": 7, "other": 1,
}  # fmt: skip


@pytest.mark.parametrize("key", ABSURD)
@pytest.mark.parametrize("name", MODELS)
def test_settings_that_the_weights_do_not_bear_out_are_refused_before_a_network_is_built(
    tmp_path: Path, key: str, name: str
):
    field(name).save(tmp_path / "model.pt")
    kept = read_format(tmp_path / "model.pt", "force field", 2)
    for number in (ABSURD[key], -1 if isinstance(ABSURD[key], int) else None):
        crafted = {**kept, "settings": {**kept["settings"], key: number}}
        if number is None and key == "readout":
            continue
        write_format(tmp_path / "crafted.pt", crafted, "force field", 2)
        start = time.perf_counter()
        with pytest.raises(ValueError, match=r"crafted\.pt is not a force field of popgeo: "):
            ForceField.load(tmp_path / "crafted.pt")
        assert time.perf_counter() - start < 5


@pytest.mark.parametrize("key", ["name", "settings", "state_dict"])
@pytest.mark.parametrize("value", [None, 7, "os", [], {}, {"scale": 1}, {1: 2}])
def test_a_force_field_of_odd_entries_is_an_error_that_names_the_file(tmp_path: Path, key: str, value: Any):
    field().save(tmp_path / "model.pt")
    kept = read_format(tmp_path / "model.pt", "force field", 2)
    write_format(tmp_path / "odd.pt", {**kept, key: value}, "force field", 2)
    with pytest.raises(ValueError, match=r"odd\.pt is not a force field of popgeo: "):
        ForceField.load(tmp_path / "odd.pt")


class TouchesAFile:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_nothing_in_a_file_of_weights_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_format("evil.pt", {"state_dict": TouchesAFile()}, "force field", 2)
    torch.save({"state_dict": TouchesAFile()}, "plain.pt")
    for path, read in (
        ("evil.pt", ForceField.load),
        ("plain.pt", lambda path: Predictor.from_checkpoint(path, small())),
    ):
        with pytest.raises(ValueError, match="holds more than tensors, numbers and texts, which would be executed"):
            read(path)
    assert not Path("executed").exists()


def archive(entries: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for one in entries:
            made.writestr(*one)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_torch_does_not_write_are_refused(tmp_path: Path):
    for data, why in (
        (archive([("a/x", b"1"), ("a/x", b"2")]), "the same name"),
        (archive([("a/x", b"1"), ("a/X", b"2")]), "the same name"),
        (archive([("a/x", bytes(10**6))], zipfile.ZIP_DEFLATED), "compressed"),
        (b"text", "not a whole archive"),
        (b"", "not a whole archive"),
    ):
        with pytest.raises(ValueError, match=why):
            entries_of(data)
        (tmp_path / "w.pt").write_bytes(data)
        with pytest.raises(ValueError, match=rf"w\.pt is not a file of torch\.save, or it is damaged: .*{why}"):
            Predictor.from_checkpoint(tmp_path / "w.pt", small())
    assert entries_of(written_again({"a/x": b"1"}).getvalue()) == {"a/x": b"1"}
