"""If one of two processes dies, the other raises an error that says so, soon after the group's time-out."""

import importlib.util
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support import quick_python
from tests.support.lost_ranks import FATES, TIMEOUT

LATEST = TIMEOUT.total_seconds() + 10


def start(folder: Path, fate: str, rank: int, port: int) -> subprocess.Popen:
    command = [*quick_python.command(), "-m", "tests.support.lost_ranks", str(folder), "step", fate]
    ranks = {"RANK": f"{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    with (folder / f"log {rank}").open("w") as log:
        return subprocess.Popen(command, cwd=REPOSITORY, env=os.environ | ranks, stderr=log)


def test_the_other_process_is_told_in_time_however_one_is_lost(tmp_path):
    pairs = {}
    for fate in FATES:
        (tmp_path / fate).mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pairs[fate] = [start(tmp_path / fate, fate, rank, port) for rank in range(2)]
    try:
        for fate, (first, _) in pairs.items():
            assert first.wait(timeout=90) == 1, fate
            told = (tmp_path / fate / "told").read_text()
            assert "Process 0 of 2 could not add up gradients: another rank has ended or does not answer" in told
            assert float(told.partition("\n")[0]) < LATEST, told
    finally:
        for process in (process for pair in pairs.values() for process in pair):
            process.kill()
            process.wait()


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("trainer", ["lightning", "accelerate"])
def test_under_other_trainers_too(tmp_path, trainer, fate):
    if importlib.util.find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed")
    python = quick_python.command()
    command = [*python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=2"]
    command += ["--no-python", *python, "-m", "tests.support.lost_ranks", str(tmp_path), trainer, fate]
    # torchrun itself waits long for a process that is stopped, so nobody waits for torchrun
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while not (tmp_path / "told").exists() and running.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        seconds, _, told = (tmp_path / "told").read_text().partition("\n")
    finally:
        for pid in [*map(int, (tmp_path / "pids").read_text().split()), running.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        running.wait()
    assert float(seconds) < LATEST
    assert any(word in told for word in ("Connection closed by peer", "Connection reset by peer", "Timed out")), told
