"""The account of a model of any size, from shapes alone: no weight is allocated and nothing runs."""

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
from popgeo.ipu.systems.cut_model import stages_asked_for
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
    """What a step of a model would cost on the machine, where model and optimizer may be too large for this computer.

    Only shapes and types of weights are read, so a model made on the meta device (`with torch.device("meta"):`) or
    under `FakeTensorMode` will do, and takes next to no memory. A step that does not fit is not an error here: the
    report tells how much memory it needs. Where a model's weights lie in shards (`popgeo.nn.parallel`) and the target
    has several IPUs, these hold some shards each, and the report is that of one of them. Where the options ask for
    stages, or the model names its blocks on several IPUs, it is that of the stages, as from `pipeline`.

    Args:
        model: A module, or a function of tensors; with an optimizer it returns its loss.
        example: The positional arguments of one micro-batch; tensors, or nests of them, on any device.
        options: The machine, replicas and accumulation; one Bow IPU by default.
        optimizer: Over parameters of the model, for the report of a training step; None for one run of the model.

    Returns:
        The report, without times of this computer.

    Raises:
        DynamicShapeError: a shape depends on data.
        ValueError: with an optimizer, there is no loss or several, or none of its parameters is one of the loss's; the
            stages do not cover the model; or `example` is a tensor and no list.

    Example:
        >>> import torch
        >>> with torch.device("meta"):
        ...     model = nn.Linear(4096, 4096)  # 67 MB, were it allocated
        >>> report = estimate(model, [torch.empty(32, 4096, device="meta")])
        >>> f"{report.total.flops:,} FLOP, {report.state_bytes:,} bytes of weights"
        '1,073,872,896 FLOP, 67,125,248 bytes of weights'
    """
    _require_arguments(example, options)
    chosen = options or Options()
    start = time.perf_counter()
    arguments = bind(model.forward if isinstance(model, nn.Module) else model, *example)
    share = share_of(model, arguments, chosen, optimizer)
    asked = stages_asked_for(share.step.graph, chosen)
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
    """What a step of a model would cost over several IPUs, from shapes alone; nothing is allocated and nothing runs.

    Args:
        model: A module that returns its loss; its weights may be on the meta device.
        example: The positional arguments of one micro-batch.
        options: `gradient_accumulation` micro-batches go through the pipeline between two updates (in inference,
            `device_iterations`), `replication_factor` pipelines run side by side, each stage on one `target`;
            `matmul_proportion` limits what dense products may take of a tile, with `shard_optimizer_state` each replica
            holds a part of the optimizer's state. `stages`, `schedule` and `recompute` count if left out here.
        optimizer: Over parameters of the model; None for inference.
        stages: How many, cut so that they are even in cycles and memory; or the number of the model's alike layers on
            each IPU, as `[0, 3, 3]`; or which layers begin a stage on which IPU, as `{"layers.3": 1}`; or
            `"blocks"` or a list of `ipu.Stage` for the blocks that the model names with `Block` or `BeginBlock`.
        schedule: In which order stages take micro-batches; in lock-step as on the machine, if nothing says otherwise.
        recompute: Keep of each micro-batch only what a stage receives, and repeat its forward pass later. Names of
            layers keep the results of these too (PopTorch's `recomputationCheckpoint`), so that one layer at a time is
            repeated and there.
        serialize: Linear layers whose outputs are computed in that many parts, by name; PopTorch's `serializedMatMul`.
        optimizer_off_chip: The optimizer's state lies in streaming memory; PopTorch's `useOnChipStorage(False)`.
        overlap_host: Some tiles exchange with the host while the others compute (I/O tiles).

    Raises:
        ValueError: nothing says how many stages there are, they do not cover the model's layers, a layer of `serialize`
            does not exist, there is no loss, or the target has several IPUs, over which it spreads each operation.

    Example:
        >>> import torch
        >>> layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        >>> plan = pipeline(layers, [torch.ones(16, 64)], Options(device_iterations=12), stages=4)
        >>> plan.num_ipus, [stage.layers for stage in plan.stages], plan.fits
        (4, ['0', '1', '2', '3'], True)
    """
    start = time.perf_counter()
    if not isinstance(model, nn.Module):
        raise ValueError(f"A pipeline is planned of a torch.nn.Module, found {model!r}; only layers can be cut apart.")
    _require_arguments(example, options, serialize)
    choices: dict[str, Any] = {"stages": stages, "schedule": schedule, "recompute": recompute}
    chosen = replace(options or Options(), **{name: one for name, one in choices.items() if one is not None})
    whole = replace(chosen, shard_optimizer_state=False)
    step = share_of(model, bind(model.forward, *example), whole, optimizer).step
    planner = _planner_of(model, step, optimizer)
    asked = stages_asked_for(planner.graph, chosen)
    if asked is None:
        raise ValueError(
            "Nothing says where to cut the model. Give stages=4, or the layers of each IPU as stages=[0, 3, 3], or let "
            "the model name its parts with ipu.BeginBlock(layer, ipu_id=1)."
        )
    placed: dict[str, Any] = {"optimizer_off_chip": optimizer_off_chip, "overlap_host": overlap_host, "start": start}
    return planner.plan(replace(chosen, stages=asked), serialize=outputs_of(model, serialize or {}), **placed)[0]


def _planner_of(model: nn.Module, step: CapturedStep, optimizer: Optimizer | None) -> StagePlanner:
    """Plans the captured step of a model, with the optimizer's update as options want it."""

    def update(options: Options) -> OpGraph | None:
        if optimizer is None:
            return None
        # An update of whole weights, which the plan shares out: so one that looks at all of a weight has a plan, too.
        return update_of(model, step, optimizer, replace(options, shard_optimizer_state=False)).capture()

    return StagePlanner(step, update)


def _require_arguments(example: Any, options: Any, serialize: Any = None) -> None:
    """Makes sure that a step is planned of the arguments of a call: the rows of a tensor would do for them, too."""
    if isinstance(example, Tensor | Mapping | str) or not isinstance(example, Sequence):
        raise ValueError(f"example is a {type(example).__name__}; give one micro-batch's arguments in a list.")
    if options is not None and not isinstance(options, Options):
        raise ValueError(f"options is {options!r}; give an ipu.Options.")
    if serialize is not None and not isinstance(serialize, Mapping):
        raise ValueError(f"serialize is {serialize!r}; give parts by name, such as {{'lm_head': 4}}.")
