"""The options of a run: the one declaration, which `popgeo.ipu.Options` extends by those of the simulated machine."""

from dataclasses import dataclass
from enum import Enum
from os import PathLike
from typing import NoReturn, cast

import torch

from popgeo.did_you_mean import names_arguments
from popgeo.engine.loss_scaling import LossScaling, loss_scaling_of

_PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)


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


@names_arguments
@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How a compiled step runs; change one option with `dataclasses.replace`.

    One call of a compiled step takes tensors whose first dimension is `batch_factor` times that of one micro-batch,
    laid out as device iterations, then accumulation steps, then replicas, then the micro-batch itself.

    Attributes:
        device_iterations: Steps (with an update each, when training) that one call runs.
        replication_factor: Data-parallel copies of the model; each takes its own micro-batch of every step.
        gradient_accumulation: Micro-batches whose gradients one update joins.
        reduction: Whether gradients of micro-batches and replicas are averaged or summed.
        output_mode: Which steps return their results; None is `final` when training and `all` otherwise.
        output_period: With `every_n`, the last of each that many steps is returned.
        random_seed: Where dropout starts; None takes torch's own seed when the model is compiled.
        num_threads: Threads of a call here; None lets each step find out by measuring its calls, up to torch's own
            number. torch's matrix products may differ in the last bit with it: tell a number where every bit counts.
        loss_scaling: The loss is multiplied by it before the backward pass and gradients are divided by it after,
            which keeps small float16 gradients from vanishing. `"dynamic"` or a `LossScaling` lets it follow the
            gradients: updates with infinity or NaN are left out, and the scale falls; else it grows.
        accumulation_dtype: The type in which gradients of float16 and bfloat16 weights are joined and scaled; float32
            works updates out in float32, too. None is the weights' own, or float32 if one of the next three is set.
        optimizer_state_dtype: The type of the optimizer's state (momentum, squares). Updates of float16 weights are
            then worked out in float32. None does what torch does, all of it in the type of the weights.
        master_weights: The optimizer keeps float16 weights in float32 too, and updates those, in float32.
        stochastic_rounding: Updates of float16 weights are worked out in float32, and the new weights (and state of a
            narrower type) are rounded up or down at random so that the expectation is right. Nothing else is.
        max_grad_norm: Gradients of one update are scaled down to this 2-norm over all parameters; None leaves them.
        shard_optimizer_state: Each replica keeps a part of the optimizer's state: it gets its part of the summed
            gradients, updates that part of the weights and hands it on. Replicas of one process share the whole state,
            which it holds once anyway; of several processes each holds its part. Results are the same, but for the
            random numbers of stochastic_rounding, of which each process then draws its own.
        floating_point_exceptions: Stop at the first operation whose result holds NaN or infinity, and name it. Slower.
        cache_dir: Folder in which compiled steps are kept, so that a second start skips the capture; None keeps none.
        show_progress: Show a progress bar while compiling takes longer than a second.

    Raises:
        ValueError: a count is below 1, a number is not positive, a mode is unknown, or two choices exclude each other.

    Example:
        >>> StepOptions(device_iterations=3, gradient_accumulation=2).batch_factor
        6
    """

    device_iterations: int = 1
    replication_factor: int = 1
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
    shard_optimizer_state: bool = False
    floating_point_exceptions: bool = False
    cache_dir: str | PathLike[str] | None = None
    show_progress: bool = True

    def __post_init__(self) -> None:
        counts = ["device_iterations", "replication_factor", "gradient_accumulation", "output_period"]
        for name in counts if self.num_threads is None else [*counts, "num_threads"]:
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                self._refuse(name, "it must be an integer of at least 1")
        if not isinstance(self.random_seed, int | None):
            self._refuse("random_seed", "it must be a whole number or None")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            self._refuse("max_grad_norm", "it must be positive")
        self._settle("loss_scaling", loss_scaling_of(self.loss_scaling, type(self).__name__))
        self._settle("reduction", self._member(Reduction, "reduction"))
        if self.output_mode is not None:
            self._settle("output_mode", self._member(OutputMode, "output_mode"))
        for name in ("accumulation_dtype", "optimizer_state_dtype"):
            if getattr(self, name) not in (None, *_PRECISIONS):
                self._refuse(name, f"it must be {', '.join(map(str, _PRECISIONS))} or None")
        owner = type(self).__name__
        if self.master_weights and self.stochastic_rounding:
            raise ValueError(
                f"{owner} asks for master_weights and for stochastic_rounding. Master weights lose nothing that "
                "rounding at random could keep; choose one."
            )
        if isinstance(self.loss_scaling, LossScaling) and self.floating_point_exceptions:
            raise ValueError(
                f"{owner}.floating_point_exceptions stops at the first infinity, which a dynamic loss_scaling has to "
                "meet in order to fall. Choose a constant loss_scaling, or leave the exceptions out."
            )
        if self.output_mode is OutputMode.EVERY_N and self.steps_per_call % self.output_period:
            raise ValueError(
                f"{owner}.output_period is {self.output_period}, but a call runs {self.steps_per_call} steps "
                "(device_iterations x gradient_accumulation). Choose a period that divides them."
            )

    @property
    def steps_per_call(self) -> int:
        """Micro-batches that each replica takes in one call."""
        return self.device_iterations * self.gradient_accumulation

    @property
    def batch_factor(self) -> int:
        """How many micro-batches one call takes in all."""
        return self.steps_per_call * self.replication_factor

    @property
    def constant_loss_scaling(self) -> float | None:
        """The scale of the loss if it is constant; None if it follows the gradients."""
        return self.loss_scaling if isinstance(self.loss_scaling, int | float) else None

    @property
    def gradient_divisor(self) -> float:
        """What the sum of an update's gradients is divided by, next to a scale of the loss that is not constant."""
        joined = self.gradient_accumulation * self.replication_factor
        scale = self.constant_loss_scaling
        return (1.0 if scale is None else scale) * (joined if self.reduction is Reduction.MEAN else 1)

    def chosen_output_mode(self, *, trains: bool) -> OutputMode:
        """The mode asked for; without one, what the last step returns when training, and all otherwise."""
        default = OutputMode.FINAL if trains else OutputMode.ALL
        return default if self.output_mode is None else cast(OutputMode, self.output_mode)

    def _settle(self, name: str, value: object) -> None:
        """Gives a field its final form while the options are made."""
        object.__setattr__(self, name, value)

    def _refuse(self, name: str, what: str) -> NoReturn:
        raise ValueError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; {what}.")

    def _member(self, kind: type[Enum], name: str) -> Enum:
        try:
            return kind(getattr(self, name))
        except ValueError:
            self._refuse(name, f"it must be one of {', '.join(repr(member.value) for member in kind)}")
