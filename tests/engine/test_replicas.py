"""Replicas that are divided over the processes of torchrun train like those of one process."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import torch

from popgeo.engine.replicas import Replicas, is_sharded, part_of
from tests.conftest import REPOSITORY
from tests.support import quick_python
from tests.support.distributed_training import OPTIONS, train


def torchrun(folder: Path, fate: str) -> subprocess.CompletedProcess:
    """Run two processes on a free port."""
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


def test_when_one_process_dies_the_other_says_so_in_time(tmp_path):
    start = time.monotonic()
    ended = torchrun(tmp_path, "dies")
    assert ended.returncode != 0
    assert re.search("Process 0 of 2 could not .*: another rank has ended or does not answer", ended.stderr)
    assert time.monotonic() - start < 60
    assert not list(tmp_path.iterdir())


def test_replicas_are_dealt_out_and_must_be_shared_evenly(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    assert Replicas.of_this_process(OPTIONS.replication_factor).local == (1, 3)
    with pytest.raises(ValueError, match="2 processes cannot share evenly"):
        Replicas.of_this_process(3)


class FakeProcesses:
    """Two processes, of which this is the second; the other's tensors are added, or received."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world_size: int = 2) -> None:
        self.sources: list[int] = []
        self.fails = False
        monkeypatch.setattr("torch.distributed.is_available", lambda: True)
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr("torch.distributed.get_world_size", lambda: world_size)
        monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
        monkeypatch.setattr("torch.distributed.all_reduce", self._add)
        monkeypatch.setattr("torch.distributed.broadcast", self._receive)

    def _add(self, tensor: torch.Tensor) -> None:
        if self.fails:
            raise RuntimeError("connection closed")
        tensor.add_(10)

    def _receive(self, tensor: torch.Tensor, src: int) -> None:
        if self.fails:
            raise RuntimeError("connection closed")
        self.sources.append(src)
        if src != 1:
            tensor.fill_(src - 7)


def test_gradients_are_added_up_and_weights_come_from_where_they_are(monkeypatch):
    others = FakeProcesses(monkeypatch, world_size=3)
    replicas = Replicas.of_this_process(3)
    assert replicas == Replicas((1,), 3)
    gradients = [torch.ones(2), torch.zeros(1)]
    replicas.add_up(gradients)
    assert [one.tolist() for one in gradients] == [[11, 11], [10]]
    divided = [torch.ones(7), torch.ones(2)]
    replicas.hand_on(divided)
    assert [one.tolist() for one in divided] == [[-7, -7, 1, 1, -5, -5, -5], [1, -5]]
    assert others.sources == [0, 1, 2, 0, 1, 2]
    weights = [torch.nn.Parameter(torch.ones(2))]
    replicas.share_weights(weights)
    assert weights[0].tolist() == [-7, -7]
    assert others.sources[6:] == [0]


def test_a_process_alone_exchanges_nothing(monkeypatch):
    others = FakeProcesses(monkeypatch, world_size=1)
    others.fails = True
    replicas = Replicas.of_this_process(3)
    assert replicas == Replicas((0, 1, 2), 1)
    tensors = [torch.ones(2)]
    for act in (replicas.add_up, replicas.hand_on, replicas.share_weights):
        act(tensors)
    assert tensors[0].tolist() == [1, 1]
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    assert Replicas.of_this_process(3) == replicas
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.is_available", lambda: False)
    assert Replicas.of_this_process(3) == replicas


def test_what_could_not_be_done_is_named_with_the_process(monkeypatch):
    others = FakeProcesses(monkeypatch)
    replicas = Replicas.of_this_process(2)
    others.fails = True
    acts = {"add up gradients": replicas.add_up, "hand on updated weights": replicas.hand_on}
    for words, act in {**acts, "share weights": replicas.share_weights}.items():
        with pytest.raises(RuntimeError, match=f"Process 1 of 2 could not {words}: another rank has ended"):
            act([torch.ones(2)])
    replicas.hand_on([])  # nothing is waited for


@pytest.mark.parametrize(("numel", "parts"), [(0, 2), (1, 3), (7, 3), (12, 4), (5, 1)])
def test_parts_are_as_equal_as_can_be_and_leave_nothing_out(numel: int, parts: int):
    found = [range(numel)[part_of(numel, number, parts)] for number in range(parts)]
    assert [element for part in found for element in part] == list(range(numel))
    assert {len(part) for part in found} <= {numel // parts, -(-numel // parts)}


def test_only_a_mark_makes_a_parameter_a_process_s_own():
    plain, marked, unmarked = (torch.nn.Parameter(torch.ones(1)) for _ in range(3))
    marked.is_sharded, unmarked.is_sharded = True, False
    assert [is_sharded(one) for one in (plain, marked, unmarked)] == [False, True, False]
