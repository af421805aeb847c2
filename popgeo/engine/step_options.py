"""The options of a compiled step; `popgeo.ipu.Options` extends them by options of the simulated machine."""

from dataclasses import dataclass
from enum import Enum
from os import PathLike
from typing import NoReturn, cast

import torch

from popgeo.did_you_mean import names_arguments
from popgeo.engine.loss_scaling import LossScaling, loss_scaling_of

_PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)


class OutputMode(Enum):
    """The choice of the steps inside one call that return their results."""

    ALL = "all"
    FINAL = "final"
    EVERY_N = "every_n"
    SUM = "sum"


class Reduction(Enum):
    """The way to combine gradients of micro-batches and replicas."""

    MEAN = "mean"
    SUM = "sum"


@names_arguments
@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options of a compiled step; change one option with `dataclasses.replace`.

    One call of a compiled step takes tensors whose first dimension is `batch_factor` times that of one micro-batch,
    laid out as device iterations, then accumulation steps, then replicas, then the micro-batch itself.

    Attributes:
        device_iterations: Steps of one call; in training, each has its own update. Default: 1.
        replication_factor: Data-parallel copies of the model; each takes its own micro-batch of every step. Default: 1.
        gradient_accumulation: Micro-batches per update. Default: 1.
        reduction: Whether gradients of micro-batches and replicas are averaged or summed. Default: averaged.
        output_mode: Steps that return their results. Default: `final` in training, `all` otherwise.
        output_period: In the mode `every_n`, the last step of each period returns its results. Default: 1.
        random_seed: Seed of dropout and other random numbers. Default: torch's own generator.
        num_threads: Threads of a call. Default: each step measures its calls to find the fastest number, at most
            torch's. Torch's matrix products may differ in the last bit between numbers, so fix it if every bit counts.
        loss_scaling: Factor of the loss before the backward pass; gradients are divided by it afterwards. It keeps
            small float16 gradients from becoming 0. With `"dynamic"` or a `LossScaling`, updates with infinity or NaN
            are skipped and lower the factor, and finite updates raise it. Default: 1.
        accumulation_dtype: Type in which gradients of float16 and bfloat16 weights are added and scaled; float32
            computes updates in float32, too. Default: the type of the weights, or float32 if one of the next three
            options is set.
        optimizer_state_dtype: Type of the optimizer's state (momentum, squares). Updates of float16 weights are
            then computed in float32. Default: the type of the weights, as in torch.
        master_weights: Keep a float32 copy of float16 weights, and update it in float32. Default: False.
        stochastic_rounding: Compute updates of float16 weights in float32, and round new weights (and state of a
            narrower type) up or down at random so that the mean is right. Default: False.
        max_grad_norm: Largest 2-norm of an update's gradients over all parameters; larger gradients are scaled down.
            Default: no limit.
        shard_optimizer_state: Each process keeps a part of the optimizer's state, updates that part of the weights and
            sends it to the others. Results are the same, except that with stochastic_rounding each process draws its
            own random numbers. Default: False.
        floating_point_exceptions: Stop at the first operation whose result contains NaN or infinity, and name it. This
            is slower. Default: False.
        batch_invariant: Compute the results of a graph, and its part of each gradient, with the same bits whatever else
            is in the batch: in every slot, with any padding, in batches of any size, for any number of threads and on
            AVX2 and AVX-512. Gradients are summed so that the graphs of an update may be divided into equal
            micro-batches, replicas and processes. Needs the compiled kernels, weights of float32 or float64, and a
            model that computes each graph by itself (no batch norm in training). Default: False; results of most models
            have these bits anyway, their gradients do not.
        cache_dir: Folder for compiled steps, from which a second start reads them instead of capturing again. Default:
            none.
        show_progress: Show a progress bar if compiling takes longer than a second. Default: True.

    Raises:
        ValueError: a count is below 1, a number is not positive, a mode is unknown, or two options exclude each other.

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
    batch_invariant: bool = False
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
                f"{owner} has both master_weights and stochastic_rounding. Master weights already lose nothing by "
                "rounding; choose one of the two."
            )
        if isinstance(self.loss_scaling, LossScaling) and self.floating_point_exceptions:
            raise ValueError(
                f"{owner}.floating_point_exceptions stops at the first infinity, but a dynamic loss_scaling needs "
                "infinite gradients in order to fall. Choose a constant loss_scaling, or leave the exceptions out."
            )
        if self.output_mode is OutputMode.EVERY_N and self.steps_per_call % self.output_period:
            raise ValueError(
                f"{owner}.output_period is {self.output_period}, but a call runs {self.steps_per_call} steps "
                "(device_iterations x gradient_accumulation). Choose a period that divides this number."
            )

    @property
    def steps_per_call(self) -> int:
        """Micro-batches of each replica in one call."""
        return self.device_iterations * self.gradient_accumulation

    @property
    def batch_factor(self) -> int:
        """Micro-batches of all replicas in one call."""
        return self.steps_per_call * self.replication_factor

    @property
    def constant_loss_scaling(self) -> float | None:
        """The scale of the loss; None if it is dynamic."""
        return self.loss_scaling if isinstance(self.loss_scaling, int | float) else None

    @property
    def gradient_divisor(self) -> float:
        """The divisor of an update's summed gradients, without a dynamic scale of the loss."""
        joined = self.gradient_accumulation * self.replication_factor
        scale = self.constant_loss_scaling
        return (1.0 if scale is None else scale) * (joined if self.reduction is Reduction.MEAN else 1)

    def chosen_output_mode(self, *, trains: bool) -> OutputMode:
        """Return the output mode; its default is `FINAL` in training and `ALL` otherwise."""
        default = OutputMode.FINAL if trains else OutputMode.ALL
        return default if self.output_mode is None else cast(OutputMode, self.output_mode)

    def _settle(self, name: str, value: object) -> None:
        """Set a field of the frozen options while they are created."""
        object.__setattr__(self, name, value)

    def _refuse(self, name: str, what: str) -> NoReturn:
        raise ValueError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; {what}.")

    def _member(self, kind: type[Enum], name: str) -> Enum:
        try:
            return kind(getattr(self, name))
        except ValueError:
            self._refuse(name, f"it must be one of {', '.join(repr(member.value) for member in kind)}")
