"""Train a GIN with the option `batch_invariant`, in one process or as one of several.

python -m tests.support.training_on_ranks FOLDER RANK WORLD_SIZE
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from popgeo import StepOptions, compile_step
from popgeo.data import FixedSizeOptions
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import GIN, l1_loss

NUM_UPDATES, NUM_GRAPHS = 100, 4


class Gaps(nn.Module):
    """The error of the gaps that a GIN predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.gin = GIN(11, 24, 2, 1, readout="sum")

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor, graphs_mask: Tensor) -> Tensor:
        found = self.gin(x, edge_index, batch=batch, num_graphs=NUM_GRAPHS).flatten()
        return l1_loss(found, y[:, 2], graphs_mask)


def train(replicas: int, accumulation: int, batch_invariant: bool = True) -> Tensor:
    """Return all weights after a hundred updates, each with the same four micro-batches."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gaps()
    options = StepOptions(
        replication_factor=replicas, gradient_accumulation=accumulation, batch_invariant=batch_invariant
    )
    loader = FixedSizeDataLoader(
        Molecules()[:400],
        shuffle=True,
        seed=0,
        fixed_size_options=FixedSizeOptions(num_nodes=70, num_edges=160, num_graphs=NUM_GRAPHS),
        fixed_size_strategy="Window",
        exclude_keys=["pos", "z", "edge_attr", "smiles", "name", "idx"],
        options=options,
    )
    step = compile_step(model, torch.optim.Adam(model.parameters(), lr=1e-2), options=options)
    done = 0
    while done < NUM_UPDATES:
        for batch in loader:
            if done < NUM_UPDATES:
                step(batch.x, batch.edge_index, batch.batch, batch.y, batch.graphs_mask)
                done += 1
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main(folder: str, rank: int, world_size: int) -> None:
    """Train as one process of a group, and keep the weights of the first."""
    meeting = f"file://{Path(folder) / f'meeting of {world_size}'}"
    dist.init_process_group("gloo", meeting, timedelta(seconds=120), world_size, rank)
    weights = train(4, 1)
    if rank == 0:
        torch.save(weights, Path(folder) / f"{world_size}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
