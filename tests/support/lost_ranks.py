"""One of two processes ends in the middle of an epoch; the other writes its error and the time until the error.

torchrun --nproc-per-node 2 -m tests.support.lost_ranks FOLDER step|lightning|accelerate raises|leaves|stops
"""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from popgeo.ipu import Options, training_model
from tests.support.trainer_runs import loss_of, make_loader

TIMEOUT = timedelta(seconds=5)
FATES = ("raises", "leaves", "stops")


class Lost:
    """The end of the second process at its third batch; the first process records the time."""

    def __init__(self, fate: str, folder: Path) -> None:
        self.fate, self.batches, self.seen = fate, 0, folder / "alone"

    def at_batch(self) -> None:
        self.batches += 1
        if self.batches != 3 or dist.get_rank() == 0:
            return
        self.seen.write_text(str(time.time()))
        if self.fate == "raises":
            raise ValueError("This process cannot go on.")
        if self.fate == "leaves":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)


def with_step(lost: Lost) -> None:
    """Train with popgeo's compiled step."""

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (self.linear(x).flatten() * mask).sum()

    dist.init_process_group("gloo", timeout=TIMEOUT)
    model = Summed()
    step = training_model(model, Options(replication_factor=2), torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in make_loader(num_workers=0):
        lost.at_batch()
        step(batch.x, batch.nodes_mask)


def with_lightning(lost: Lost) -> None:
    """Train with Lightning's trainer and DistributedDataParallel."""
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def training_step(self, batch: object) -> Tensor:
            lost.at_batch()
            return loss_of(self.linear, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo", timeout=TIMEOUT), max_epochs=2,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), make_loader(num_workers=0))


def with_accelerate(lost: Lost) -> None:
    """Train with accelerate's `prepare` and `backward`."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=TIMEOUT)])
    model = nn.Linear(3, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), make_loader())
    for batch in loader:
        lost.at_batch()
        accelerator.backward(loss_of(model, batch))
        optimizer.step()


TRAINERS: dict[str, Callable[[Lost], None]] = {
    "step": with_step, "lightning": with_lightning, "accelerate": with_accelerate
}  # fmt: skip


def main(folder: str, trainer: str, fate: str) -> None:
    """Train in each process, and write the error of the first process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lost = Lost(fate, Path(folder))
    with (Path(folder) / "pids").open("a") as file:
        file.write(f"{os.getpid()} ")
    try:
        TRAINERS[trainer](lost)
    except BaseException as error:
        if os.environ["RANK"] == "0":
            seconds = time.time() - float(lost.seen.read_text())
            (Path(folder) / "told").write_text(f"{seconds:.1f}\n{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
