"""Train small models in one process, or as one of two: weights in shards, and optimizer state in parts.

python -m tests.support.two_processes FOLDER RANK
"""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from popgeo.ipu import Options, training_model
from popgeo.nn import keep_shards, shard_linears


class Tokens(nn.Module):
    """A model of an embedding, an MLP and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(8, 4), nn.Linear(4, 12), nn.Linear(12, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return (self.down(self.up(self.embed(tokens)).tanh()) - 1).square().mean()


def train_in_shards(rank: int = 0, world_size: int = 1) -> dict[str, Tensor]:
    """Train with plain steps; return the losses and this process's weights."""
    torch.manual_seed(0)
    model = shard_linears(Tokens().double(), {"embed": "vocabulary", "up": "column", "down": "row"}, 4)
    if world_size > 1:
        keep_shards(model, rank, world_size)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.tensor([[0, 7, 3], [5, 5, 1]]))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), **model.state_dict()}


def train_in_parts(
    rank: int = 0, world_size: int = 1, divided: bool = True, file: Path | None = None, **others: Any
) -> dict[str, Tensor]:
    """Train two replicas, interrupted if `file` is given; return the weights and the size of the state."""
    torch.manual_seed(0)
    model = Tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    options = Options(replication_factor=2, shard_optimizer_state=divided, max_grad_norm=0.1, **others)
    step = training_model(model, options, optimizer)
    batches = torch.randint(8, (4, 2, 3, 2), generator=torch.Generator().manual_seed(1))
    for number, batch in enumerate(batches):
        step(batch[rank::world_size].flatten(0, 1))
        if file is not None and number == 1:
            step.save(file)
            torch.manual_seed(9)
            model = Tokens()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
            step = training_model(model, step.options, optimizer)
            step.load(file)
    kept = sum(state["exp_avg"].numel() for state in optimizer.state.values())
    return {"kept": torch.tensor(kept), **model.state_dict()}


def join(folder: str | Path, rank: int) -> None:
    """Join the process group as one of two processes."""
    torch.set_num_threads(1)
    file = f"file://{Path(folder) / 'meeting'}"
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=2, timeout=timedelta(seconds=120))


def train(folder: Path, rank: int) -> list[dict[str, Tensor]]:
    """Run all training of one of two processes."""
    return [
        train_in_shards(rank, 2),
        train_in_parts(rank, 2, divided=False),
        train_in_parts(rank, 2),
        train_in_parts(rank, 2, file=folder / f"checkpoint {rank}.pt"),
        train_in_parts(rank, 2, stages=2, schedule="sharded"),
    ]


if __name__ == "__main__":
    join(sys.argv[1], int(sys.argv[2]))
    torch.save(train(Path(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[1]) / f"{sys.argv[2]}.pt")
    dist.destroy_process_group()
