"""pyg_lib's operations under their own names: values by hand, gradients, and PyG's layers on them."""

import pytest
import torch
from torch.testing import assert_close
from torch_geometric.nn import HeteroLinear, SplineConv, graclus, voxel_grid
from torch_geometric.utils import index_sort, softmax

PTR = torch.tensor([0, 2, 2, 5])
POINTS = torch.tensor([[0.0], [1.0], [5.0], [6.0]])


def random(*shape: int) -> torch.Tensor:
    values = torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return values.requires_grad_()


def test_segments_and_groups_are_multiplied_with_their_matrices(pyg_lib):
    x, weight, bias = random(5, 3), random(3, 3, 2), random(3, 2)
    expected = torch.cat([x[:2] @ weight[0] + bias[0], x[2:] @ weight[2] + bias[2]])
    assert_close(pyg_lib.ops.segment_matmul(x, PTR, weight, bias), expected)
    pairs = [x[:2], x[2:]], [weight[0], weight[2]]
    assert_close(torch.cat(pyg_lib.ops.grouped_matmul(*pairs, [bias[0], bias[2]])), expected)
    assert_close(torch.ops.pyg.segment_matmul(x, PTR, weight), expected - torch.cat([bias[[0, 0]], bias[[2, 2, 2]]]))
    assert torch.autograd.gradgradcheck(lambda *of: pyg_lib.ops.segment_matmul(of[0], PTR, *of[1:]), (x, weight, bias))
    with torch.autocast("cpu"):
        assert pyg_lib.ops.segment_matmul(x.float(), PTR, weight.float()).dtype == torch.float32
    for wrong, words in ((PTR[:-1], "ascend from 0 to the number of rows, 5"), (PTR[[0, 3]], "1 segments for 3")):
        with pytest.raises(ValueError, match=words):
            pyg_lib.ops.segment_matmul(x, wrong, weight)


def test_a_softmax_over_segments_sums_to_one_and_has_the_gradient_of_pygs(pyg_lib):
    src, index = random(5, 4), torch.tensor([0, 0, 2, 2, 2])
    for dim, of in ((0, src), (-1, src.t())):
        weights = pyg_lib.ops.softmax_csr(of, PTR, dim)
        assert_close(weights, softmax(of, index, dim=dim))
        assert_close(softmax(of, ptr=PTR, dim=dim), weights)
    assert torch.autograd.gradgradcheck(lambda one: pyg_lib.ops.softmax_csr(one, PTR), src)
    half = pyg_lib.ops.softmax_csr(src.detach().half(), PTR)
    assert_close(half, pyg_lib.ops.softmax_csr(src.detach(), PTR).half())
    with pytest.raises(ValueError, match="number of entries, 5"):
        pyg_lib.ops.softmax_csr(src, PTR[:-1])


@pytest.mark.parametrize("largest", [9, 10**12, None])
def test_sorted_indices_keep_the_order_of_equal_ones(native, pyg_lib, largest):
    inputs = torch.randint(9, (50,), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    ordered, places = pyg_lib.ops.index_sort(inputs, largest)
    expected = inputs.sort(stable=True)
    assert torch.equal(ordered, expected.values)
    assert torch.equal(places, expected.indices)
    assert torch.equal(index_sort(inputs, largest)[1], expected.indices)
    for odd in (inputs - 1, inputs * 3, inputs[:0], inputs[0], inputs.bool()):
        assert torch.equal(pyg_lib.ops.index_sort(odd, largest)[0], odd.sort().values)


def test_several_reductions_are_side_by_side(pyg_lib):
    x, index = torch.tensor([[1.0], [3.0], [-4.0]]), torch.tensor([0, 0, 2])
    out = pyg_lib.ops.fused_scatter_reduce(x, index, 3, ["sum", "mean", "min", "max"])
    assert out.tolist() == [[4.0, 2.0, 1.0, 3.0], [0.0] * 4, [-4.0] * 4]


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_splines_share_one_and_have_derivatives(pyg_lib, degree):
    points, sizes = random(4, 2), torch.tensor([5, 4])
    is_open = torch.tensor([1, 0], dtype=torch.uint8)
    basis, index = pyg_lib.ops.spline_basis(points, sizes, is_open, degree)
    assert basis.shape == index.shape == (4, (degree + 1) ** 2)
    assert_close(basis.sum(1), torch.ones(4, dtype=torch.float64))
    assert int(index.max()) < 20
    assert torch.autograd.gradcheck(lambda one: pyg_lib.ops.spline_basis(one, sizes, is_open, degree)[0], points)
    x, weight = random(4, 3), random(20, 3, 2)
    expected = torch.stack(
        [
            sum(b * (x[e] @ weight[i]) for b, i in zip(*row, strict=True))
            for e, row in enumerate(zip(basis, index, strict=True))
        ]
    )
    assert_close(pyg_lib.ops.spline_weighting(x, weight, basis, index), expected)
    with pytest.raises(ValueError, match="degree is 4"):
        pyg_lib.ops.spline_basis(points, sizes, is_open, 4)


def test_the_first_and_last_spline_of_an_open_interval_are_reached(pyg_lib):
    basis, index = pyg_lib.ops.spline_basis(torch.tensor([[0.0], [1.0]]), torch.tensor([4]), torch.tensor([1]), 1)
    assert (basis.tolist(), index.tolist()) == ([[1.0, 0.0], [1.0, 0.0]], [[0, 1], [3, 0]])


def test_searches_stay_in_their_segments(pyg_lib):
    ptr = torch.tensor([0, 3, 4])
    assert pyg_lib.ops.knn(POINTS, POINTS, 2, ptr, ptr).tolist() == [[0, 0, 1, 1, 2, 2, 3], [0, 1, 1, 0, 2, 1, 3]]
    assert pyg_lib.ops.radius(POINTS, POINTS, 1.0, ptr, ptr, ignore_same_index=True).tolist() == [[0, 1], [1, 0]]
    assert pyg_lib.ops.nearest(POINTS, POINTS[[1, 3]], ptr, torch.tensor([0, 1, 2])).tolist() == [0, 0, 0, 1]
    assert pyg_lib.ops.fps(POINTS, ptr, 0.5, random_start=False).tolist() == [0, 2, 3]
    graph = pyg_lib.ops.knn_graph(POINTS, 1, ptr)
    assert graph.tolist() == [[0, 1, 2], [1, 0, 1]]
    assert torch.equal(pyg_lib.ops.knn_graph(POINTS, 1, ptr, flow="target_to_source"), graph.flip(0))
    assert pyg_lib.ops.radius_graph(POINTS, 1.0, ptr).tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match="a segment of y has none"):
        pyg_lib.ops.nearest(POINTS, POINTS[:1], ptr, torch.tensor([0, 1, 1]))


def test_pygs_layers_and_clusters_run_on_them(pyg_lib):
    x, kinds = torch.rand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    linear = HeteroLinear(4, 3, num_types=3)
    expected = torch.stack([row @ linear.weight[kind] + linear.bias[kind] for row, kind in zip(x, kinds, strict=True)])
    assert_close(linear(x, kinds), expected)
    edges = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])
    with pytest.warns(UserWarning, match="non-optimized CPU"):
        assert SplineConv(4, 3, dim=2, kernel_size=3)(x, edges, torch.rand(4, 2)).shape == (6, 3)
    assert graclus(torch.tensor([[0, 1], [1, 0]])).tolist() == [0, 0]
    assert voxel_grid(torch.tensor([[0.0], [7.0]]), 5.0).tolist() == [0, 1]


def test_a_missing_function_is_named(pyg_lib):
    with pytest.raises(AttributeError, match="edge_sample"):
        pyg_lib.ops.edge_sample  # noqa: B018  the name is the claim
    with pytest.raises(AttributeError, match="dist_neighbor_sample"):
        torch.ops.pyg.dist_neighbor_sample  # noqa: B018
