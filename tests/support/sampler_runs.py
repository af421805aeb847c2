"""Pass a batch sampler to each trainer, and write this process's graphs of each epoch to a file.

torchrun --nproc-per-node 2 -m tests.support.sampler_runs FOLDER TRAINER ...
"""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from popgeo import FixedSizeBatchSampler, FixedSizeOptions

NUMBER, EPOCHS, KILLED_AFTER = 300, 2, 3
ModelRun = dict[str, list[int]]


class Numbers(Dataset[int]):
    """A dataset of its own indices."""

    def __len__(self) -> int:
        return NUMBER

    def __getitem__(self, index: int) -> int:
        return index


def make_sampler(**kwargs: Any) -> FixedSizeBatchSampler:
    """Return the sampler as users write it."""
    rng = np.random.default_rng(0)
    nodes = rng.integers(1, 40, NUMBER)
    options = FixedSizeOptions(num_nodes=201, num_edges=1200, num_graphs=100)
    return FixedSizeBatchSampler(nodes, nodes * rng.integers(3, 9, NUMBER), fixed_size_options=options, **kwargs)


def loader_of(sampler: FixedSizeBatchSampler, kind: Any = DataLoader, **kwargs: Any) -> Any:
    return kind(Numbers(), batch_sampler=sampler, collate_fn=list, **kwargs)


def flat(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch]


def plain() -> ModelRun:
    """Run a plain loop, interrupted and resumed."""
    sampler = make_sampler()
    seen = {"epoch 0": flat(loader_of(sampler))}
    batches = iter(sampler)
    first = flat(next(batches) for _ in range(KILLED_AFTER))
    again = make_sampler()
    again.load_state_dict(sampler.state_dict())
    return {**seen, "epoch 1": first + flat(loader_of(again))}


def with_accelerate() -> ModelRun:
    """Run `accelerator.prepare`, which draws one batch ahead."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    accelerator, sampler = Accelerator(cpu=True), make_sampler()
    loader = accelerator.prepare(loader_of(sampler))
    seen = {"epoch 0": flat(loader)}
    batches = iter(loader)
    first = flat(next(batches) for _ in range(KILLED_AFTER))
    again = make_sampler()
    again.load_state_dict(sampler.state_dict(num_batches=KILLED_AFTER))
    seen |= {"epoch 1": first + flat(accelerator.prepare(loader_of(again)))}
    AcceleratorState._reset_state()  # otherwise every loader of this process would use the Accelerator
    return seen


def with_torchdata() -> ModelRun:
    """Run a `StatefulDataLoader` with workers, resumed from its own state in the middle of an epoch."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = loader_of(make_sampler(), StatefulDataLoader, num_workers=2)
    seen = {"epoch 0": flat(loader)}
    batches = iter(loader)
    first = flat(next(batches) for _ in range(KILLED_AFTER))
    state = loader.state_dict()
    again = loader_of(make_sampler(), StatefulDataLoader, num_workers=2)
    again.load_state_dict(state)
    return {**seen, "epoch 1": first + flat(again)}


def with_lightning() -> ModelRun:
    """`Trainer.fit` and `Trainer.predict`; the sampler gives each process its own batches."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.seen, self.predicted = nn.Linear(1, 1), ModelRun(), list[int]()

        def training_step(self, batch: Any, number: int) -> Tensor:
            self.seen.setdefault(f"epoch {self.current_epoch}", []).extend(batch)
            return self.model(torch.ones(1, 1)).sum()

        def predict_step(self, batch: Any, number: int) -> None:
            self.predicted += batch

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    world_size = dist.get_world_size() if dist.is_initialized() else 1
    trainer = lightning.Trainer(
        accelerator="cpu", devices=world_size, max_epochs=EPOCHS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, loader_of(make_sampler()))
    trainer.predict(module, loader_of(make_sampler(shuffle=False)))
    return {**module.seen, "predicted": module.predicted}


RUNS: dict[str, Callable[[], ModelRun]] = {
    "plain": plain,
    "accelerate": with_accelerate,
    "torchdata": with_torchdata,
    "lightning": with_lightning,
}


def main(folder: str, *names: str) -> None:
    """Run the trainers in each process, and write the results."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found = {name: RUNS[name]() for name in names}
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
