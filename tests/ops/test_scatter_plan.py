"""The contents of a ScatterPlan, and its checks against use with a different index."""

import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.native import library
from popgeo.ops import EdgePlan, ScatterPlan, cfconv, gather, gather_scatter, reference, scatter


def test_a_plan_lists_the_edges_of_each_row_in_order(native):
    plan = ScatterPlan.from_index(torch.tensor([2, 0, 2, 3, 0]), num_rows=5)
    assert plan.rowptr.tolist() == [0, 2, 2, 4, 5, 5]
    assert plan.perm.tolist() == [1, 4, 0, 2, 3]
    assert plan.rowptr.dtype == plan.perm.dtype == torch.int32
    assert plan.num_rows == 5


@pytest.mark.parametrize("index", [[], [0], [0, 0, 3, 3, 4]])
def test_a_sorted_index_needs_no_order(native, index):
    plan = ScatterPlan.from_index(torch.tensor(index, dtype=torch.long), num_rows=6)
    assert plan.perm is None
    assert plan.rowptr.tolist() == [sum(i < row for i in index) for row in range(7)]


@settings(deadline=None, max_examples=60)
@given(index=st.lists(st.integers(0, 8), max_size=40), dtype=st.sampled_from([torch.int32, torch.int64]))
def test_the_compiled_plan_equals_a_stable_sort(index, dtype):
    index = torch.tensor(index, dtype=dtype)
    plan = ScatterPlan.from_index(index, num_rows=9)
    perm = torch.arange(len(index)) if plan.perm is None else plan.perm.long()
    assert torch.equal(perm, torch.argsort(index, stable=True))
    assert torch.equal(plan.rowptr[1:].long(), torch.bincount(index, minlength=9).cumsum(0))
    with library.without_native():
        plain = ScatterPlan.from_index(index, num_rows=9)
    assert torch.equal(plan.rowptr, plain.rowptr)
    assert (plan.perm is None) == (plain.perm is None)
    assert plan.perm is None or torch.equal(plan.perm, plain.perm)


@pytest.mark.parametrize(("index", "position", "value"), [([0, 1, -1], 2, -1), ([3, 0], 0, 3), ([1, 2**40], 1, 2**40)])
def test_an_index_out_of_range_is_named(native, index, position, value):
    with pytest.raises(ValueError, match=rf"index\[{position}\] is {value}; allowed are 0 to 2"):
        ScatterPlan.from_index(torch.tensor(index), num_rows=3)


def test_wrong_dtypes_and_shapes_are_refused(native):
    with pytest.raises(ValueError, match=r"dtype torch\.float32"):
        ScatterPlan.from_index(torch.zeros(3), num_rows=3)
    with pytest.raises(ValueError, match=r"shape \(1, 3\)"):
        ScatterPlan.from_index(torch.zeros(1, 3, dtype=torch.long), num_rows=3)
    with pytest.raises(ValueError, match="num_rows is -1"):
        ScatterPlan.from_index(torch.zeros(3, dtype=torch.long), num_rows=-1)
    with pytest.raises(ValueError, match="num_tiles is 0; it must be at least 1"):
        ScatterPlan.regular(2, 2).set_tiles(0)


def test_a_regular_graph_has_the_plan_of_its_index(native):
    regular = ScatterPlan.regular(num_rows=4, degree=3)
    plan = ScatterPlan.from_index(regular.index, num_rows=4)
    assert torch.equal(regular.rowptr, plan.rowptr)
    assert plan.perm is None


class TestAPlanBelongsToItsIndex:
    src = torch.randn(4, 2)

    def test_an_equal_index_passes(self, native):
        index = torch.tensor([0, 2, 1, 0])
        plan = ScatterPlan.from_index(index, num_rows=3)
        assert torch.equal(
            scatter(self.src, index.clone(), 0, dim_size=3, plan=plan), scatter(self.src, index, 0, dim_size=3)
        )

    def test_an_equal_index_is_refused_once_it_is_changed(self, native):
        index = torch.tensor([0, 2, 1, 0])
        plan, equal = ScatterPlan.from_index(index, num_rows=3), index.clone()
        for _ in range(2):  # compared at first, remembered then
            scatter(self.src, equal, 0, dim_size=3, plan=plan)
        equal[0] = 1
        with pytest.raises(ValueError, match="another index"):
            scatter(self.src, equal, 0, dim_size=3, plan=plan)

    def test_another_index_is_refused(self, native):
        plan = ScatterPlan.from_index(torch.tensor([0, 2, 1, 0]), num_rows=3)
        for other in ([0, 1, 2, 0], [0, 2, 1, 1], [2, 2, 2, 2]):
            with pytest.raises(ValueError, match="made for another index"):
                scatter(self.src, torch.tensor(other), 0, dim_size=3, plan=plan)

    def test_another_number_of_rows_is_refused(self, native):
        index = torch.tensor([0, 2, 1, 0])
        with pytest.raises(ValueError, match="another number of rows than 7"):
            scatter(self.src, index, 0, dim_size=7, plan=ScatterPlan.from_index(index, num_rows=3))

    def test_an_index_changed_in_place_is_refused(self, native):
        index = torch.tensor([0, 2, 1, 0])
        plan = ScatterPlan.from_index(index, num_rows=3)
        index[0] = 1
        with pytest.raises(ValueError, match="changed in place"):
            scatter(self.src, index, 0, dim_size=3, plan=plan)
        with pytest.raises(ValueError, match="changed in place"):
            gather(torch.randn(3, 2), index, plan=plan)

    def test_an_index_changed_there_and_back_passes(self, native):
        index = torch.tensor([0, 2, 1, 0])
        plan = ScatterPlan.from_index(index, num_rows=3)
        index[0] = 1
        index[0] = 0
        scatter(self.src, index, 0, dim_size=3, plan=plan)

    def test_cfconv_refuses_swapped_ends(self, native):
        edge_index = torch.tensor([[0, 1, 1], [1, 0, 2]])
        plan = EdgePlan.from_edge_index(edge_index, num_nodes=3)
        x, w = torch.randn(3, 2), torch.randn(3, 2)
        cfconv(x, w, edge_index[0], edge_index[1], 3, plan)
        with pytest.raises(ValueError, match="another src"):
            cfconv(x, w, edge_index[1], edge_index[0], 3, plan)


def test_a_plan_travels_between_processes():
    plan = ScatterPlan.from_index(torch.tensor([1, 0]), num_rows=2).set_tiles(2)
    plan.index.add_(0)  # counts as a change in this process only
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.perm.tolist() == [1, 0]
    assert copy.num_tiles == 2
    scatter(torch.ones(2, 1), torch.tensor([1, 0]), 0, dim_size=2, plan=copy)


@settings(deadline=None, max_examples=60)
@given(degrees=st.lists(st.integers(0, 9), max_size=20), num_tiles=st.integers(1, 30))
def test_tiles_are_all_rows_once_and_balanced(degrees, num_tiles):
    index = torch.repeat_interleave(torch.arange(len(degrees)), torch.tensor(degrees, dtype=torch.long))
    plan = ScatterPlan.from_index(index, num_rows=len(degrees)).set_tiles(num_tiles)
    starts = plan.tile_starts().tolist()
    assert starts[0] == 0
    assert starts[-1] == len(degrees)
    assert starts == sorted(starts)
    heaviest = max((degree + 1 for degree in degrees), default=0)
    for start, stop in itertools.pairwise(starts):
        assert (
            sum(degree + 1 for degree in degrees[start:stop]) <= (len(index) + len(degrees)) / num_tiles + heaviest + 1
        )


@settings(deadline=None, max_examples=30)
@given(index=st.lists(st.integers(0, 19), max_size=60), num_tiles=st.integers(1, 25))
def test_the_compiled_kernels_divide_rows_alike(index, num_tiles):
    native = library.function("popgeo_tile_starts", "PqqqP")
    if native is None:
        pytest.skip(library.reason())
    plan = ScatterPlan.from_index(torch.tensor(index, dtype=torch.long), num_rows=20).set_tiles(num_tiles)
    starts = torch.empty(num_tiles + 1, dtype=torch.long)
    native(plan.rowptr.data_ptr(), len(index), 20, num_tiles, starts.data_ptr())
    assert torch.equal(starts, plan.tile_starts())


@pytest.mark.parametrize("num_tiles", [1, 2, 3, 7, 11, 40])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_results_and_gradients_have_the_same_bits_for_any_number_of_tiles(
    native, monkeypatch, generator, is_sorted, num_tiles
):
    monkeypatch.setattr(gather_scatter, "is_torch_fast", lambda *_, **__: False)  # the kernel itself is to be tested
    src, dst = torch.randint(11, (2, 60), generator=generator)
    dst = dst.sort().values if is_sorted else dst
    x, w, grad = (torch.randn(rows, 9, generator=generator) for rows in (11, 60, 11))
    plan = EdgePlan(
        src=ScatterPlan.from_index(src, 11).set_tiles(num_tiles),
        dst=ScatterPlan.from_index(dst, 11).set_tiles(num_tiles),
    )
    assert torch.equal(scatter(w, dst, 0, dim_size=11, plan=plan.dst), reference.scatter_sum(w, dst, 11))
    for reduce, largest in (("max", True), ("min", False)):
        best, _ = reference.scatter_extremum(w, dst, 11, largest=largest)
        assert torch.equal(scatter(w, dst, 0, dim_size=11, reduce=reduce, plan=plan.dst), best)
    out = cfconv(x.requires_grad_(), w.requires_grad_(), src, dst, 11, plan)
    assert torch.equal(out, reference.cfconv(x, w, src, dst, 11))
    expected = reference.cfconv_backward(grad, x, w, src, dst)
    assert all(map(torch.equal, torch.autograd.grad(out, (x, w), grad), expected))


def test_another_look_at_the_same_memory_is_another_index():
    memory = torch.tensor([0, 1, 2, 0])
    plan = ScatterPlan.from_index(memory[:2], num_rows=3)
    scatter(torch.ones(2, 1), memory[:2], 0, dim_size=3, plan=plan)
    with pytest.raises(ValueError, match="another index"):
        scatter(torch.ones(2, 1), memory[::2], 0, dim_size=3, plan=plan)
