"""Train with each trainer, interrupted in the middle of an epoch and resumed, and write the graphs of each epoch.

torchrun --nproc-per-node 2 -m tests.support.trainer_runs FOLDER
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from popgeo.loader import FixedSizeDataLoader
from tests.support.loaders import GRAPHS, loader_of, seeds

EPOCHS, KILLED_IN, KILLED_AFTER = 3, 1, 2
ModelRun = list[list[int]]
Runs = dict[str, Callable[[Path, bool], ModelRun]]
"""The graphs of a run by epoch: until the interruption, or from the saved file to the end."""


def make_loader(**kwargs: Any) -> FixedSizeDataLoader:
    """Return the loader as users write it."""
    return loader_of(GRAPHS[:37], shuffle=True, **kwargs)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    """Return a simple loss over real nodes."""
    return (model(batch.x).flatten() * batch.nodes_mask).sum()


def plain(path: Path, resumes: bool) -> ModelRun:
    """Run a plain loop, with DistributedDataParallel if there are several processes."""
    model: nn.Module = nn.Linear(3, 1)
    model = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    loader, seen = make_loader(num_workers=0), ModelRun()
    if resumes:
        loader.load_state_dict(torch.load(path))
    for epoch in range(loader.epoch, EPOCHS):
        seen.append([])
        for step, batch in enumerate(loader):
            loss_of(model, batch).backward()
            seen[-1] += seeds([batch])
            if not resumes and (epoch, step + 1) == (KILLED_IN, KILLED_AFTER):
                torch.save(loader.state_dict(), path)
                return seen
    return seen


def with_accelerate(path: Path, resumes: bool) -> ModelRun:
    """Run `accelerator.prepare`, `save_state` and `load_state`."""
    from accelerate import Accelerator

    loader, model = make_loader(), nn.Linear(3, 1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    if resumes:
        accelerator.load_state(str(path))
    seen = ModelRun()
    for epoch in range(loader.epoch, EPOCHS):
        seen.append([])
        start, step = loader.state_dict()["position"], 0
        for step, batch in enumerate(loader, start=start + 1):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                assert accelerator.sync_gradients == (step == len(loader) or step % 3 == 0)
                optimizer.step()
                optimizer.zero_grad()
            seen[-1] += seeds([batch])
            if not resumes and (epoch, step) == (KILLED_IN, KILLED_AFTER):
                accelerator.save_state(str(path))
                return seen
        assert step == len(loader)
    return seen


def with_lightning(path: Path, resumes: bool) -> ModelRun:
    """Run `Trainer.fit` with validation and a given loader."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.seen = nn.Linear(3, 1), dict[int, list[int]]()
            self.validated, self.predicted = ModelRun(), list[int]()

        def training_step(self, batch: Any, number: int) -> Tensor:
            self.seen.setdefault(self.current_epoch, []).extend(seeds([batch]))
            return loss_of(self.model, batch)

        def on_validation_start(self) -> None:
            self.validated.append([])

        def validation_step(self, batch: Any, number: int) -> None:
            self.validated[-1] += seeds([batch])

        def predict_step(self, batch: Any, number: int) -> None:
            self.predicted += seeds([batch])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Kill(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            if not resumes and (trainer.current_epoch, number + 1) == (KILLED_IN, KILLED_AFTER):
                trainer.save_checkpoint(path)
                raise KeyboardInterrupt

    world_size = dist.get_world_size() if dist.is_initialized() else 1
    trainer = lightning.Trainer(
        accelerator="cpu", devices=world_size, max_epochs=EPOCHS, callbacks=[Kill()], default_root_dir=path.parent,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Module()
    try:
        trainer.fit(
            module, make_loader(), loader_of(GRAPHS[:37]), ckpt_path=path if resumes else None, weights_only=False
        )
    except (KeyboardInterrupt, SystemExit):
        assert not resumes
        return list(module.seen.values())
    trainer.predict(module, loader_of(GRAPHS[:37]))
    return [*module.seen.values(), module.validated[-1], module.predicted]


RUNS: Runs = {"plain": plain, "accelerate": with_accelerate, "lightning": with_lightning}


def lives(name: str, folder: Path) -> Iterator[ModelRun]:
    """Yield the graphs before the interruption, and the graphs after the restart."""
    for resumes in (False, True):
        yield RUNS[name](folder / name, resumes)


def main(folder: str, *names: str) -> None:
    """Run the trainers in each process, and write the results."""
    warnings.simplefilter("ignore")
    early, refusal = make_loader(), ""
    try:
        len(early)
    except ValueError as error:
        refusal = str(error)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = {name: list(lives(name, Path(folder))) for name in names}
    found["refusal"] = [refusal]
    found["early"] = [len(early), seeds(early)]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
