"""Replicas divided over processes train like those of one process."""

import subprocess
import sys
import textwrap

import pytest
import torch

from popgeo.ipu import Options, training_model
from popgeo.ipu.replicas import Replicas
from tests.conftest import REPOSITORY
from tests.ipu.test_contract import Line, make_data

WORKER = textwrap.dedent("""
    import os, sys
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    from popgeo.ipu import Options, training_model
    from tests.ipu.test_contract import Line, make_data
    dist.init_process_group("gloo")
    rank, dies = dist.get_rank(), sys.argv[2] == "dies"
    model = Line(slope=float(rank))  # the first process's weights win
    options = Options(replication_factor=4, gradient_accumulation=2, output_mode="all")
    step = training_model(model, options, torch.optim.Adam(model.parameters(), lr=0.1))
    losses = []
    for number in range(3):
        if dies and rank == 1 and number == 2:
            os._exit(1)
        x, y = make_data(4 * 8, seed=number)
        mine = [t.view(2, 2, -1)[:, rank].reshape(-1) for t in (x, y)]
        losses.append(step(*mine)[1])
    torch.save({"losses": losses, "model": model.state_dict()}, f"{sys.argv[1]}/{rank}.pt")
    dist.destroy_process_group()
""")


def run_two_processes(folder, mode: str) -> list[subprocess.CompletedProcess]:
    processes = []
    for rank in range(2):
        environment = {
            **__import__("os").environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(29000 + hash(str(folder)) % 2000),
        }  # fmt: skip
        command = [sys.executable, "-c", WORKER, str(folder), mode]
        processes.append(subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True))
    ended = [(process.communicate()[1], process) for process in processes]
    return [subprocess.CompletedProcess(p.args, p.returncode, stderr=text) for text, p in ended]


def test_two_processes_train_like_one(tmp_path):
    for process in run_two_processes(tmp_path, "lives"):
        assert process.returncode == 0, process.stderr
    model = Line()
    options = Options(replication_factor=4, gradient_accumulation=2, output_mode="all")
    step = training_model(model, options, torch.optim.Adam(model.parameters(), lr=0.1))
    expected = torch.stack([step(*make_data(4 * 8, seed=number))[1] for number in range(3)])
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    # [calls, accumulation, ranks, replicas of a rank]
    together = torch.stack([torch.stack(part["losses"]).view(3, 2, 2) for part in parts], dim=2)
    torch.testing.assert_close(together.reshape(3, 8), expected)
    for part in parts:
        torch.testing.assert_close(part["model"], dict(model.state_dict()))


def test_when_one_dies_the_other_says_so(tmp_path):
    first, second = run_two_processes(tmp_path, "dies")
    assert second.returncode == 1
    assert first.returncode != 0
    assert "another process has died or does not answer" in first.stderr


def test_replicas_that_cannot_be_shared_evenly_are_refused(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    assert Replicas.of_this_process(4).local == (2, 3)
    with pytest.raises(ValueError, match="2 processes cannot share evenly"):
        Replicas.of_this_process(3)
