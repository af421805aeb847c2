"""Triton's searches for neighbors: the slots of the processor in the interpreter, and compiled for two kinds of GPU.

As in `test_triton_kernels`, the first part needs TRITON_INTERPRET=1 from the start; the second part must not have it.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from popgeo.ops import neighbor_search, sum_on_device
from popgeo.ops.neighbors import Neighbors, knn, radius
from tests.ops.test_triton_kernels import compiled_ahead, kernels_if, recorded

SIZES = [5, 1, 9, 3]


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let searches among tensors in memory run as those of a GPU do."""
    kernels_if(interpreted=True)
    from popgeo.ops import triton_neighbors

    with monkeypatch.context() as patched:
        patched.setattr(triton_neighbors, "_BLOCK", 4)  # a graph takes several blocks
        patched.setattr(sum_on_device, "serves", torch.Tensor.is_floating_point)
        patched.setattr(neighbor_search, "_define", lambda *given: pytest.fail("this compares all pairs"))
        yield patched


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cutoff", [1.5, math.inf])
@pytest.mark.parametrize("with_padding", [False, True])
def test_slots_are_those_of_the_processor_ties_included(
    on_device: pytest.MonkeyPatch, dtype: torch.dtype, cutoff: float, with_padding: bool
):
    batch = torch.repeat_interleave(torch.arange(4), torch.tensor(SIZES))
    generator = torch.Generator().manual_seed(0)
    on_grid, anywhere = torch.randint(2, (18, 3), generator=generator), 3 * torch.rand(18, 3, generator=generator)
    anywhere[15:] = torch.nan if with_padding else 0.0
    given = {"num_graphs": 4, "max_num_nodes": 9, "nodes_mask": batch < 3 if with_padding else None}

    def lists() -> list[tuple[Neighbors, Tensor]]:
        places = [pos.to(dtype) for pos in (on_grid, anywhere)]
        found = [(knn(pos, batch, k, cutoff, **given), batch) for pos in places for k in (2, 6)]
        return found + [radius(pos, batch, cutoff, slots, **given) for pos in places for slots in (9, 200)]

    made = lists()
    on_device.undo()
    for (mine, count), (expected, expected_count) in zip(made, lists(), strict=True):
        assert all(map(torch.equal, mine, expected))
        assert torch.equal(count, expected_count)


@pytest.mark.parametrize("capability", [80, 90], ids="sm_{}".format)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_kernels_compile_ahead_and_round_each_square(
    dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    kernels_if(interpreted=False)
    from popgeo.ops import triton_neighbors as kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    row, limit = torch.zeros(40, dtype=torch.int64), torch.ones(1, dtype=dtype)
    with monkeypatch.context() as patched:
        found = recorded(kernels, patched)
        for real in (None, row > 0):
            for find, slots in itertools.product((kernels.nearest, kernels.within), (1, 4)):
                find(torch.ones(40, 3, dtype=dtype), row, row, real, limit, 40, slots)
    names = {compiled_ahead(launch, capability) for launch in found}
    assert names == {"_nearest", "_within"}
