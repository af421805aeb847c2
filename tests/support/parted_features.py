"""Two processes with half of a graph's features each; the second process ends in the middle of an epoch.

python -m tests.support.parted_features FOLDER RANK
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from popgeo import FixedSizeNeighborLoader, FixedSizeOptions
from popgeo.loader import PartitionedFeatures
from tests.support.large_graphs import random_graph
from tests.support.stores import in_stores
from tests.support.two_processes import join

HOW = {"batch_size": 5, "shuffle": True, "seed": 0, "fixed_size_options": FixedSizeOptions(61, 240)}
SEEDS = torch.arange(53)


def memory_loader(rank: int, world_size: int) -> FixedSizeNeighborLoader:
    """Return the loader of a process with all features."""
    return FixedSizeNeighborLoader(random_graph(), [3, 2], SEEDS, rank=rank, world_size=world_size, **HOW)


def trained() -> dict:
    """Return a model and its optimizer after one step."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def main(folder: Path, rank: int) -> None:
    """Load batches in each process, and compare them with batches from memory."""
    join(folder, rank)
    _, features, graph = in_stores(random_graph())
    sent = []
    for num_cached in (0, 20):
        parts = {None: torch.arange(60) % 2}
        parted = PartitionedFeatures(features, parts, num_cached, timeout=timedelta(minutes=2))
        loader = FixedSizeNeighborLoader((parted, graph), [3, 2], SEEDS, **HOW)
        parted.num_bytes = 0
        for part in parted.columns.values():
            part.room = 8  # some batches need several exchanges
        for batch, same in zip(loader, memory_loader(rank, 2), strict=True):
            assert all(
                torch.equal(value, same[name]) for name, value in batch.to_dict().items() if torch.is_tensor(value)
            )
        sent.append(parted.num_bytes)
    assert 0 < sent[1] < sent[0]
    loader.set_epoch(0)
    items = iter(loader)
    nodes = [batch.n_id[batch.seeds_mask] for _, batch in zip(range(2), items, strict=False)]
    torch.save(torch.cat(nodes), folder / f"seeds {rank}.pt")
    items.close()
    dist.barrier()
    whole = trained()
    state = {"model": whole["model"].state_dict(), "optimizer": whole["optimizer"].state_dict(), "loader": loader}
    dcp.save(state, checkpoint_id=folder / "checkpoint")
    impatient = PartitionedFeatures(features, parts, timeout=timedelta(seconds=3))
    loader = FixedSizeNeighborLoader((impatient, graph), [3, 2], SEEDS, background=False, **HOW)
    start = time.time()
    try:
        for number, _ in enumerate(loader):
            if rank == 1 and number == 2:
                os._exit(0)
            start = time.time()
    except RuntimeError as error:
        (folder / "told").write_text(f"{time.time() - start:.1f} {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
