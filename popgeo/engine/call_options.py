"""What a call needs of the choices of a compiled model."""

from enum import Enum
from typing import Protocol

from popgeo.engine.loss_scaling import LossScaling
from popgeo.engine.optimizer.precision import PrecisionOptions


class OutputMode(Enum):
    """Which of the steps inside one call return their results."""

    ALL = "all"
    FINAL = "final"
    EVERY_N = "every_n"
    SUM = "sum"


class Reduction(Enum):
    """How gradients of micro-batches and replicas become one."""

    MEAN = "mean"
    SUM = "sum"


class CallOptions(PrecisionOptions, Protocol):
    """Choices that decide what one call runs and returns; `popgeo.ipu.Options` explains each of them."""

    @property
    def device_iterations(self) -> int:
        """Steps, with an update each when training, that one call runs."""

    @property
    def gradient_accumulation(self) -> int:
        """Micro-batches whose gradients one update joins."""

    @property
    def replication_factor(self) -> int:
        """Data-parallel copies of the model, over all processes."""

    @property
    def steps_per_call(self) -> int:
        """Micro-batches that each replica takes in one call."""

    @property
    def reduction(self) -> Reduction | str:
        """Whether gradients of micro-batches and replicas are averaged or summed."""

    @property
    def output_mode(self) -> OutputMode | str | None:
        """Which steps return their results; None leaves it to `chosen_output_mode`."""

    @property
    def output_period(self) -> int:
        """With `every_n`, the last of each so many steps is returned."""

    @property
    def num_threads(self) -> int | None:
        """Threads of a call; None lets each step find out by measuring its first calls."""

    @property
    def loss_scaling(self) -> float | LossScaling | str:
        """What the loss is multiplied by, and gradients are divided by; or the rule by which that changes."""

    @property
    def max_grad_norm(self) -> float | None:
        """2-norm that the gradients of one update are scaled down to."""

    @property
    def shard_optimizer_state(self) -> bool:
        """Whether each replica keeps a part of the optimizer's state."""

    @property
    def floating_point_exceptions(self) -> bool:
        """Whether each operation's result is looked at."""


def chosen_output_mode(options: CallOptions, *, trains: bool) -> OutputMode:
    """The mode asked for; without one, a call returns what its last step does when training, and all otherwise."""
    return OutputMode(options.output_mode or (OutputMode.FINAL if trains else OutputMode.ALL))


def constant_loss_scaling(options: CallOptions) -> float | None:
    """The scale of the loss where it is constant; None where it follows the gradients."""
    return options.loss_scaling if isinstance(options.loss_scaling, int | float) else None


def gradient_divisor(options: CallOptions) -> float:
    """What the sum of an update's gradients is divided by, beside a scale of the loss that is not constant."""
    joined = options.gradient_accumulation * options.replication_factor
    scale = constant_loss_scaling(options)
    return (1.0 if scale is None else scale) * (joined if Reduction(options.reduction) is Reduction.MEAN else 1)
