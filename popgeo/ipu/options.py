"""The choices of one compiled model: how often it iterates per call, over how many replicas, and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from os import PathLike
from typing import Any

import pandas as pd
import torch

from popgeo.engine.call_options import OutputMode, Reduction
from popgeo.engine.loss_scaling import LossScaling, loss_scaling_of
from popgeo.engine.optimizer.precision import check_precision
from popgeo.ipu.target import IpuTarget


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a compiled model runs; change one with `dataclasses.replace`.

    One call of a compiled model takes tensors whose first dimension is `batch_factor` times that of one micro-batch,
    laid out as device iterations, then accumulation steps, then replicas, then the micro-batch itself.

    Attributes:
        device_iterations: Steps (with an update each, when training) that one call runs.
        replication_factor: Data-parallel copies of the model; each takes its own micro-batch of every step.
        gradient_accumulation: Micro-batches whose gradients one update joins.
        reduction: Whether gradients of micro-batches and replicas are averaged or summed.
        output_mode: Which steps return their results; None is `final` when training and `all` otherwise.
        output_period: With `every_n`, the last of each so many steps is returned.
        random_seed: Where dropout starts; None takes torch's own seed when the model is compiled.
        num_threads: Threads of a call here; None lets each step find out by measuring its calls, up to torch's own
            number. torch's matrix products may differ in the last bit with it: tell a number where every bit counts.
        loss_scaling: The loss is multiplied by it before the backward pass and gradients are divided by it after,
            which keeps small float16 gradients from vanishing. `"dynamic"` or a `LossScaling` lets it follow the
            gradients: updates with infinity or NaN are left out, and the scale falls; else it grows.
        accumulation_dtype: The type in which gradients of float16 and bfloat16 weights are joined and scaled; None is
            the weights' own, or float32 where one of the next three is set.
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
        target: The machine that the step is compiled for.
        matmul_proportion: Share of a tile's memory that a dense product may take while it runs, on every IPU or on each
            in turn; PopTorch's `setAvailableMemoryProportion`. With less a product is cut into more parts, one after
            the other. It changes the account and no result.
        strict: Refuse to compile what needs more memory than a tile of the target has. False lets it run, since this
            computer has the memory, and leaves it to the report to tell.
        stages: Run each micro-batch stage by stage, over several IPUs like the target: so many stages, cut where they
            are even in cycles and memory, as `4`; or the number of the model's alike layers on each IPU, as
            `[0, 3, 3]`; or which layers begin a stage on which IPU, as `{"layers.3": 1}`; or `"blocks"` for those that
            the model names with `Block` or `BeginBlock`, a stage wherever the IPU changes, `"each block"` for a stage
            for every one of them, or a list of `Stage`. None takes the blocks of a model that names several IPUs, and
            runs any other as a whole on one. Each stage is on one IPU, so `target.num_ipus` stays 1. Results are those
            of the step as a whole, bit by bit; only a sum that the whole step takes in one pass with operations before
            it, of which some are in another stage, may differ in the last bit of float32.
        schedule: In which order stages take micro-batches, as `popgeo.ipu.Schedule` names them; None leaves it to
            `popgeo.ipu.pipeline`.
        recompute: Keep of each micro-batch only what a stage receives, and repeat its forward pass before its backward
            pass. Names of layers keep the results of these too. It needs stages, if only one.

    Raises:
        ValueError: a count is not a positive integer, or the period does not divide the steps of a call.

    Example:
        >>> options = Options(device_iterations=4, gradient_accumulation=2, output_mode="all")
        >>> options
        Options(device_iterations=4, gradient_accumulation=2, output_mode='all')
        >>> options.batch_factor, options.output_mode
        (8, <OutputMode.ALL: 'all'>)
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
    target: IpuTarget = field(default_factory=IpuTarget.bow)
    matmul_proportion: float | tuple[float, ...] = 0.6
    strict: bool = True
    stages: int | str | Sequence[Any] | Mapping[str, int] | None = field(default=None, hash=False)
    schedule: str | None = None
    recompute: bool | Sequence[str] = False

    def __post_init__(self) -> None:
        for name in (
            "device_iterations",
            "replication_factor",
            "gradient_accumulation",
            "output_period",
            "num_threads",
        ):
            count = getattr(self, name)
            if name == "num_threads" and count is None:
                continue
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"Options.{name} is {count!r}; it must be an integer of at least 1.")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"Options.max_grad_norm is {self.max_grad_norm!r}; it must be positive.")
        object.__setattr__(self, "loss_scaling", loss_scaling_of(self.loss_scaling, "Options"))
        check_precision(self)
        if isinstance(self.loss_scaling, LossScaling) and self.floating_point_exceptions:
            raise ValueError(
                "Options.floating_point_exceptions stops at the first infinity, which a dynamic loss_scaling has to "
                "meet in order to fall. Choose a constant loss_scaling, or leave the exceptions out."
            )
        if not isinstance(self.shard_optimizer_state, bool):
            raise ValueError(f"Options.shard_optimizer_state is {self.shard_optimizer_state!r}; it is True or False.")
        object.__setattr__(self, "reduction", _member(Reduction, "reduction", self.reduction))
        if self.output_mode is not None:
            object.__setattr__(self, "output_mode", _member(OutputMode, "output_mode", self.output_mode))
        if self.output_mode is OutputMode.EVERY_N and self.steps_per_call % self.output_period:
            raise ValueError(
                f"Options.output_period is {self.output_period}, but a call runs {self.steps_per_call} steps "
                "(device_iterations x gradient_accumulation). Choose a period that divides them."
            )
        parts = self.matmul_proportion
        object.__setattr__(self, "matmul_proportion", parts if isinstance(parts, int | float) else tuple(parts))
        for part in (parts,) if isinstance(parts, int | float) else parts:
            if not 0 <= part <= 1:
                raise ValueError(
                    f"Options.matmul_proportion is {parts!r}; it is a share of a tile's memory, 0 to 1, or "
                    "one for each IPU."
                )
        if not isinstance(self.target, IpuTarget):
            raise ValueError(f"Options.target is {self.target!r}; pass an IpuTarget, for example IpuTarget.bow().")
        self._check_stages()

    def _check_stages(self) -> None:
        """Turns what says how stages run into what cannot change, and refuses what could mean nothing."""
        stages, recompute = self.stages, self.recompute
        if (isinstance(stages, str) and stages not in ("blocks", "each block")) or not isinstance(
            stages, int | Sequence | Mapping | None
        ):
            raise ValueError(
                f"Options.stages is {stages!r}; give how many, layers of each IPU as [0, 3, 3], or the layers that "
                'begin a stage and their IPUs as {"layers.3": 1}, or "blocks" for those that the model names.'
            )
        if isinstance(stages, int) and (isinstance(stages, bool) or stages < 1):
            raise ValueError(f"Options.stages is {stages!r}; ask for at least one.")
        if isinstance(stages, Mapping):
            object.__setattr__(self, "stages", dict(stages))
        elif isinstance(stages, Sequence) and not isinstance(stages, str):
            object.__setattr__(self, "stages", tuple(stages))
        if isinstance(recompute, str) or not isinstance(recompute, bool | Sequence):
            raise ValueError(f"Options.recompute is {recompute!r}; give True, False or a list of layers to keep.")
        if not isinstance(recompute, bool):
            object.__setattr__(self, "recompute", tuple(recompute))
        if self.schedule is not None:
            object.__setattr__(self, "schedule", getattr(self.schedule, "value", self.schedule))

    def proportion_of(self, ipu: int) -> float:
        """Share of a tile's memory that a dense product may take on an IPU of a replica.

        Raises:
            ValueError: there is a share for each IPU, and none for this one.

        Example:
            >>> Options(matmul_proportion=0.25).proportion_of(7)
            0.25
        """
        if not isinstance(self.matmul_proportion, tuple):
            return self.matmul_proportion
        if ipu >= len(self.matmul_proportion):
            raise ValueError(
                f"Options.matmul_proportion has shares for {len(self.matmul_proportion)} IPUs, but IPU {ipu} is in "
                "use. Give one for each, or one number for all."
            )
        return self.matmul_proportion[ipu]

    def _chosen(self) -> dict[str, object]:
        """What differs from the default, as it would be typed."""
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self) if f.default is not MISSING}
        shown: dict[str, object] = {
            name: repr(value.value if isinstance(value, Enum) else value)
            for name, (value, default) in values.items()
            if value != default
        }
        return shown | ({} if self.target == IpuTarget.bow() else {"target": self.target})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._chosen().items())})"

    def _repr_html_(self) -> str:
        shown = {f.name: str(getattr(self, f.name)) for f in fields(self)}
        with pd.option_context("display.max_colwidth", None):
            return pd.Series(shown, name=type(self).__name__).to_frame().to_html()

    @property
    def steps_per_call(self) -> int:
        """Micro-batches that each replica takes in one call."""
        return self.device_iterations * self.gradient_accumulation

    @property
    def batch_factor(self) -> int:
        """How many micro-batches one call takes in all."""
        return self.steps_per_call * self.replication_factor


def _member(kind: type[Enum], name: str, choice: object) -> Enum:
    try:
        return kind(choice)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"Options.{name} is {choice!r}; it must be one of {allowed}.") from None
