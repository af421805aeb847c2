"""A run of training that can stop after any batch and continue as if it had not stopped."""

import math
import signal
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from popgeo.atomic_write import write_atomically
from popgeo.deploy.force_field import ForceField
from popgeo.engine.compile_step import compile_forward, compile_step
from popgeo.engine.resume import load_checkpoint, restore_weights, save_checkpoint
from popgeo.engine.step_options import StepOptions
from popgeo.loader import FixedSizeDataLoader
from popgeo.progress import bar
from popgeo.train.evaluate import errors_of, loss_of, predictions, taken_from
from popgeo.train.force_loss import ForceLoss

CHECKPOINT, BEST = "checkpoint.pt", "model.pt"


class Fit:
    """Trains a force field, keeps the best of its averages, and where the run stands.

    Args:
        field: The force field to train.
        loaders: Of the structures for `train` and `valid`.
        weights: Of what is learned, in the loss.
        options: The rest, by the names of the command line.
        checksums: Of the data of each part; a run that is resumed must have the same.
    """

    def __init__(
        self,
        field: ForceField,
        loaders: dict[str, FixedSizeDataLoader],
        weights: dict[str, float],
        options: Namespace,
        checksums: dict[str, str],
    ) -> None:
        self.options, self.loaders, self.folder, self.weights = options, loaders, options.out, weights
        self.checksums = checksums
        self.labels, backend = tuple(weights), "cpu" if options.device == "cpu" else "cuda"
        self.model = ForceLoss(field, weights, options.loss).train()
        self.average = AveragedModel(field, multi_avg_fn=_moving_average(options.ema_decay))
        self.optimizer = torch.optim.AdamW(field.parameters(), lr=options.lr, weight_decay=options.weight_decay)
        self.plateau = ReduceLROnPlateau(self.optimizer, factor=options.lr_factor, patience=options.lr_patience)
        of_step = StepOptions(max_grad_norm=options.clip_grad, show_progress=False)
        self.step = compile_step(self.model, self.optimizer, backend=backend, options=of_step)
        self.best: ForceField = self.average.module  # type: ignore[assignment]  # a copy of the field
        self.evaluate = compile_forward(ForceLoss(self.best, weights, options.loss).eval(), backend=backend)
        self.history: list[dict[str, float]] = []
        costs = torch.zeros(len(weights), 2, dtype=torch.float64)
        self.reached: dict[str, Any] = {"best_epoch": 0, "best_loss": math.inf, "graphs": 0, "costs": costs}

    @property
    def epoch(self) -> int:
        """Epochs that are through."""
        return len(self.history)

    @property
    def why_over(self) -> str:
        """Why there is nothing left to do; empty if there is."""
        if self.epoch >= self.options.epochs:
            return f"all {self.epoch} epochs are through"
        waited = self.epoch - int(self.reached["best_epoch"])
        return f"no better epoch in {waited}" if waited >= self.options.patience else ""

    def run(self) -> Iterator[dict[str, float]]:
        """Trains on, one epoch after the other, and says how each went; the state is saved first.

        Raises:
            KeyboardInterrupt: Ctrl-C; where the run stands is kept, to the batch.
            ValueError: the loss is not a number any more.
        """
        with _after_the_batch() as interrupts:
            while not self.why_over:
                start = time.perf_counter()
                loss = self._train_epoch(interrupts)
                self._judge(loss, time.perf_counter() - start)
                self.save()
                yield self.history[-1]
                if interrupts:
                    raise KeyboardInterrupt

    def _train_epoch(self, interrupts: Sequence[int]) -> float:
        loader = self.loaders["train"]
        total = len(loader.dataset)  # type: ignore[arg-type]  # a store
        title = f"epoch {self.epoch + 1}/{self.options.epochs}"
        with bar(title, "structures", total=total) as shown:
            shown.update(int(self.reached["graphs"]))
            for batch in loader:
                cost, found = self.step(**taken_from(batch, self.labels))
                loss = float(cost)
                if not math.isfinite(loss):
                    raise ValueError(
                        f"The loss is {loss} in epoch {self.epoch + 1}. Lower --lr, or pass --clip-grad 10; "
                        f"{self.folder / BEST} holds the best so far."
                    )
                self.average.update_parameters(self.model.field)
                count = int(batch.graphs_mask.sum())
                self.reached["costs"] = self.reached["costs"] + found["costs"].double().cpu()
                self.reached["graphs"] += count
                shown.update(count)
                if interrupts and self.reached["graphs"] < total:
                    self.save()
                    raise KeyboardInterrupt
        costs = self.reached["costs"]
        self.reached |= {"costs": torch.zeros_like(costs), "graphs": 0}
        return loss_of(costs, self.weights)

    def _judge(self, train_loss: float, seconds: float) -> None:
        """Validates the averages, keeps them if none were better, and lets the learning rate fall."""
        pairs, costs = predictions(self.evaluate, self.loaders["valid"], self.labels)
        loss = loss_of(costs, self.weights)
        rate = self.optimizer.param_groups[0]["lr"]
        shown = {"epoch": self.epoch + 1, "train loss": train_loss, "valid loss": loss, "learning rate": float(rate)}
        self.history.append({**shown, **errors_of(pairs), "seconds": seconds})
        if loss < self.reached["best_loss"]:
            self.reached |= {"best_epoch": self.epoch, "best_loss": loss}
            self.best.errors = errors_of(pairs)
            self.best.save(self.folder / BEST)
        self.plateau.step(loss)

    def save(self) -> None:
        """Keeps where the run stands."""
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "average": self.average}
        parts |= {"plateau": self.plateau, "loader": self.loaders["train"]}
        content = {name: part.state_dict() for name, part in parts.items()}
        content |= {"history": self.history, "reached": self.reached, "checksums": self.checksums}
        save_checkpoint(self.folder / CHECKPOINT, content)
        write_atomically(self.folder / "log.csv", pd.DataFrame(self.history).to_csv(index=False).encode())

    def resume(self) -> None:
        """Continues from what `save` kept.

        Raises:
            ValueError: the file is damaged or of another run, or the data have changed.
        """
        path = self.folder / CHECKPOINT
        content = load_checkpoint(path)
        before = content.get("checksums")
        if not isinstance(before, dict):
            raise ValueError(f"{path} was not written by `popgeo train`: it has no checksums of structures.")
        if changed := [name for name, own in self.checksums.items() if before.get(name) != own]:
            raise ValueError(
                f"The structures for {', '.join(changed)} are not those that the run in {self.folder} was started "
                f"with. Restore the files, or start a new run from its weights: --init {self.folder / BEST} --out NEW."
            )
        restore_weights(content, self.model, self.optimizer, path)
        try:
            history, reached = content["history"], content["reached"]
            total, costs = len(self.loaders["train"].dataset), reached["costs"]  # type: ignore[arg-type]  # a store
            is_whole = [row["epoch"] for row in history] == list(range(1, len(history) + 1))
            is_within = 0 <= reached["best_epoch"] <= len(history) and 0 <= reached["graphs"] <= total
            if not (is_whole and is_within and costs.shape == (len(self.labels), 2)):
                raise ValueError(f"its history and position cannot be: {reached}")
            self.average.load_state_dict(content["average"])
            self.plateau.load_state_dict(_like(self.plateau.state_dict(), content["plateau"]))
            self.loaders["train"].load_state_dict(content["loader"])
        except Exception as error:  # of whatever kind, from a file that was changed
            raise ValueError(
                f"{path} does not hold a run that can be resumed: {str(error) or repr(error)}. Start a new one with "
                f"--init {self.folder / BEST} and another --out."
            ) from error
        self.history, self.reached = history, reached


def _like(own: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A state with the names and kinds of another, as torch's schedulers take anything.

    Raises:
        ValueError: it has others.
    """
    number = (int, float)
    for name in own.keys() | found.keys():
        kinds = number if isinstance(own.get(name), number) else type(own.get(name))
        if name not in own or name not in found or not isinstance(found[name], kinds):
            raise ValueError(f"the learning-rate schedule has a wrong {name!r}")
    return found


def _moving_average(decay: float) -> Any:
    """An exponential moving average that begins to forget at once; 0 follows the weights."""

    def update(averages: Sequence[Tensor], weights: Sequence[Tensor], number: Tensor | int) -> None:
        forget = 1 - min(decay, (1 + int(number)) / (10 + int(number)))
        torch._foreach_lerp_(list(averages), list(weights), forget)

    return update


@contextmanager
def _after_the_batch() -> Iterator[list[int]]:
    """Collects a Ctrl-C until the batch is done, since half a batch cannot be continued; a second one ends at once."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        print("\nstopping after this batch; Ctrl-C again stops at once", flush=True)
        seen.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
