"""Errors of collectives that name the processes which have ended."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

_MEMBERS: dict[Any, list[tuple[int, str, int]]] = {}  # of each process group: ranks, machines and process numbers


def meet(group: Any = None) -> None:
    """Exchange the numbers of the group's processes, so that errors can name them; only the first call does so.

    All processes of the group must call the function. The default group has all processes.
    """
    group = dist.group.WORLD if group is None else group
    if group not in _MEMBERS:
        parts: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, (dist.get_rank(), socket.gethostname(), os.getpid()), group=group)
        _MEMBERS[group] = parts


@contextlib.contextmanager
def names_lost_process(act: str, group: Any = None) -> Iterator[None]:
    """Raise an error of `torch.distributed` again with the action that failed and a remedy.

    Args:
        act: Purpose of the collectives in the context.
        group: The process group. Default: all processes.

    Raises:
        RuntimeError: a process has ended or does not answer. After `meet` the error names the rank of an ended process
            of this machine.
    """
    try:
        yield
    except RuntimeError as error:
        members = _MEMBERS.get(dist.group.WORLD if group is None else group, [])
        here = [(rank, process) for rank, host, process in members if host == socket.gethostname()]
        ended: list[int] = []
        for _ in range(20 if here else 0):  # connections close shortly before a process ends
            if ended := [rank for rank, process in here if _has_ended(process)]:
                break
            time.sleep(0.1)
        who = f"rank {', '.join(map(str, ended))} has ended" if ended else "another rank has ended or does not answer"
        raise RuntimeError(
            f"Process {dist.get_rank()} of {dist.get_world_size()} could not {act}: {who}. Start all processes again, "
            "if this is training from the last checkpoint."
        ) from error


def _has_ended(process: int) -> bool:
    """Check whether a process of this machine has ended, even if its exit status has not been read yet."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except ProcessLookupError:
        return True
    except OSError:  # a process of a different user, or a system without /proc
        return False
