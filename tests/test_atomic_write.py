"""A file is the old one or the new one at any moment."""

import os

import pytest

from popgeo.atomic_write import write_atomically


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
