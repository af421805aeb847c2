"""PopTorch's options of one model, and what they are in popgeo's terms."""

from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from popgeo import ipu
from popgeo.compat.account import ignored
from popgeo.compat.poptorch import enums
from popgeo.compat.poptorch.errors import Error, check, said
from popgeo.compat.poptorch.options import Options
from popgeo.engine.loss_scaling import LossScaling
from popgeo.engine.optimizer.flat_parameters import is_elementwise

_MODES = {"Final": "final", "EveryN": "every_n", "All": "all", "Sum": "sum"}  # PopTorch's names and popgeo's
_MOST_IPUS = 64  # of one replica: a pod has no more


def popgeo_options(options: Options, optimizer: Optimizer | None) -> ipu.Options:
    """The choices that decide results and the modelled machine; an output mode has been picked.

    Args:
        options: PopTorch's.
        optimizer: Holds the scale of the loss and the largest norm of gradients, if it is one of PopTorch's.

    Raises:
        ValueError: a period that does not divide the steps of a call.

    Example:
        >>> chosen = Options().deviceIterations(4).outputMode(enums.OutputMode.All)
        >>> popgeo_options(chosen, None)
        Options(device_iterations=4, output_mode='all', strict=False)
    """
    popart = options._Popart.options
    strategy = options._execution_strategy
    return ipu.Options(
        device_iterations=options.device_iterations, replication_factor=options.replication_factor,
        gradient_accumulation=options.Training.gradient_accumulation,
        reduction=options.Training.accumulation_and_replication_reduction_type.name.lower(),
        output_mode=_MODES[enums.OutputMode(options.output_mode).name], output_period=options.output_return_period,
        shard_optimizer_state=_shards_state(options, optimizer),
        random_seed=options.random_seed if options.exists("random_seed") else None,
        floating_point_exceptions=bool(popart.get("enableFloatingPointChecks", False)),
        cache_dir=popart.get("cachePath") if popart.get("enableEngineCaching") else None,
        show_progress=options._show_compilation_progress_bar, target=_target(options),
        matmul_proportion=_matmul_proportion(options.available_memory_proportion),
        strict=False,  # such programs ran on several IPUs, or fitted by means that the model knows nothing of
        stochastic_rounding=bool(popart.get("enableStochasticRounding", False)),
        stages=strategy.stages(), schedule=strategy.schedule,
        **_of_optimizer(optimizer, follows_gradients=bool(popart.get("automaticLossScalingSettings.enabled", False))),
    )  # fmt: skip


def options_in_use(options: Options | None, training: bool, optimizer: Optimizer | None) -> Options:
    """The options of one model: a frozen copy with an output mode picked; those given are frozen too.

    Raises:
        Error: they are not options of PopTorch, or ask for something that inference does not have.

    Example:
        >>> options_in_use(None, True, None).output_mode == enums.OutputMode.Final
        True
    """
    if options is not None and not isinstance(options, Options):
        raise Error(f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)")
    given = options if options is not None else Options()
    check(training or given.Training.gradient_accumulation == 1, said("options_in_use"), Error)
    check(training or optimizer is None, "Optimizer should be None for inference")
    if given.replication_factor % given.input_group_size:
        raise Error(
            f"Options.inputReplicaGrouping has groups of {given.input_group_size}, which do not divide "
            f"Options.replicationFactor({given.replication_factor})."
        )
    given._freeze()
    own = given.clone()
    if own.defaultOutputMode():
        own.set(output_mode=(enums.OutputMode.Final if training else enums.OutputMode.All).value)
    in_half = getattr(optimizer, "accum_type", None) == torch.float16
    if in_half and not getattr(optimizer, "use_combined_accum", False):  # PopTorch divides such sums as they come
        own.Training.set(meanAccumulationAndReplicationReductionStrategy=enums.MeanReductionStrategy.Running)
    own._freeze()
    return own


def _of_optimizer(optimizer: Optimizer | None, *, follows_gradients: bool) -> dict[str, Any]:
    """What PopTorch's optimizers decide next to their update, or start from."""
    found = {name: getattr(optimizer, name, None) for name in ("loss_scaling", "max_grad_norm")}
    kept = {name: value for name, value in found.items() if value is not None and value != float("inf")}
    if follows_gradients and optimizer is not None:
        first = kept.get("loss_scaling", 1.0)
        kept["loss_scaling"] = LossScaling() if first == 1 else LossScaling(initial=first)
    return kept


def _matmul_proportion(by_ipu: dict[int, float]) -> float | tuple[float, ...]:
    """The share of a tile's memory that products take on each IPU; if not given, as on the machine."""
    default = ipu.Options().proportion_of(0)
    return tuple(by_ipu.get(number, default) for number in range(_MOST_IPUS)) if by_ipu else default


def _shards_state(options: Options, optimizer: Optimizer | None) -> bool:
    """Whether replicas keep a part each of the optimizer's state; not if it looks at whole tensors, as LAMB does."""
    location = options.TensorLocations.toDict().get("location_optimizer", {})
    asked = optimizer is not None and bool(location.get("useReplicatedTensorSharding"))
    alike = is_elementwise(type(optimizer))
    if asked and not alike:
        what = f"Options.TensorLocations.setOptimizerLocation with {type(optimizer).__name__}"
        ignored(what, "it looks at whole tensors, so every replica keeps its whole state")
    return asked and alike


def _target(options: Options) -> ipu.IpuTarget:
    """The machine of the generation asked for, without the tiles kept for transfers."""
    version = options.ipu_version if options.exists("ipu_version") else 2
    target = ipu.IpuTarget.gc2() if version == 1 else ipu.IpuTarget.bow()
    kept = options.TensorLocations.toDict().get("numIOTiles", 0)
    return replace(target, num_tiles=target.num_tiles - kept) if kept else target
