"""Which worker steps an optimizer: torch's own step, one in wider types, captured graphs."""

from collections.abc import Sequence

from popgeo.engine.optimizer.captured_worker import CapturedWorker
from popgeo.engine.optimizer.flat_parameters import FlatParameters, is_elementwise
from popgeo.engine.optimizer.mixed_worker import MixedWorker, needs_mixed
from popgeo.engine.optimizer.worker import OwnWorker, Worker, without_parameters
from popgeo.engine.step_options import StepOptions


def choose_worker(own: OwnWorker, flat: Sequence[FlatParameters], options: StepOptions, part: int = 0) -> Worker:
    """What steps an optimizer's parameters.

    That is the optimizer itself, unless it treats every element alike, or its update is to have other types: then it is
    one like it over joined parameters, each in a group of its own.

    Args:
        own: Steps the user's optimizer as it is.
        flat: The parameters.
        options: Of the run, which say in which types updates are worked out.
        part: Which part of the parameters this process updates.

    Raises:
        ValueError: its update is to have other types, and it keeps more than the state of single parameters.
    """
    optimizer, is_mixed = own.optimizer, needs_mixed(own.optimizer, options)
    alike = is_elementwise(type(optimizer))
    if not (alike or is_mixed):
        return own
    if not (alike or type(optimizer).__module__.startswith("torch.optim") or hasattr(optimizer, "elementwise")):
        raise ValueError(
            f"{type(optimizer).__name__} may keep progress elsewhere than in the state of single parameters, so its "
            "update is not worked out in other types. Leave out accumulation_dtype, optimizer_state_dtype, "
            "master_weights and stochastic_rounding; or give its class an attribute elementwise: True if it treats "
            "every element alike, False if it looks at whole parameters, one at a time."
        )
    alone = without_parameters(optimizer)
    groups = [optimizer.param_groups[part.group] for part in flat]
    alone.param_groups = [{**group, "params": [part.own]} for group, part in zip(groups, flat, strict=True)]
    worker = MixedWorker(alone, options, part) if is_mixed else Worker(alone)
    return CapturedWorker(worker) if alike else worker
