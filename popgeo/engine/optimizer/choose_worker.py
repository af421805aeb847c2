"""Choice of the worker that steps an optimizer."""

from collections.abc import Sequence

from popgeo.engine.optimizer.capture_update import changes_state_alone
from popgeo.engine.optimizer.flat_parameters import FlatParameters, is_elementwise
from popgeo.engine.optimizer.flat_worker import FlatWorker, needs_mixed
from popgeo.engine.optimizer.worker import OwnWorker, Worker, without_parameters
from popgeo.engine.step_options import StepOptions


def choose_worker(own: OwnWorker, flat: Sequence[FlatParameters], options: StepOptions, part: int = 0) -> Worker:
    """Return the worker that steps an optimizer's parameters.

    An elementwise optimizer, and an optimizer whose update runs in float32, gets a worker over flat parameters, with
    one group for each. Any other optimizer steps its own parameters.

    Args:
        own: Worker of the user's optimizer.
        flat: Flat parameters.
        options: Options of the run, which give the types of the update.
        part: Part of the parameters that this process updates.

    Raises:
        ValueError: The options ask for an update in other types, but the optimizer may keep progress outside of the
            state of single parameters.
    """
    optimizer, is_mixed = own.optimizer, needs_mixed(own.optimizer, options)
    elementwise = is_elementwise(type(optimizer))
    if not (elementwise or is_mixed):
        return own
    flat_optimizer = without_parameters(optimizer)
    groups = [optimizer.param_groups[part.group] for part in flat]
    flat_optimizer.param_groups = [{**group, "params": [part.own]} for group, part in zip(groups, flat, strict=True)]
    worker = FlatWorker(flat_optimizer, options if is_mixed else None, part)
    is_of_torch = type(optimizer).__module__.startswith("torch.optim")
    if is_of_torch or (hasattr(optimizer, "elementwise") and changes_state_alone(worker)):
        return worker
    if not is_mixed and not any(part.is_divided for part in flat):
        return own
    raise ValueError(
        f"{type(optimizer).__name__} may keep progress outside the state of single parameters, so its update cannot "
        "run in other types or in parts. Leave out accumulation_dtype, optimizer_state_dtype, master_weights, "
        "stochastic_rounding and shard_optimizer_state; or keep its progress in that state, and give its class an "
        "attribute elementwise: True if it updates each element by itself, False if it looks at whole parameters, one "
        "at a time."
    )
