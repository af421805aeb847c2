"""Which worker steps an optimizer."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from popgeo.engine.optimizer.captured_worker import CapturedWorker
from popgeo.engine.optimizer.flat_parameters import FlatParameters, is_elementwise
from popgeo.engine.optimizer.gradient_scaling import set_gradient
from popgeo.engine.optimizer.mixed_worker import MixedWorker, needs_mixed
from popgeo.engine.optimizer.worker import Worker, without_parameters
from popgeo.engine.step_options import StepOptions


def choose_worker(optimizer: Optimizer, flat: Sequence[FlatParameters], options: StepOptions, part: int = 0) -> Worker:
    """What steps an optimizer's joined parameters, one a group; it has no state yet.

    What decides is what the optimizer does, so one that can be stepped in none of these ways is refused here, or gets a
    worker of its own.

    Args:
        optimizer: The user's; it stays as it is.
        flat: The parameters.
        options: Of the run, which say in which types updates are worked out.
        part: Which part of the parameters this process updates.

    Raises:
        ValueError: it takes no gradients of the type in which they are joined.
    """
    own = without_parameters(optimizer)
    groups = [optimizer.param_groups[part.group] for part in flat]
    own.param_groups = [{**group, "params": [part.own]} for group, part in zip(groups, flat, strict=True)]
    worker = MixedWorker(own, options, part) if needs_mixed(own, options) else Worker(own)
    _require_wide_gradients(worker, flat)
    return CapturedWorker(worker) if is_elementwise(type(optimizer)) else worker


def _require_wide_gradients(worker: Worker, flat: Sequence[FlatParameters]) -> None:
    """Refuses a type of accumulation that the optimizer's own code does not take, found out on single elements."""
    wide = [part for part in flat if part.total.dtype != part.flat.dtype]
    if not wide:
        return
    ones = [nn.Parameter(torch.ones(1, dtype=part.flat.dtype, device="cpu")) for part in flat]
    for one, part in zip(ones, flat, strict=True):
        set_gradient(one, torch.ones_like(one.detach(), dtype=part.total.dtype))
    try:
        worker.over(ones).step()
    except RuntimeError:
        raise ValueError(
            f"Options.accumulation_dtype joins gradients in {wide[0].total.dtype}, but "
            f"{type(worker.optimizer).__name__} takes none but {wide[0].flat.dtype} for such weights. Set "
            "optimizer_state_dtype as well, to either type: updates are then worked out in float32."
        ) from None
