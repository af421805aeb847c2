"""At any moment, a file has its old content or its new content."""

import errno
import os
import subprocess
import sys
import time

import pytest

from popgeo.atomic_write import write_atomically
from popgeo.folder_lock import LOCK, folder_lock


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "made" / "step"
    write_atomically(path, b"old")
    for act in ("fsync", "replace"):

        def fail(*of_it: object) -> None:
            raise OSError("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(os, act, fail)
            with pytest.raises(OSError, match="no space left"):
                write_atomically(path, b"new")
        assert [found.name for found in path.parent.iterdir()] == ["step"]
        assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_only_old_temporary_files_of_dead_processes_are_removed(tmp_path):
    path = tmp_path / "run.pt"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    digits = "0123456789abcdef"
    mine = ["run.pt-download.part", "run.pt.part", "run.pt.1.part", f"run.pt.popgeo-{ended.pid}-{digits}.part.bak",
            f"other.popgeo-{ended.pid}-{digits}.part"]  # fmt: skip
    kept = [f"run.pt.popgeo-{os.getpid()}-{digits}.part", f"run.pt.popgeo-{ended.pid}-{digits[::-1]}.part"]
    left = f"run.pt.popgeo-{ended.pid}-{digits}.part"
    for name in (*mine, *kept, left):
        (tmp_path / name).write_text("mine")
        if name != kept[1]:  # the last file is new
            os.utime(tmp_path / name, (time.time() - 4000,) * 2)
    link = tmp_path / f"run.pt.popgeo-{ended.pid}-{digits.replace('0', 'f')}.part"
    link.symlink_to(tmp_path / "run.pt.part")
    os.utime(link, (time.time() - 4000,) * 2, follow_symlinks=False)
    write_atomically(path, b"x")
    assert {found.name for found in tmp_path.iterdir()} == {*mine, *kept, link.name, "run.pt"}


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask_and_those_of_the_old_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "new", b"x")
        write_atomically(tmp_path / "private", b"x", is_private=True)
        write_atomically(tmp_path / "old", b"x")
        (tmp_path / "old").chmod(0o640)
        write_atomically(tmp_path / "old", b"y")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"new": 0o666 & ~mask, "private": 0o600, "old": 0o640}


def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path, monkeypatch):
    bystander = tmp_path / "bystander"
    bystander.write_bytes(b"mine")
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 16)
    (tmp_path / f"a.popgeo-{os.getpid()}-{'0' * 16}.part").symlink_to(bystander)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "a", b"x")
    assert bystander.read_bytes() == b"mine"


FULL = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from popgeo.atomic_write import write_atomically
from popgeo.folder_lock import LOCK, folder_lock
try:
    write_atomically(Path(sys.argv[1]), b"x" * 5000)
except OSError as error:
    print(error.filename)
"""


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    path = tmp_path / "run.pt"
    write_atomically(path, b"old")
    ran = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(path)
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_long_name_can_be_written(tmp_path):
    write_atomically(tmp_path / ("x" * 250), b"x")
    assert (tmp_path / ("x" * 250)).read_bytes() == b"x"


HOLDS = "import sys, time; from pathlib import Path; from popgeo.folder_lock import folder_lock\n"
HOLDS += "with folder_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def test_a_second_writer_is_refused_until_the_first_is_dead(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=f"Another process is writing {tmp_path}"), folder_lock(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with folder_lock(tmp_path), pytest.raises(ValueError, match="Another process"), folder_lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "bystander").touch()
    (tmp_path / LOCK).symlink_to(tmp_path / "bystander")
    with pytest.raises(ValueError, match="is a link"), folder_lock(tmp_path):
        pass


def test_a_file_system_without_locks_is_used_without_one(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", fail)
    with folder_lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
