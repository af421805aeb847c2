"""Captured steps of several processes add up their gradients within the step, on a fake of the CUDA calls."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from popgeo.engine.compile_step import compile_forward, compile_step
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_options import StepOptions
from tests.conftest import REPOSITORY
from tests.support import quick_python
from tests.support.captured_on_ranks import NUM_CALLS, Forces, make_call, train
from tests.support.fake_cuda import FakeCuda


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Path:
    """Return the folder in which two processes have trained; afterwards the second has left."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [*quick_python.command(), "-m", "tests.support.captured_on_ranks", str(folder)]
    processes = [
        subprocess.Popen([*command, str(rank)], cwd=REPOSITORY, env=os.environ | {"OMP_NUM_THREADS": "1"})
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=100) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return folder


def of_ranks(folder: Path, parts: int) -> list[dict]:
    return [torch.load(folder / f"{parts} parts, {rank}.pt", weights_only=True) for rank in range(2)]


def test_two_processes_have_the_bits_of_one_that_accumulates(cuda: FakeCuda, ended: Path):
    found = of_ranks(ended, parts=2)
    losses, model, _ = train(0, 1, 2)
    of_micro_batch = torch.stack([one["losses"] for one in found], dim=-1).flatten(1)
    assert torch.equal(of_micro_batch, torch.stack(losses))
    for one in found:
        assert all(map(torch.equal, one["weights"], model.state_dict().values()))
        assert one["replays"] == NUM_CALLS - 1 - 3  # one call before the reset, and three that run eagerly


def test_captured_updates_follow_the_mean_of_all_gradients(ended: Path):
    torch.manual_seed(0)
    model = Forces()
    optimizer = torch.optim.Adam(model.parameters(), lr=2**-5)
    for number in range(NUM_CALLS):
        optimizer.zero_grad()
        torch.stack([model(*part) for part in make_call(number, 4)]).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
    first, second = of_ranks(ended, parts=4)
    torch.testing.assert_close(first["weights"], [*model.state_dict().values()], rtol=1e-4, atol=1e-5)
    assert all(map(torch.equal, first["weights"], second["weights"]))
    assert first["blocks"] == 2  # one for each type of the weights, in spite of two micro-batches


def test_a_process_that_waits_for_a_lost_one_says_so(ended: Path):
    told = (ended / "told").read_text()
    assert re.search("Process 0 of 2 could not add up gradients: another rank has ended or does not answer", told)


def test_a_process_runs_one_replica_on_its_gpu(cuda: FakeCuda):
    model = nn.Linear(2, 1)
    step = compile_forward(model, backend="cuda", options=StepOptions(replication_factor=2))
    with pytest.raises(ValueError, match=r"replication_factor is 2, but .* one replica .*Choose 1, the number of proc"):
        step(torch.ones(4, 2))


def test_only_nccl_exchanges_within_a_graph(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: "cpu:gloo,cuda:gloo")
    with pytest.raises(ValueError, match=r"by cpu:gloo,cuda:gloo, but a CUDA graph .*init_process_group\('nccl'\)"):
        Replicas((1,), 2).require_one_per_gpu(torch.device("cuda:1"))
    Replicas((0,), 1).require_one_per_gpu(torch.device("cuda:1"))
    monkeypatch.setattr("torch.distributed.get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    Replicas((1,), 2).require_one_per_gpu(torch.device("cuda:1"))


def test_a_wrapper_that_exchanges_gradients_is_named(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch):
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = nn.Linear(2, 1)
    model = nn.Sequential(wrapped)
    with pytest.raises(ValueError, match=r"wrapped in DistributedDataParallel.*Pass the module inside, model\.module"):
        compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="cuda")
