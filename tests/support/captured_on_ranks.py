"""Train in captured steps, on a fake of the CUDA calls, as one of two processes; the second one leaves at the end.

python -m tests.support.captured_on_ranks FOLDER RANK
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from popgeo.engine.compile_step import compile_step
from popgeo.engine.step_options import StepOptions
from tests.support.fake_cuda import install

NUM_CALLS = 8


class Forces(nn.Module):
    """An energy of one number per row, and a loss on the energy and its gradient; weights of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4).double(), nn.Linear(4, 1)

    def forward(self, pos: Tensor, y: Tensor) -> Tensor:
        pos = pos.detach().requires_grad_()
        energy = self.last(self.first(pos).tanh().float()).flatten()
        (force,) = torch.autograd.grad(-energy.sum(), pos, create_graph=True)
        return (energy - y).square().mean() + force.square().mean()


def make_call(number: int, parts: int) -> list[tuple[Tensor, Tensor]]:
    """Return the micro-batches of one call, over all processes."""
    torch.manual_seed(number)
    return [(torch.randn(5, 3).double(), torch.randn(5)) for _ in range(parts)]


def train(rank: int, world_size: int, parts: int) -> tuple[list[Tensor], nn.Module, Callable[[], Tensor]]:
    """Return the losses of each call, the model, and a call that trains on zeros; a call has `parts` micro-batches."""
    torch.manual_seed(rank)  # the weights of the first process are used
    model = Forces()
    options = StepOptions(
        replication_factor=world_size,
        gradient_accumulation=parts // world_size,
        max_grad_norm=0.3,
        loss_scaling=64.0,
        output_mode="all",
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2**-5)
    step = compile_step(model, optimizer, backend="cuda", options=options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses = []
    for number in range(NUM_CALLS):
        if number == 1:
            step.reset()  # the next call compiles again and continues
        # Micro-batch after micro-batch, replica by replica within each.
        losses.append(step(*map(torch.cat, zip(*make_call(number, parts)[rank::world_size], strict=True))))
        schedule.step()
    rows = 5 * parts // world_size
    return losses, model, lambda: step(torch.zeros(rows, 3).double(), torch.zeros(rows))


def main(folder: str, rank: int) -> None:
    """Train as one of two processes, keep the result, and keep the error after the other process has left."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{Path(folder) / 'meeting'}", timedelta(seconds=3), 2, rank)
    with pytest.MonkeyPatch.context() as monkeypatch:
        cuda = install(monkeypatch)
        for parts in (2, 4):
            losses, model, call = train(rank, 2, parts)
            kept = {"losses": torch.stack(losses), "weights": [*model.state_dict().values()]}
            names = [func._schema.name for func, *_ in cuda.graphs[-1].ops]
            kept |= {"blocks": names.count("c10d::allreduce_"), "replays": cuda.graphs[-1].replays}
            torch.save(kept, Path(folder) / f"{parts} parts, {rank}.pt")
        if rank == 1:
            os._exit(0)
        try:
            for _ in range(3):  # the host is two updates ahead of the device at most
                call()
        except RuntimeError as error:
            (Path(folder) / "told").write_text(str(error))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
