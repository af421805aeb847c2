"""MACE's training command at fixed shape: `python -m popgeo.potentials.run_mace --fixed_size ...`.

It has the arguments of `mace_run_train`. With `--fixed_size` batches have one shape, and the step is compiled once.
Only the loader, the loss and the training step are replaced. Data, statistics, the model, validation, logs, checkpoints
and the final tables use MACE's code and MACE's own batches.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any
from unittest.mock import patch

import torch
from mace import tools
from mace.cli import run_train
from torch.utils.data import ConcatDataset

from popgeo.command_line import OneLineParser
from popgeo.engine.compile_step import compile_step
from popgeo.engine.step_options import StepOptions
from popgeo.potentials.mace import RealMeanLoss, TrainingStep, fixed_size_loader

_BACKENDS = {"engine": None, "inductor": "inductor"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as `mace_run_train` does; only the arguments `--fixed_size` and `--step` are popgeo's."""
    # Without help, which MACE's parser prints.
    parser = OneLineParser(prog="python -m popgeo.potentials.run_mace", add_help=False, allow_abbrev=False)
    parser.add_argument("--fixed_size", nargs="*", type=int, metavar="SIZE")
    parser.add_argument("--step", choices=("eager", *_BACKENDS))
    asked, rest = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    settings = tools.build_default_arg_parser().parse_args(rest)
    if asked.fixed_size is None:
        return run_train.run(settings)
    if len(asked.fixed_size) not in (0, 2):
        parser.error(f"--fixed_size is given {len(asked.fixed_size)} numbers; give ATOMS EDGES, or none")
    with fixed_size_training(settings, asked.fixed_size, asked.step):
        run_train.run(settings)


@contextmanager
def fixed_size_training(
    settings: argparse.Namespace, sizes: Sequence[int] = (), step: str | None = None
) -> Iterator[None]:
    """Make `mace.cli.run_train.run` train at fixed shape inside this context.

    Args:
        settings: Settings of `run`. `batch_size` structures share a batch, on average if sizes are measured.
        sizes: Atoms and edges of a batch, padding included. Default: measured, so that batches are full.
        step: "engine" captures the step, "inductor" compiles it with torch, "eager" leaves it to MACE. Default:
            "engine" on a processor, else "eager".

    Raises:
        ValueError: the optimizer is LBFGS, which needs all batches at once; or a step would be compiled for several
            processes, or for another device than a processor.
    """
    step = step or ("engine" if settings.device == "cpu" and not settings.distributed else "eager")
    if settings.lbfgs:
        raise ValueError("LBFGS weighs whole batches against each other; leave --lbfgs or --fixed_size out.")
    if step != "eager" and (settings.distributed or settings.device != "cpu"):
        raise ValueError(f"--step {step} is for one process and --device cpu; pass --step eager.")
    own_train, own_step = tools.train, sys.modules["mace.tools.train"].take_step

    def train(*, loss_fn: Any, train_loader: Any, model: Any, swa: Any, **kwargs: Any) -> None:
        loader = fixed_size_loader(
            _in_memory(train_loader.dataset),
            cutoff=float(model.r_max),
            num_nodes=sizes[0] if sizes else None,
            num_edges=sizes[1] if sizes else None,
            batch_size=train_loader.batch_size + 1,
            shuffle=True,
            seed=settings.seed,
            num_workers=settings.num_workers,
            pin_memory=settings.pin_memory,
        )
        print(f"popgeo: {loader}, step: {step}")
        if swa is not None:
            swa.loss_fn = RealMeanLoss(swa.loss_fn)
        kwargs["train_sampler"] = loader
        own_train(loss_fn=RealMeanLoss(loss_fn), train_loader=loader, model=model, swa=swa, **kwargs)

    taken = own_step if step == "eager" else _CompiledSteps(_BACKENDS[step])
    with patch.object(tools, "train", train), patch.object(sys.modules["mace.tools.train"], "take_step", taken):
        yield


def _in_memory(dataset: Any) -> Any:
    """Return the items as one list if MACE has concatenated lists; otherwise return the dataset."""
    parts = dataset.datasets if isinstance(dataset, ConcatDataset) else [dataset]
    return list(chain(*parts)) if all(isinstance(part, list) for part in parts) else dataset


class _CompiledSteps:
    """A replacement of MACE's `take_step` that compiles one step per loss. Each training stage has its own loss."""

    def __init__(self, backend: str | None) -> None:
        self.backend = backend
        self._steps: dict[int, Callable[..., torch.Tensor]] = {}

    def __call__(self, *, loss_fn: Any, batch: Any, ema: Any, **given: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        start = time.time()
        if id(loss_fn) not in self._steps:
            options = StepOptions(max_grad_norm=given["max_grad_norm"])
            step = TrainingStep(given["model"], loss_fn, given["output_args"])
            self._steps[id(loss_fn)] = compile_step(step, given["optimizer"], backend=self.backend, options=options)
        loss = self._steps[id(loss_fn)](**batch.to_dict())
        if ema is not None:
            ema.update()
        return loss, {"loss": tools.to_numpy(loss), "time": time.time() - start}


if __name__ == "__main__":
    main()
