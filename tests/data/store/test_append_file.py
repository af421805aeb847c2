"""One array on disk that grows: its bytes, its checksums, and what is found when a writer comes back to it."""

import os
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from popgeo.data.store.append_file import AppendFile
from popgeo.data.store.manifest import ArrayFile

NONE = ArrayFile(file="a.bin", dtype="int16", shape=(2, 0, 3), crc32=(0, 0))


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not say which files are open")
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the one of the listing itself
            continue
    return [link for link in links if link.startswith(str(folder))]


def whole(num_rows: int) -> torch.Tensor:
    return torch.arange(6 * num_rows, dtype=torch.int16).reshape(2, num_rows, 3)


def test_rows_that_are_appended_lie_one_after_the_other(tmp_path):
    values = whole(5)
    file = AppendFile(tmp_path, NONE, 1)
    assert [path.name for path in file.paths] == ["a.bin", "a.bin.row1"]
    for start, stop in ((0, 2), (2, 2), (2, 5)):
        file.append(values[:, start:stop])
        assert file.num_rows == stop
        assert file.entry.shape == (2, stop, 3)
        assert file.entry.crc32 == tuple(zlib.crc32(row[:stop].numpy().tobytes()) for row in values)
    file.finish()
    assert (tmp_path / "a.bin").read_bytes() == values.numpy().tobytes()
    assert open_files(tmp_path) == []


def test_the_array_is_on_disk_before_it_is_called_finished(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        "popgeo.data.store.append_file.os.fsync", lambda handle: synced.append(os.fstat(handle).st_size)
    )
    file = AppendFile(tmp_path, NONE, 1)
    file.append(whole(4))
    file.finish()
    assert synced == [2 * 4 * 3 * 2]


def test_what_was_appended_can_be_read_once_it_is_flushed(tmp_path):
    file = AppendFile(tmp_path, NONE, 1)
    file.append(whole(1))
    file.flush()
    assert [path.stat().st_size for path in file.paths] == [6, 6]
    file.close()
    assert open_files(tmp_path) == []


def test_the_last_number_is_that_of_the_last_row(tmp_path):
    file = AppendFile(tmp_path, ArrayFile(file="p.bin", dtype="int64", shape=(0,), crc32=(0,)), 0)
    file.append(torch.tensor([5, 70_000]))
    assert file.last() == 70_000
    file.append(torch.tensor([1 << 40]))
    assert file.last() == 1 << 40
    file.close()


def test_what_was_written_after_the_note_is_cut_off_and_written_anew(tmp_path):
    values = whole(4)
    file = AppendFile(tmp_path, NONE, 1)
    file.append(values[:, :2])
    noted = file.entry
    file.append(values[:, 2:] + 1)
    file.close()
    file = AppendFile(tmp_path, noted, 1)
    assert [path.stat().st_size for path in file.paths] == [12, 12]
    file.append(values[:, 2:])
    file.finish()
    assert (tmp_path / "a.bin").read_bytes() == values.numpy().tobytes()


@pytest.mark.parametrize("damage", ["changed", "shorter", "missing", "shorter, with the checksum of what is left"])
@pytest.mark.parametrize("name", ["a.bin", "a.bin.row1"])
def test_a_file_that_is_not_as_it_was_noted_is_refused_and_closed(tmp_path, damage, name):
    file = AppendFile(tmp_path, NONE, 1)
    file.append(whole(2))
    file.close()
    path, entry = tmp_path / name, file.entry
    before = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(before[:-1] + b"\xff" if damage == "changed" else before[:-1])
    if "checksum" in damage:
        entry = replace(entry, crc32=tuple(zlib.crc32((tmp_path / of.name).read_bytes()) for of in file.paths))
    with pytest.raises(ValueError, match=f"{name} was left damaged. Remove the folder {tmp_path} to start") as error:
        AppendFile(tmp_path, entry, 1)
    assert open_files(tmp_path) == [], error
