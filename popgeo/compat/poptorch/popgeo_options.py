"""What PopTorch's options are in popgeo's terms."""

from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from popgeo.compat.poptorch import enums
from popgeo.compat.poptorch.options import Options
from popgeo.engine.call_options import OutputMode, Reduction
from popgeo.ipu.options import Options as PopgeoOptions
from popgeo.ipu.target import IpuTarget

_MODES = {
    enums.OutputMode.Final: OutputMode.FINAL,
    enums.OutputMode.EveryN: OutputMode.EVERY_N,
    enums.OutputMode.All: OutputMode.ALL,
    enums.OutputMode.Sum: OutputMode.SUM,
}


def popgeo_options(options: Options, optimizer: Optimizer | None) -> PopgeoOptions:
    """The choices that decide results and the modelled machine; an output mode has been picked.

    Args:
        options: PopTorch's.
        optimizer: Holds the scale of the loss and the largest norm of gradients, where it is one of PopTorch's.

    Raises:
        ValueError: a period that does not divide the steps of a call.

    Example:
        >>> chosen = Options().deviceIterations(4).outputMode(enums.OutputMode.All)
        >>> popgeo_options(chosen, None)
        Options(device_iterations=4, output_mode='all', strict=False)
    """
    popart = options._Popart.options
    reduction = options.Training.accumulation_and_replication_reduction_type
    return PopgeoOptions(
        device_iterations=options.device_iterations,
        replication_factor=options.replication_factor,
        gradient_accumulation=options.Training.gradient_accumulation,
        reduction=Reduction.MEAN if reduction == enums.ReductionType.Mean else Reduction.SUM,
        output_mode=_MODES[enums.OutputMode(options.output_mode)],
        output_period=options.output_return_period,
        random_seed=options.random_seed if options.exists("random_seed") else None,
        floating_point_exceptions=bool(popart.get("enableFloatingPointChecks", False)),
        cache_dir=popart.get("cachePath") if popart.get("enableEngineCaching") else None,
        show_progress=options._show_compilation_progress_bar,
        target=_target(options),
        strict=False,  # such programs ran on several IPUs, or fitted by means that the model knows nothing of
        **_of_optimizer(optimizer),
    )


def _of_optimizer(optimizer: Optimizer | None) -> dict[str, Any]:
    """What PopTorch's optimizers decide beside their update."""
    names = {"loss_scaling": 1.0, "max_grad_norm": None}
    found = {name: getattr(optimizer, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None and value != float("inf")}


def _target(options: Options) -> IpuTarget:
    """The machine of the generation asked for, without the tiles kept for transfers."""
    version = options.ipu_version if options.exists("ipu_version") else 2
    target = IpuTarget.gc2() if version == 1 else IpuTarget.bow()
    tiles = options.TensorLocations
    if tiles.exists("numIOTiles"):
        target = replace(target, num_tiles=target.num_tiles - tiles.numIOTiles)
    return target
