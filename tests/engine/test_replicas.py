"""Replicas divided over the processes of torchrun train like those of one process."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import torch

from popgeo.engine.replicas import Replicas
from tests.conftest import REPOSITORY
from tests.support import quick_python
from tests.support.distributed_training import OPTIONS, train


def torchrun(folder: Path, fate: str) -> subprocess.CompletedProcess:
    """Two processes on a port that is free."""
    # torchrun ends the others when one has died; looking every two seconds, it leaves them the time to say so.
    python = quick_python.command()
    command = [*python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--monitor-interval=2"]
    command += ["--no-python", *python, "-m", "tests.support.distributed_training", str(folder), fate]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=120)


def test_two_processes_train_like_one(tmp_path):
    ended = torchrun(tmp_path, "lives")
    assert ended.returncode == 0, ended.stderr
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    losses, model = train()
    assert len(losses) >= 4
    of_replica = torch.stack([part["losses"] for part in parts], dim=-1)  # replica j * 2 + rank runs on a rank
    torch.testing.assert_close(of_replica.flatten(1), torch.stack(losses), rtol=1e-9, atol=1e-9)
    for part in parts:
        torch.testing.assert_close(part["model"], dict(model.state_dict()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fate", ["dies", "hangs"])
def test_when_one_process_is_lost_the_other_says_so_in_time(tmp_path, fate):
    start = time.monotonic()
    ended = torchrun(tmp_path, fate)
    assert ended.returncode != 0
    assert re.search("Process 0 of 2 could not .*: another process has died or does not answer", ended.stderr)
    assert time.monotonic() - start < 60
    assert not list(tmp_path.iterdir())


def test_replicas_are_dealt_out_and_must_be_shared_evenly(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    assert Replicas.of_this_process(OPTIONS.replication_factor).local == (1, 3)
    with pytest.raises(ValueError, match="2 processes cannot share evenly"):
        Replicas.of_this_process(3)
