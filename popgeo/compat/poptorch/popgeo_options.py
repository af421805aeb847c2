"""Translation of PopTorch's options to popgeo's."""

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

_MODES = {"Final": "final", "EveryN": "every_n", "All": "all", "Sum": "sum"}  # PopTorch's name -> popgeo's name
_MOST_IPUS = 64  # IPUs of the largest pod


def popgeo_options(options: Options, optimizer: Optimizer | None) -> ipu.Options:
    """Return popgeo's options for PopTorch's options. The output mode must have been chosen.

    Args:
        options: PopTorch's options.
        optimizer: Optimizer. An optimizer of PopTorch has the scale of the loss and the limit of the gradients' norm.

    Raises:
        ValueError: The output period does not divide the steps of a call.

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
        strict=False,  # old programs may need several IPUs, or memory options that the modelled machine lacks
        stochastic_rounding=bool(popart.get("enableStochasticRounding", False)),
        stages=strategy.stages(), schedule=strategy.schedule,
        **_of_optimizer(optimizer, follows_gradients=bool(popart.get("automaticLossScalingSettings.enabled", False))),
    )  # fmt: skip


def options_in_use(options: Options | None, training: bool, optimizer: Optimizer | None) -> Options:
    """Return the options of one model: a frozen copy with an output mode. The given options are frozen, too.

    Raises:
        Error: `options` is not an instance of `poptorch.Options`, or inference does not support an option.

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
    if in_half and not getattr(optimizer, "use_combined_accum", False):  # PopTorch then keeps a running mean
        own.Training.set(meanAccumulationAndReplicationReductionStrategy=enums.MeanReductionStrategy.Running)
    own._freeze()
    return own


def _of_optimizer(optimizer: Optimizer | None, *, follows_gradients: bool) -> dict[str, Any]:
    """Return the scale of the loss and the limit of the gradients' norm from an optimizer of PopTorch."""
    found = {name: getattr(optimizer, name, None) for name in ("loss_scaling", "max_grad_norm")}
    kept = {name: value for name, value in found.items() if value is not None and value != float("inf")}
    if follows_gradients and optimizer is not None:
        first = kept.get("loss_scaling", 1.0)
        kept["loss_scaling"] = LossScaling() if first == 1 else LossScaling(initial=first)
    return kept


def _matmul_proportion(by_ipu: dict[int, float]) -> float | tuple[float, ...]:
    """Return the part of a tile's memory for products on each IPU. Default: the modelled machine's."""
    default = ipu.Options().proportion_of(0)
    return tuple(by_ipu.get(number, default) for number in range(_MOST_IPUS)) if by_ipu else default


def _shards_state(options: Options, optimizer: Optimizer | None) -> bool:
    """Check whether replicas each keep a part of the optimizer's state, which needs an elementwise optimizer."""
    location = options.TensorLocations.toDict().get("location_optimizer", {})
    asked = optimizer is not None and bool(location.get("useReplicatedTensorSharding"))
    elementwise = is_elementwise(type(optimizer))
    if asked and not elementwise:
        what = f"Options.TensorLocations.setOptimizerLocation with {type(optimizer).__name__}"
        ignored(what, "it looks at whole tensors, so each replica keeps the whole state")
    return asked and elementwise


def _target(options: Options) -> ipu.IpuTarget:
    """Return the machine of the chosen generation, without the tiles reserved for transfers."""
    version = options.ipu_version if options.exists("ipu_version") else 2
    target = ipu.IpuTarget.gc2() if version == 1 else ipu.IpuTarget.bow()
    kept = options.TensorLocations.toDict().get("numIOTiles", 0)
    return replace(target, num_tiles=target.num_tiles - kept) if kept else target
