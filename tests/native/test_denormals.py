"""The threads of a kernel treat denormal numbers as its caller does, so that their number changes no result."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops import cfconv, interaction_call, shifted_softplus
from popgeo.ops.interaction import interaction
from tests.support.denormals import count_denormals

pytestmark = pytest.mark.skipif(not library.is_available(), reason=library.reason())
NUM_ROWS, CHANNELS = 4096, 64
ONE_EDGE_A_ROW = torch.arange(NUM_ROWS)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_flush_denormal(False)


def convolve() -> Tensor:
    """Compute 1e-30 times 1e-10 in every channel of every row."""
    small = torch.full((NUM_ROWS, CHANNELS), 1e-30)
    return cfconv(small, torch.full_like(small, 1e-10), ONE_EDGE_A_ROW, ONE_EDGE_A_ROW, NUM_ROWS)


def differentiate() -> Tensor:
    """Compute 1e-30 times the slope at -23, which is 1e-10."""
    x = torch.full((NUM_ROWS, CHANNELS), -23.0, requires_grad=True)
    (slope,) = torch.autograd.grad(shifted_softplus(x), x, torch.full_like(x, 1e-30))
    return slope


def interact() -> Tensor:
    """Compute 1e-30 times a filter that is 1e-10 for every edge."""
    small = torch.full((NUM_ROWS, CHANNELS), 1e-30)
    table = torch.full((11, CHANNELS), 1e-10, dtype=torch.float64)
    return interaction(small, table, torch.ones(NUM_ROWS), ONE_EDGE_A_ROW, ONE_EDGE_A_ROW, NUM_ROWS, 2.0)


@pytest.mark.parametrize("kernel", [convolve, differentiate, interact])
def test_the_threads_of_a_kernel_flush_if_and_only_if_the_caller_does(kernel):
    if kernel is interact and not interaction_call.is_served():
        pytest.skip("no kernels for this processor")
    everywhere = NUM_ROWS * CHANNELS
    assert count_denormals(kernel()) == everywhere
    torch.set_flush_denormal(True)
    assert count_denormals(kernel()) == 0
    torch.set_flush_denormal(False)
    assert count_denormals(kernel()) == everywhere
    # What the kernel's threads did for it they do not go on doing.
    torch.set_flush_denormal(True)
    assert count_denormals(torch.full((1 << 17,), 1e-30) * 1e-10) == 1 << 16
