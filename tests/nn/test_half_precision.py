"""Every sum, mean and norm of half precision is computed in float32 and rounded once, eagerly and compiled."""

import pytest
import torch
from torch import Tensor, nn

from popgeo import compile_forward, ops
from popgeo.nn import BatchNorm, loss, metrics
from popgeo.nn.norm import GraphNorm, InstanceNorm
from tests.contracts.test_checks_hold_when_captured import Function

HALVES = [torch.float16, torch.bfloat16]
ROWS = 70_000  # more than float16 counts to
GRAPH = torch.arange(ROWS) * 3 // ROWS


def wide_rows(dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return (torch.randn(ROWS, 2, generator=random) * 12 + 50).to(dtype)


REDUCTIONS = {
    "scatter_mean": lambda x: ops.scatter_mean(x, GRAPH, 0, dim_size=3),
    "scatter mean": lambda x: ops.scatter(x, GRAPH, 0, dim_size=3, reduce="mean"),
    "scatter_std": lambda x: ops.scatter_std(x, GRAPH, 0, dim_size=3),
    "scatter_softmax": lambda x: ops.scatter_softmax(x / 50, GRAPH, 0, dim_size=3) * ROWS,
    "scatter_logsumexp": lambda x: ops.scatter_logsumexp(x / 50, GRAPH, 0, dim_size=3),
    "segment mean": lambda x: ops.segment_csr(x, torch.tensor([0, 20_000, ROWS]), reduce="mean"),
    "global_mean_pool": lambda x: ops.global_mean_pool(x, GRAPH, 3),
    "global_softmax": lambda x: ops.global_softmax(x / 50, GRAPH, 3) * ROWS,
    "masked_mean": loss.masked_mean,
    "mse_loss": lambda x: loss.mse_loss(x, torch.zeros_like(x)),
    "huber_loss": lambda x: loss.huber_loss(x, torch.zeros_like(x)),
    "r2_score": lambda x: metrics.r2_score(x[:, 0], x[:, 1]),
    "pearson_r": lambda x: metrics.pearson_r(x[:, 0], x[:, 0] + x[:, 1]),
    "mean_absolute_error": lambda x: metrics.mean_absolute_error(x[:, 0], x[:, 1]),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_is_that_of_float64_to_one_rounding(name, dtype):
    x = wide_rows(dtype)
    expected = REDUCTIONS[name](x.double())
    steps = 4 * torch.finfo(dtype).eps
    for run in (REDUCTIONS[name], compile_forward(Function(REDUCTIONS[name]))):
        found = run(x)
        torch.testing.assert_close(found.double(), expected, rtol=steps, atol=steps)


NORMS = {
    "batch_norm": lambda: BatchNorm(2),
    "batch_norm, all batches alike": lambda: BatchNorm(2, momentum=None),
    "graph_norm": lambda: GraphNorm(2),
    "instance_norm": lambda: InstanceNorm(2, affine=True, track_running_stats=True),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("weights", ["half", "float32"])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_that_of_float64_to_one_rounding(name, weights, dtype):
    x, exact = wide_rows(dtype), NORMS[name]().double()
    expected = exact(x.double(), GRAPH, 3).detach()
    for wrap in (lambda norm: norm, compile_forward):
        norm = NORMS[name]().to(dtype) if weights == "half" else NORMS[name]()
        found = wrap(norm)(x, GRAPH, 3)
        assert found.dtype is dtype
        steps = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(found.detach().double(), expected, rtol=steps, atol=steps)
        for one, other in zip(norm.buffers(), exact.buffers(), strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=steps, atol=steps)


def test_autocast_trains_through_norms_without_nan():
    torch.manual_seed(0)
    lin, norm = nn.Linear(2, 2), BatchNorm(2)
    with torch.autocast("cpu", dtype=torch.float16):
        out = norm(lin(wide_rows(torch.float32)))
    out.float().square().mean().backward()
    assert out.isfinite().all()
    assert lin.weight.grad.isfinite().all()
