"""Saves a training run and resumes it as if it had never stopped."""

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
# Errors of a file with a valid checksum whose content does not fit.
_MISFIT = (RuntimeError, ValueError, LookupError, TypeError, AttributeError)


def save_checkpoint(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write tensors and numbers to a file; a process killed meanwhile leaves the old file."""
    write_format(path, content, _KIND, _VERSION)


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of `save_checkpoint`, also of versions without a checksum; nothing in the file is executed.

    Raises:
        ValueError: the file is not a checkpoint of popgeo, or it is damaged.
    """
    return read_format(path, _KIND, _VERSION)


def require_replicas(content: Mapping[str, Any], replicas: Replicas) -> None:
    """Check that a checkpoint belongs to the replicas of this process.

    Raises:
        ValueError: a process with other replicas wrote it.
    """
    held = content.get("replicas")
    if held != list(replicas.local):
        raise ValueError(
            f"The checkpoint holds replicas {held}, this process runs {list(replicas.local)}. "
            "Start as many replicas and processes as before, and give each process its own file."
        )


def restore_weights(
    content: Mapping[str, Any], model: nn.Module, optimizer: Optimizer | None, path: str | os.PathLike[str]
) -> None:
    """Load weights and optimizer state from the content of a checkpoint.

    Args:
        content: The content of the checkpoint.
        model: The model, which changes in place.
        optimizer: The optimizer, which changes in place; None for a forward pass.
        path: Path of the file, for messages.

    Raises:
        ValueError: the model has other weights, or the optimizer other groups.
    """
    try:
        model.load_state_dict(content["model"])
    except _MISFIT as error:
        raise ValueError(f"{path} does not fit the model: {error}") from error
    if optimizer is not None and "optimizer" in content:
        wanted = {*optimizer.defaults}  # loading adds one
        try:
            optimizer.load_state_dict(content["optimizer"])
            restore_types(optimizer, content["optimizer"])
            if lost := sorted(wanted.difference(*optimizer.param_groups)):
                kind = type(optimizer).__name__
                raise ValueError(f"{', '.join(lost)} of {kind} is missing, so the file is of another kind of optimizer")
        except _MISFIT as error:
            raise ValueError(f"{path} does not fit the optimizer: {error}") from error


def restore_torchs_generator(content: Mapping[str, Any]) -> None:
    """Set torch's own generator to its state in a checkpoint, if the checkpoint has replica 0, which draws from it.

    Raises:
        ValueError: the checkpoint contains no state of a generator.
    """
    if content["replicas"][0] == 0 and "generators" in content:
        try:
            torch.default_generator.set_state(content["generators"][0])
        except _MISFIT as error:
            raise ValueError(f"The checkpoint contains no state of torch's generator: {error}.") from error


def restore_run(content: Mapping[str, Any], runner: StepRunner | CudaGraphRunner) -> None:
    """Restore random numbers, buffers and the count of updates from a checkpoint.

    Raises:
        ValueError: the checkpoint does not fit the step.
    """
    try:
        runner.restore(content)
    except _MISFIT as error:
        raise ValueError(f"The checkpoint does not fit the step: {error}. Load one of this model.") from error
