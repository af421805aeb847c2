"""How a training run is saved and resumed, as if it had never stopped."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.engine.cuda_graph import CudaGraphRunner
from popgeo.engine.optimizer.precision import restore_types
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_runner import StepRunner
from popgeo.torch_archive import read_format, write_format

_KIND, _VERSION = "checkpoint", 4
# What a content that was crafted to fit its checksum raises if it is something else.
_UNLIKE = (RuntimeError, ValueError, LookupError, TypeError, AttributeError)


def save_checkpoint(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Writes tensors and numbers to a file that is, at any moment, the old one or the new one."""
    write_format(path, content, _KIND, _VERSION)


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save_checkpoint` wrote, in this version or in one from before there were seals; nothing in the file is run.

    Raises:
        ValueError: the file is not such a checkpoint, or it is damaged.
    """
    return read_format(path, _KIND, _VERSION)


def require_replicas(content: Mapping[str, Any], replicas: Replicas) -> None:
    """Refuses a checkpoint whose replicas are not the replicas of this process.

    Raises:
        ValueError: it was written by a process that ran others.
    """
    held = content.get("replicas")
    if held != list(replicas.local):
        raise ValueError(
            f"The checkpoint holds replicas {held}, this process runs {list(replicas.local)}. "
            "Start as many replicas and processes as before, and let each process keep a file of its own."
        )


def restore_weights(
    content: Mapping[str, Any], model: nn.Module, optimizer: Optimizer | None, path: str | os.PathLike[str]
) -> None:
    """Gives a model and its optimizer what a checkpoint holds of them.

    Raises:
        ValueError: the model has other weights, or the optimizer other groups.
    """
    try:
        model.load_state_dict(content["model"])
    except _UNLIKE as error:
        raise ValueError(f"{path} does not fit the model: {error}") from error
    if optimizer is not None and "optimizer" in content:
        try:
            optimizer.load_state_dict(content["optimizer"])
            restore_types(optimizer, content["optimizer"])
        except _UNLIKE as error:
            raise ValueError(f"{path} does not fit the optimizer: {error}") from error


def restore_torchs_generator(content: Mapping[str, Any]) -> None:
    """Set torch's own generator to where it was when a checkpoint was taken, if replica 0 drew from it there.

    Raises:
        ValueError: the checkpoint holds something else.
    """
    if content["replicas"][0] == 0 and "generators" in content:
        try:
            torch.default_generator.set_state(content["generators"][0])
        except _UNLIKE as error:
            raise ValueError(f"The checkpoint holds no random numbers of torch: {error}.") from error


def restore_run(content: Mapping[str, Any], runner: StepRunner | CudaGraphRunner) -> None:
    """Goes on with the random numbers, the buffers and the count of updates that a checkpoint of its replicas holds.

    Raises:
        ValueError: it holds others.
    """
    try:
        runner.restore(content)
    except _UNLIKE as error:
        raise ValueError(f"The checkpoint does not fit the step: {error}. Load one of this model.") from error
