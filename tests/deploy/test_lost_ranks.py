"""When one process of a Predictor is killed, the others end with an error that names its rank."""

import multiprocessing
import os
import signal
import socket
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from popgeo.deploy.processes import from_all


def work(rank: int, port: int, told: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    dist.init_process_group("gloo", rank=rank, world_size=3, timeout=timedelta(seconds=10))
    from_all("meet", lambda: None)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        from_all("collect the predictions", lambda: torch.ones(2))
    except RuntimeError as error:
        told.put((rank, str(error)))


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo")
def test_the_rank_that_was_killed_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    ranks = [context.Process(target=work, args=(rank, port, told)) for rank in range(3)]
    for one in ranks:
        one.start()
    found = dict(told.get(timeout=60) for _ in range(2))
    for one in ranks:
        one.join(timeout=30)
    assert found.keys() == {0, 2}
    assert any("could not collect the predictions: rank 1" in words for words in found.values()), found
    assert all("Connection" not in words for words in found.values())
