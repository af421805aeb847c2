"""A training run that can stop after any batch and continue with the same results as without the stop."""

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
from tqdm import tqdm

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
READS_EACH = 0.5  # seconds between reads of an epoch's sums, each of which waits for a GPU


class Fit:
    """A training run of a force field; it saves the best averaged weights and the state of the run.

    Args:
        field: Force field to train.
        loaders: Loaders of the structures for `train` and `valid`.
        weights: Weight of each learned label in the loss.
        options: All other settings, by their names on the command line.
        checksums: Checksum of each part of the data; a resumed run must have the same checksums.
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
        self.labels = tuple(weights)
        self.model = ForceLoss(field, weights, options.loss).train()
        self.average = AveragedModel(field, multi_avg_fn=_moving_average(options.ema_decay))
        self.optimizer = torch.optim.AdamW(field.parameters(), lr=options.lr, weight_decay=options.weight_decay)
        self.plateau = ReduceLROnPlateau(self.optimizer, factor=options.lr_factor, patience=options.lr_patience)
        of_step = StepOptions(max_grad_norm=options.clip_grad, show_progress=False)
        self.step = compile_step(self.model, self.optimizer, options=of_step, average=self.average)
        self.best: ForceField = self.average.module  # type: ignore[assignment]  # a copy of the field
        self.evaluate = compile_forward(ForceLoss(self.best, weights, options.loss).eval())
        self.history: list[dict[str, float]] = []
        costs = torch.zeros(len(weights), 2, dtype=torch.float64)
        self.reached: dict[str, Any] = {"best_epoch": 0, "best_loss": math.inf, "graphs": 0, "costs": costs}

    @property
    def epoch(self) -> int:
        """Number of completed epochs."""
        return len(self.history)

    @property
    def why_over(self) -> str:
        """Reason why the run is complete; an empty text if it is not."""
        if self.epoch >= self.options.epochs:
            return f"all {self.epoch} epochs are complete"
        waited = self.epoch - int(self.reached["best_epoch"])
        return f"no better epoch in {waited}" if waited >= self.options.patience else ""

    def run(self) -> Iterator[dict[str, float]]:
        """Train epoch by epoch; save the state after each epoch, then yield its losses and errors.

        Raises:
            KeyboardInterrupt: The user pressed Ctrl-C. The state after the last complete batch is saved.
            ValueError: The loss is NaN or infinite.
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
        loader, reached = self.loaders["train"], self.reached
        total = len(loader.dataset)  # type: ignore[arg-type]  # a store
        title = f"epoch {self.epoch + 1}/{self.options.epochs}"
        with bar(title, "structures", total=total) as shown:
            shown.update(int(reached["graphs"]))
            sums, last_read = _Sums(reached["costs"], next(self.model.parameters()).device), time.monotonic()
            for batch in loader:
                cost, found = self.step(**taken_from(batch, self.labels))
                sums.add(cost, found["costs"], batch.graphs_mask)
                if interrupts or time.monotonic() > last_read + READS_EACH:
                    self._read(sums, shown)
                    last_read = time.monotonic()
                if interrupts and reached["graphs"] < total:
                    self.save()
                    raise KeyboardInterrupt
            self._read(sums, shown)
        costs = reached["costs"]
        reached |= {"costs": torch.zeros_like(costs), "graphs": 0}
        return loss_of(costs, self.weights)

    def _read(self, sums: "_Sums", shown: tqdm) -> None:
        """Read the sums of an epoch so far, and advance the progress bar.

        Raises:
            ValueError: A loss was NaN or infinite.
        """
        loss, count, costs = sums.read()
        if not math.isfinite(loss):
            raise ValueError(
                f"The loss is {loss} in epoch {self.epoch + 1}. Lower --lr, or pass --clip-grad 10; "
                f"{self.folder / BEST} holds the best so far."
            )
        self.reached |= {"costs": costs, "graphs": self.reached["graphs"] + count}
        shown.update(count)

    def _judge(self, train_loss: float, seconds: float) -> None:
        """Validate the averaged weights, save them if they are the best so far, and lower the learning rate if due."""
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
        """Save the state of the run and its log."""
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "average": self.average}
        parts |= {"plateau": self.plateau, "loader": self.loaders["train"]}
        content = {name: part.state_dict() for name, part in parts.items()}
        content |= {"history": self.history, "reached": self.reached, "checksums": self.checksums}
        save_checkpoint(self.folder / CHECKPOINT, content)
        write_atomically(self.folder / "log.csv", pd.DataFrame(self.history).to_csv(index=False).encode())

    def resume(self) -> None:
        """Restore the state that `save` wrote.

        Raises:
            ValueError: The file is damaged or belongs to a different run, or the data have changed.
        """
        path = self.folder / CHECKPOINT
        content = load_checkpoint(path)
        before = content.get("checksums")
        if not isinstance(before, dict):
            raise ValueError(f"{path} was not written by `popgeo train`: it has no checksums of structures.")
        if changed := [name for name, own in self.checksums.items() if before.get(name) != own]:
            raise ValueError(
                f"The structures for {', '.join(changed)} have changed since the run in {self.folder} began. Restore "
                f"the files, or start a new run from its weights: --init {self.folder / BEST} --out NEW."
            )
        restore_weights(content, self.model, self.optimizer, path)
        try:
            history, reached = content["history"], content["reached"]
            total, costs = len(self.loaders["train"].dataset), reached["costs"]  # type: ignore[arg-type]  # a store
            is_whole = [row["epoch"] for row in history] == list(range(1, len(history) + 1))
            is_within = 0 <= reached["best_epoch"] <= len(history) and 0 <= reached["graphs"] <= total
            if not (is_whole and is_within and costs.shape == (len(self.labels), 2)):
                raise ValueError(f"its history and its position contradict each other: {reached}")
            self.average.load_state_dict(content["average"])
            self.plateau.load_state_dict(_like(self.plateau.state_dict(), content["plateau"]))
            self.loaders["train"].load_state_dict(content["loader"])
        except Exception as error:  # a changed file may cause an error of any class
            raise ValueError(
                f"{path} does not hold a run that can be resumed: {str(error) or repr(error)}. Start a new one with "
                f"--init {self.folder / BEST} and a different --out."
            ) from error
        self.history, self.reached = history, reached


class _Sums:
    """Sums over the batches of an epoch. They are on the model's device, which only `read` waits for.

    Args:
        costs: Sum of the costs so far. [number of labels, 2]
        device: Device of the model.
    """

    def __init__(self, costs: Tensor, device: torch.device) -> None:
        self._costs, self._loss = costs.to(device), torch.zeros((), device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def add(self, loss: Tensor, costs: Tensor, graphs_mask: Tensor) -> None:
        """Add the costs and the structures of a batch."""
        self._loss = torch.where(self._loss.isfinite(), loss, self._loss)
        self._costs = self._costs + costs
        self._count = self._count + graphs_mask.sum()

    def read(self) -> tuple[float, int, Tensor]:
        """Return the first infinite or NaN loss, else the last loss; the number of new structures; the sum of costs."""
        loss, count, costs = float(self._loss), int(self._count), self._costs.cpu()
        self._count = torch.zeros_like(self._count)
        return loss, count, costs


def _like(own: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Check that a state has the names and types of the scheduler's own state, and return it.

    torch's schedulers load a state without a check.

    Raises:
        ValueError: A name is missing or unknown, or a value has a different type.
    """
    number = (int, float)
    for name in own.keys() | found.keys():
        kinds = number if isinstance(own.get(name), number) else type(own.get(name))
        if name not in own or name not in found or not isinstance(found[name], kinds):
            raise ValueError(f"the learning-rate schedule has a wrong {name!r}")
    return found


def _moving_average(decay: float) -> Any:
    """Return the update of an exponential moving average, with a faster decay at first; decay 0 copies the weights."""

    def update(averages: Sequence[Tensor], weights: Sequence[Tensor], number: Tensor) -> None:
        count = number.double()
        forget = 1 - ((1 + count) / (10 + count)).clamp(max=decay)
        for average, weight in zip(averages, weights, strict=True):
            average.lerp_(weight, forget.to(average.dtype))

    return update


@contextmanager
def _after_the_batch() -> Iterator[list[int]]:
    """Delay a Ctrl-C until the batch is complete, since a run cannot continue within a batch; a second one stops."""
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
