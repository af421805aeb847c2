"""Work that is shared by processes."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from popgeo.data.flat_store import FlatStore
from popgeo.deploy.predictions import Predictions
from popgeo.ops.lost_process import meet, names_lost_process


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
    with names_lost_process(act, group):
        meet(group)
        dist.all_gather_object(parts, mine, group=group)
    for part in parts:
        if isinstance(part, Exception):
            raise part
    return parts
