"""Collectives among processes. If one fails, the error names the processes that have ended."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from popgeo.data.flat_store import FlatStore
from popgeo.deploy.predictions import Predictions

_MEMBERS: dict[Any, list[tuple[int, str, int]]] = {}  # of each process group: ranks, machines and process numbers


def shared_out(graphs: Any, predict: Callable[[Any, int], Predictions]) -> Predictions:
    """Return predictions for all graphs. Each process of `torch.distributed` predicts a part of the graphs.

    Args:
        graphs: An iterable of graphs.
        predict: Function that predicts a list of graphs. Its second argument is the number of the first graph.
    """
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if world == 1:
        return predict(graphs, 0)
    graphs = graphs if hasattr(graphs, "__len__") else list(graphs)
    start, stop = (len(graphs) * (dist.get_rank() + i) // world for i in (0, 1))
    is_cut = isinstance(graphs, (FlatStore, list))

    def mine() -> Predictions:
        return predict(graphs[start:stop] if is_cut else [graphs[i] for i in range(start, stop)], start)

    return Predictions.concatenate(from_all("collect the predictions", mine))


def from_all(act: str, make: Callable[[], Any], group: Any = None) -> list[Any]:
    """Return what a function returns in each process of a group; raise in all of them if it raises in one.

    Args:
        act: Purpose of the exchange, for the error.
        make: The function.
        group: The process group. Default: all processes.

    Raises:
        RuntimeError: a process has ended or does not answer.
    """
    mine: Any
    try:
        mine = make()
    except Exception as error:  # the other processes wait for this one
        mine = error
    parts: list[Any] = [None] * dist.get_world_size(group)
    together(act, dist.all_gather_object, parts, mine, group=group)
    for part in parts:
        if isinstance(part, Exception):
            raise part
    return parts


def together(act: str, collective: Any, *arguments: Any, group: Any = None) -> None:
    """Run a collective.

    Args:
        act: Purpose of the collective, for the error.
        collective: A function of `torch.distributed`.
        arguments: Its arguments.
        group: The process group. Default: all processes.

    Raises:
        RuntimeError: a process has ended or does not answer; the error names its rank if it ran on this machine.
    """
    found: list[tuple[int, str, int]] = []
    group = dist.group.WORLD if group is None else group
    try:
        if group not in _MEMBERS:
            parts: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(parts, (dist.get_rank(), socket.gethostname(), os.getpid()), group=group)
            _MEMBERS[group] = parts
        found = _MEMBERS[group]
        collective(*arguments, group=group)
    except RuntimeError as error:
        here = [(rank, process) for rank, host, process in found if host == socket.gethostname()]
        ended: list[int] = []
        for _ in range(20):  # connections close shortly before a process ends
            if ended := [rank for rank, process in here if _ended(process)]:
                break
            time.sleep(0.1)
        who = f"rank {', '.join(map(str, ended))} has ended" if ended else "another rank has ended or does not answer"
        raise RuntimeError(
            f"Process {dist.get_rank()} of {dist.get_world_size()} could not {act}: {who}. Start all processes again, "
            "if this is training from the last checkpoint."
        ) from error


def _ended(process: int) -> bool:
    """Check whether a process of this machine has ended, even if its exit status has not been read yet."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except ProcessLookupError:
        return True
    except OSError:  # a process of a different user, or a system without /proc
        return False
