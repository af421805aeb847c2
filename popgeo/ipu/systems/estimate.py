"""The report of a model of any size, from shapes alone: no weight is allocated and nothing runs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from popgeo.capture.capture import bind
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.systems.cut_model import stages_asked_for
from popgeo.ipu.systems.pipeline import Pipeline
from popgeo.ipu.systems.plan_pipeline import planner_of
from popgeo.ipu.systems.share import share_of


def estimate(
    model: Callable[..., Any],
    example: Sequence[Any],
    options: Options | None = None,
    optimizer: Optimizer | None = None,
) -> Report | Pipeline:
    """What a step of a model would cost on the machine, where model and optimizer may be too large for this computer.

    Only shapes and types of weights are read, so a model made on the meta device (`with torch.device("meta"):`) or
    under `FakeTensorMode` will do, and takes next to no memory. A step that does not fit is no error here: the report
    tells how much memory it needs. Where a model's weights lie in shards (`popgeo.nn.parallel`) and the target has
    several IPUs, these hold some shards each, and the report is that of one of them. Where the options ask for stages,
    or the model names its blocks on several IPUs, it is that of the stages, as from `pipeline`.

    Args:
        model: A module, or a function of tensors; with an optimizer it returns its loss.
        example: The positional arguments of one micro-batch; tensors, or nests of them, on any device.
        options: The machine, replicas and accumulation; one Bow IPU by default.
        optimizer: Over parameters of the model, for the report of a training step; None for one run of the model.

    Returns:
        The report, without times of this computer.

    Raises:
        DynamicShapeError: a shape depends on data.
        ValueError: with an optimizer, there is no loss or several, or none of its parameters is one of the loss's; or
            the stages do not cover the model.

    Example:
        >>> import torch
        >>> with torch.device("meta"):
        ...     model = nn.Linear(4096, 4096)  # 67 MB, were it allocated
        >>> report = estimate(model, [torch.empty(32, 4096, device="meta")])
        >>> f"{report.total.flops:,} FLOP, {report.state_bytes:,} bytes of weights"
        '1,073,872,896 FLOP, 67,125,248 bytes of weights'
    """
    chosen = options or Options()
    start = time.perf_counter()
    arguments = bind(model.forward if isinstance(model, nn.Module) else model, *example)
    share = share_of(model, arguments, chosen, optimizer)
    asked = stages_asked_for(share.step.graph, chosen)
    if asked is not None and isinstance(model, nn.Module):
        planner = planner_of(model, share.step, optimizer)
        return planner.plan(replace(chosen, stages=asked), start=start)[0]
    assessment = share.assessment(chosen)
    return share.report(
        assessment,
        chosen,
        captured_ops=share.step.captured_ops,
        state_bytes=assessment.state_bytes,
        buffer_bytes=0,
        compile_seconds=time.perf_counter() - start,
    )
