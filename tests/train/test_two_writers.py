"""A folder of results has one writer at a time."""

import subprocess
import sys

import pytest

from popgeo.__main__ import main
from popgeo.folder_lock import folder_lock


@pytest.mark.parametrize("words", [["train", "no-such-file.xyz"], ["demo", "--epochs", "1"]])
def test_a_second_command_in_the_same_folder_is_refused(words, tmp_path, capsys):
    with folder_lock(tmp_path):
        assert main([*words, "--out", str(tmp_path)]) == 2
    assert f"Another process is writing {tmp_path}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_was_killed_blocks_nobody(tmp_path):
    code = "import os, sys; from pathlib import Path; from popgeo.folder_lock import folder_lock\n"
    code += "with folder_lock(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with folder_lock(tmp_path):
        pass
