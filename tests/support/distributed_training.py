"""Train SchNet for two epochs with replicas shared by torchrun's processes, or in one process.

torchrun --nproc-per-node 2 -m tests.support.distributed_training FOLDER [dies]
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from popgeo.data import FixedSizeOptions
from popgeo.datasets import Molecules
from popgeo.ipu import Options, training_model
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import KNNInteractionGraph, SchNet, l1_loss

NUM_GRAPHS = 4
OPTIONS = Options(
    device_iterations=2, gradient_accumulation=2, replication_factor=4, output_mode="all", random_seed=5,
)  # fmt: skip


class Gap(nn.Module):
    """SchNet with dropout, so that each replica needs its own random numbers."""

    def __init__(self) -> None:
        super().__init__()
        graph = KNNInteractionGraph(k=4, cutoff=4.0)
        self.net = SchNet(8, 8, num_interactions=1, num_gaussians=6, cutoff=4.0, interaction_graph=graph)
        self.dropout = nn.Dropout(0.2)
        self.shift = nn.Parameter(torch.randn(2 * NUM_GRAPHS, dtype=torch.float64)[::2])  # a view of every other number
        self.register_buffer("apart", torch.randn(NUM_GRAPHS, 2, dtype=torch.float64)[:, 0])
        self.register_buffer("same", torch.randn(1, dtype=torch.float64).expand(NUM_GRAPHS))

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, y: Tensor, graphs_mask: Tensor) -> Tensor:
        gap = self.dropout(self.net(z, pos, batch, num_graphs=NUM_GRAPHS)).flatten()
        gap = gap + self.shift * self.apart + self.same
        return l1_loss(gap, y[:, 2], graphs_mask)


def train(at_call: dict[int, str] | None = None) -> tuple[list[Tensor], nn.Module]:
    """Train; return the losses of each call and the model. `at_call` ends this process at some calls."""
    torch.set_num_threads(1)
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(rank)  # the weights of the first process are used
    model = Gap().double()
    sizes = FixedSizeOptions(num_nodes=50, num_edges=0, num_graphs=NUM_GRAPHS)
    loader = FixedSizeDataLoader(
        [molecule.update({"pos": molecule.pos.double()}) for molecule in Molecules()[:90]],
        shuffle=True,
        seed=0,
        fixed_size_options=sizes,
        fixed_size_strategy="Window",
        exclude_keys=["x", "edge_index", "edge_attr", "smiles", "name", "idx"],
        options=OPTIONS,
    )
    step = training_model(model, OPTIONS, torch.optim.Adam(model.parameters(), lr=1e-2))
    losses: list[Tensor] = []
    for _ in range(2):
        for batch in loader:
            fate = (at_call or {}).get(len(losses))
            if fate == "dies":
                os._exit(1)
            losses.append(step(batch.z, batch.pos, batch.batch, batch.y.double(), batch.graphs_mask))
    return losses, model


def main(folder: str, fate: str = "lives") -> None:
    """Run in each process; a fate other than `lives` ends the second process at its third call."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    losses, model = train({2: fate} if rank == 1 else None)
    torch.save({"losses": torch.stack(losses), "model": model.state_dict()}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
