"""Plans that the tests of figures, forms and remedies share."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from popgeo import ipu

ROWS = 256


class Towers(nn.Module):
    """Linear layers of given widths, and a loss."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


HOST = {"host_bytes_per_second": 1e15, "host_seconds": 1e-12, "host_call_seconds": 1e-12}
QUICK_HOST = replace(ipu.IpuTarget.bow(), **HOST)  # so that only stages cause waiting


def plan_of(
    *widths: int, count: int = 8, replicas: int = 1, train: bool = True, rows: int = ROWS, target=QUICK_HOST, **choices
):
    """Return a plan of such layers; no weight is allocated."""
    with torch.device("meta"):
        model = Towers(*widths)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if train else None
    number = {"gradient_accumulation": count} if train else {"device_iterations": count}
    options = ipu.Options(target=target, replication_factor=replicas, **number)
    return ipu.pipeline(model, [torch.empty(rows, widths[0], device="meta")], options, optimizer, **choices)


@pytest.fixture(scope="session")
def long_plan():
    """Eight even layers on four IPUs, 64 micro-batches."""
    return plan_of(*[256] * 9, stages=4, count=64)
