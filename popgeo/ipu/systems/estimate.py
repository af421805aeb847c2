"""The estimated cost of a model of any size from shapes alone; no weight is allocated and nothing runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.capture.capture import bind
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph
from popgeo.did_you_mean import names_arguments
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Pipeline, Report
from popgeo.ipu.stage_choices import Schedule, Stages
from popgeo.ipu.systems.cut_model import requested_stages
from popgeo.ipu.systems.ipu_share import share_of, update_of
from popgeo.ipu.systems.stage_costs import outputs_of
from popgeo.ipu.systems.stage_planner import StagePlanner


@names_arguments
def estimate(
    model: Callable[..., Any],
    example: Sequence[Any],
    options: Options | None = None,
    optimizer: Optimizer | None = None,
) -> Report | Pipeline:
    """Return the cost of a model's step on the machine, even if the model is too large for this computer.

    Only shapes and types of weights are read. A model on the meta device (`with torch.device("meta"):`) or under
    `FakeTensorMode` therefore works, and needs almost no memory. A step that does not fit raises no error; the report
    shows the memory that it needs. If the model's weights are sharded (`popgeo.nn.parallel`) and the target has several
    IPUs, each IPU holds some shards, and the report is for one IPU. If the options have stages, or the model names
    blocks on several IPUs, the result is a `Pipeline`, as from `pipeline`.

    Args:
        model: Module, or function of tensors. With an optimizer it returns its loss.
        example: Positional arguments of one micro-batch: tensors, or nests of tensors, on any device.
        options: Machine, replicas and accumulation. Default: one Bow IPU.
        optimizer: Optimizer of parameters of the model, for a training step. Default: None, one run of the model.

    Returns:
        The report, without times of this computer.

    Raises:
        DynamicShapeError: a shape depends on data.
        ValueError: with an optimizer, the model returns no loss or several, or no optimized parameter is a parameter of
            the loss; the stages do not cover the model; or `example` is a tensor instead of a list.

    Example:
        >>> import torch
        >>> with torch.device("meta"):
        ...     model = nn.Linear(4096, 4096)  # 67 MB if it were allocated
        >>> report = estimate(model, [torch.empty(32, 4096, device="meta")])
        >>> f"{report.total.flops:,} FLOP, {report.state_bytes:,} bytes of weights"
        '1,073,872,896 FLOP, 67,125,248 bytes of weights'
    """
    _require_arguments(example, options)
    chosen = options or Options()
    start = time.perf_counter()
    arguments = bind(model.forward if isinstance(model, nn.Module) else model, *example)
    share = share_of(model, arguments, chosen, optimizer)
    asked = requested_stages(share.step.graph, chosen)
    if asked is not None and isinstance(model, nn.Module):
        return _planner_of(model, share.step, optimizer).plan(replace(chosen, stages=asked), start=start)[0]
    return replace(share.report(chosen), compile_seconds=time.perf_counter() - start)


@names_arguments
def pipeline(
    model: nn.Module,
    example: Sequence[Any],
    options: Options | None = None,
    optimizer: Optimizer | None = None,
    *,
    stages: Stages | None = None,
    schedule: Schedule | str | None = None,
    recompute: bool | Sequence[str] | None = None,
    serialize: Mapping[str, int] | None = None,
    optimizer_off_chip: bool = False,
    overlap_host: bool = False,
) -> Pipeline:
    """Return the cost of a model's step over several IPUs, from shapes alone; nothing is allocated or run.

    Args:
        model: Module that returns its loss. Its weights may be on the meta device.
        example: Positional arguments of one micro-batch.
        options: `gradient_accumulation` is the number of micro-batches between two updates (in inference:
            `device_iterations`), and `replication_factor` the number of pipelines at the same time. Each stage runs on
            one `target`. `matmul_proportion` limits the memory of dense products on a tile. With
            `shard_optimizer_state` each replica holds a part of the optimizer's state. `stages`, `schedule` and
            `recompute` are the defaults of these arguments.
        optimizer: Optimizer of parameters of the model. Default: None, inference.
        stages: Number of stages, cut evenly by cycles and memory; or the number of numbered layers on each IPU, as `[0,
            3, 3]`; or the layers that begin a stage, with their IPUs, as `{"layers.3": 1}`; or `"blocks"` or a list of
            `ipu.Stage`, for blocks that the model names with `Block` or `BeginBlock`.
        schedule: Order of the micro-batches in the stages. Default: lock-step, as on the machine.
        recompute: Whether a stage keeps only its inputs of each micro-batch and repeats its forward pass later. With
            names of layers, it also keeps the results of these layers (PopTorch's `recomputationCheckpoint`), so that
            it repeats one layer at a time.
        serialize: Number of parts for linear layers with outputs that are computed in parts, by name; PopTorch's
            `serializedMatMul`.
        optimizer_off_chip: Whether the optimizer's state is in streaming memory; PopTorch's `useOnChipStorage(False)`.
        overlap_host: Whether some tiles exchange with the host while the others compute (I/O tiles).

    Raises:
        ValueError: the number of stages is missing, they do not cover the model's layers, a layer of `serialize` does
            not exist, there is no loss, or the target has several IPUs, over which it spreads each operation.

    Example:
        >>> import torch
        >>> layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        >>> plan = pipeline(layers, [torch.ones(16, 64)], Options(device_iterations=12), stages=4)
        >>> plan.num_ipus, [stage.layers for stage in plan.stages], plan.fits
        (4, ['0', '1', '2', '3'], True)
    """
    start = time.perf_counter()
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is {model!r}; pass a torch.nn.Module, because a pipeline is cut between its layers.")
    _require_arguments(example, options, serialize)
    choices: dict[str, Any] = {"stages": stages, "schedule": schedule, "recompute": recompute}
    chosen = replace(options or Options(), **{name: one for name, one in choices.items() if one is not None})
    whole = replace(chosen, shard_optimizer_state=False)
    step = share_of(model, bind(model.forward, *example), whole, optimizer).step
    planner = _planner_of(model, step, optimizer)
    asked = requested_stages(planner.graph, chosen)
    if asked is None:
        raise ValueError(
            "The stages are missing. Pass stages=4, or the number of layers on each IPU as stages=[0, 3, 3], or name "
            "the model's parts with ipu.BeginBlock(layer, ipu_id=1)."
        )
    placed: dict[str, Any] = {"optimizer_off_chip": optimizer_off_chip, "overlap_host": overlap_host, "start": start}
    return planner.plan(replace(chosen, stages=asked), serialize=outputs_of(model, serialize or {}), **placed)[0]


def _planner_of(model: nn.Module, step: CapturedStep, optimizer: Optimizer | None) -> StagePlanner:
    """Return a planner of the captured step and of the optimizer's update."""

    def update(options: Options) -> OpGraph | None:
        if optimizer is None:
            return None
        # The plan shards the update of whole weights, so that updates that read all of a weight also have a plan.
        return update_of(model, step, optimizer, replace(options, shard_optimizer_state=False)).capture()

    return StagePlanner(step, update)


def _require_arguments(example: Any, options: Any, serialize: Any = None) -> None:
    """Raise if `example`, `options` or `serialize` has the wrong type."""
    if isinstance(example, Tensor | Mapping | str) or not isinstance(example, Sequence):
        raise ValueError(f"example is a {type(example).__name__}; pass one micro-batch's arguments in a list.")
    if options is not None and not isinstance(options, Options):
        raise ValueError(f"options is {options!r}; pass an ipu.Options.")
    if serialize is not None and not isinstance(serialize, Mapping):
        raise ValueError(f"serialize is {serialize!r}; pass parts by name, such as {{'lm_head': 4}}.")
