"""Helpers for tests of a step's parts: an order of passes, inputs, and a function of views."""

import torch
from torch import Tensor

from popgeo.engine.pipeline.staging import Pass

MICRO_BATCHES = 2
PIPELINED = tuple(Pass(stage, micro, False) for stage in range(3) for micro in range(MICRO_BATCHES))


def views_of_views(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()[1:].t()
    z = y[:2] + 1
    return (z * y[:2].square(), y)


def inputs() -> list[Tensor]:
    return list(torch.randn(MICRO_BATCHES, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
