"""Tiles that see only their own rows and what was sent to them compute what the kernels compute, bit for bit."""

import pytest
import torch

from popgeo.ops import EdgePlan, ScatterPlan, cfconv, delegate, scatter, tiles


@pytest.fixture(autouse=True, scope="module")
def every_sum_reaches_the_kernel():
    """Small sums go to torch, whose bits are the same; here the compiled kernel itself is to be tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delegate, "sum_to_torch", lambda *_, **__: False)
        yield


@pytest.fixture(params=[False, True], ids=["unsorted", "sorted"])
def edges(request, generator):
    src, dst = torch.randint(11, (2, 60), generator=generator)
    return src, dst.sort().values if request.param else dst


def test_each_edge_is_sent_to_the_tile_that_owns_its_row(edges):
    plan = ScatterPlan.from_index(edges[1], num_rows=11).set_tiles(4)
    owned = tiles.divide(plan)
    assert sorted(torch.cat([tile.edges for tile in owned]).tolist()) == list(range(60))
    for tile in owned:
        assert all(int(row) in tile.rows for row in edges[1][tile.edges])


@pytest.mark.parametrize("num_tiles", [1, 2, 3, 7, 11, 40])
def test_scatter_sum_equals_the_machine(native, edges, num_tiles):
    src = torch.randn(60, 9)
    plan = ScatterPlan.from_index(edges[1], num_rows=11).set_tiles(num_tiles)
    assert torch.equal(scatter(src, edges[1], 0, dim_size=11, plan=plan), tiles.scatter_sum(src, plan))


@pytest.mark.parametrize("num_tiles", [1, 2, 3, 7, 11, 40])
def test_cfconv_and_its_gradients_equal_the_machine(native, edges, num_tiles):
    src, dst = edges
    plan = EdgePlan(
        src=ScatterPlan.from_index(src, 11).set_tiles(num_tiles),
        dst=ScatterPlan.from_index(dst, 11).set_tiles(num_tiles),
    )
    x, w, grad = torch.randn(11, 9), torch.randn(60, 9), torch.randn(11, 9)
    x.requires_grad_()
    w.requires_grad_()
    out = cfconv(x, w, src, dst, 11, plan)
    assert torch.equal(out, tiles.cfconv(x, w, src, plan.dst))
    grad_x, grad_w = torch.autograd.grad(out, (x, w), grad)
    expected_x, expected_w = tiles.cfconv_backward(grad, x.detach(), w.detach(), dst, plan.src)
    assert torch.equal(grad_x, expected_x)
    assert torch.equal(grad_w, expected_w)
