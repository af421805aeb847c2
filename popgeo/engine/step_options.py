"""The choices of `compile_step`: those of a call, without the machine model's."""

from dataclasses import dataclass

import torch

from popgeo.engine.call_options import OutputMode, Reduction
from popgeo.engine.loss_scaling import LossScaling, loss_scaling_of
from popgeo.engine.optimizer.precision import check_precision


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Choices on how a compiled step runs; `popgeo.Options` has the same and those of the simulated machine.

    Args:
        device_iterations: Steps, with an update each when training, that one call runs.
        gradient_accumulation: Micro-batches whose gradients one update joins.
        reduction: Whether gradients of micro-batches are averaged, `"mean"`, or summed, `"sum"`.
        output_mode: `"all"`, `"final"`, `"every_n"` or `"sum"`: which steps of a call return their results.
        output_period: With `every_n`, the last of each so many steps is returned.
        random_seed: Where random numbers start; None takes torch's own seed. Only for the processor.
        num_threads: Threads of a call on the processor; None finds out by measuring.
        loss_scaling: What the loss is multiplied by, and gradients are divided by; float16 needs some. `"dynamic"` or a
            `popgeo.LossScaling` lets it follow the gradients; not for `backend="cuda"`.
        accumulation_dtype, optimizer_state_dtype, master_weights, stochastic_rounding: As in `popgeo.Options`; not for
            `backend="cuda"`.
        max_grad_norm: 2-norm that the gradients of one update are scaled down to.

    Raises:
        ValueError: a count is below 1, a number is not positive, or a mode is unknown.

    Example:
        >>> StepOptions(gradient_accumulation=2).batch_factor
        2
    """

    device_iterations: int = 1
    gradient_accumulation: int = 1
    reduction: Reduction | str = Reduction.MEAN
    output_mode: OutputMode | str | None = None
    output_period: int = 1
    random_seed: int | None = None
    num_threads: int | None = None
    loss_scaling: float | LossScaling | str = 1.0
    accumulation_dtype: torch.dtype | None = None
    optimizer_state_dtype: torch.dtype | None = None
    master_weights: bool = False
    stochastic_rounding: bool = False
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("device_iterations", "gradient_accumulation", "output_period", "num_threads"):
            count = getattr(self, name)
            if (count is not None or name != "num_threads") and (type(count) is not int or count < 1):
                raise ValueError(f"StepOptions.{name} is {count!r}; it must be an integer of at least 1.")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"StepOptions.max_grad_norm is {self.max_grad_norm!r}; it must be positive.")
        object.__setattr__(self, "loss_scaling", loss_scaling_of(self.loss_scaling, "StepOptions"))
        check_precision(self)
        for kind, name in ((Reduction, "reduction"), (OutputMode, "output_mode")):
            choice = getattr(self, name)
            allowed = [member.value for member in kind]
            if (choice is not None or kind is Reduction) and choice not in (*kind, *allowed):
                raise ValueError(f"StepOptions.{name} is {choice!r}; it must be one of {allowed}.")
        if self.output_mode in (OutputMode.EVERY_N, "every_n") and self.steps_per_call % self.output_period:
            raise ValueError(
                f"StepOptions.output_period is {self.output_period}, but a call runs {self.steps_per_call} steps "
                "(device_iterations x gradient_accumulation). Choose a period that divides them."
            )

    @property
    def replication_factor(self) -> int:
        """One: a device is one replica."""
        return 1

    @property
    def shard_optimizer_state(self) -> bool:
        """False: there are no replicas to keep parts of it."""
        return False

    @property
    def floating_point_exceptions(self) -> bool:
        """False: results are not looked at one by one."""
        return False

    @property
    def steps_per_call(self) -> int:
        """Micro-batches of one call."""
        return self.device_iterations * self.gradient_accumulation

    @property
    def batch_factor(self) -> int:
        """The same: how many micro-batches one call takes in all."""
        return self.steps_per_call
