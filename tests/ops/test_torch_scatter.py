"""A user of torch_scatter replaces the import: the same signatures, the same results."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo import ops

peer = pytest.importorskip("torch_scatter")

SCATTERS = ("scatter_sum", "scatter_add", "scatter_mul", "scatter_mean", "scatter_min", "scatter_max")
COMPOSITES = ("scatter_softmax", "scatter_log_softmax", "scatter_logsumexp", "scatter_std")
SEGMENTS = (
    "segment_csr", "segment_sum_csr", "segment_add_csr", "segment_mean_csr", "segment_min_csr", "segment_max_csr",
    "segment_coo", "gather_csr", "gather_coo",
)  # fmt: skip
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int32])


def same(one, two):
    one, two = (part if isinstance(part, tuple) else (part,) for part in (one, two))
    assert len(one) == len(two)
    for left, right in zip(one, two, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["scatter", *SCATTERS, *COMPOSITES, *SEGMENTS])
def test_signatures(name):
    ours = list(inspect.signature(getattr(ops, name)).parameters.values())
    theirs = list(inspect.signature(getattr(peer, name)).parameters.values())
    assert [(p.name, p.default) for p in ours if p.name != "plan"] == [(p.name, p.default) for p in theirs]


def test_the_example_of_scatter():
    src, index = torch.randn(10, 6, 64), torch.tensor([0, 1, 0, 1, 2, 1])
    out = ops.scatter(src, index, dim=1, reduce="sum")
    assert out.shape == (10, 3, 64)
    same(out, peer.scatter(src, index, dim=1, reduce="sum"))


def test_the_examples_of_segment_csr_and_coo():
    src = torch.randn(10, 6, 64)
    indptr, index = torch.tensor([0, 2, 5, 6]).view(1, -1), torch.tensor([0, 0, 1, 1, 1, 2]).view(1, -1)
    assert ops.segment_csr(src, indptr, reduce="sum").shape == (10, 3, 64)
    same(ops.segment_csr(src, indptr), peer.segment_csr(src, indptr))
    same(ops.segment_coo(src, index, reduce="sum"), peer.segment_coo(src, index, reduce="sum"))


def test_the_example_of_scatter_max():
    src = torch.tensor([[2, 0, 1, 4, 3], [0, 2, 1, 3, 4]])
    index = torch.tensor([[4, 5, 4, 2, 3], [0, 0, 2, 2, 1]])
    out, arg = ops.scatter_max(src, index, dim=-1)
    assert out.tolist() == [[0, 0, 4, 3, 2, 0], [2, 4, 3, 0, 0, 0]]
    assert arg.tolist() == [[5, 5, 3, 4, 0, 1], [1, 4, 3, 5, 5, 5]]


@st.composite
def problems(draw):
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    dim, rows = draw(st.integers(-len(shape), len(shape) - 1)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    index_shape = shape if draw(st.booleans()) else (shape[dim],)
    src = (torch.randn(shape, generator=generator) * 5).to(draw(DTYPES))
    index = torch.randint(rows, index_shape, generator=generator)
    out = None
    if draw(st.booleans()):
        out_shape = list(shape)
        out_shape[dim] = rows
        out = (torch.randn(out_shape, generator=generator) * 5).to(src.dtype)
    return src, index, dim, out, rows if draw(st.booleans()) else None


@settings(deadline=None, max_examples=150)
@given(problem=problems(), name=st.sampled_from(SCATTERS))
def test_random_scatters(problem, name):
    src, index, dim, out, dim_size = problem
    one, two = (None if out is None else out.clone() for _ in range(2))
    same(getattr(ops, name)(src, index, dim, one, dim_size), getattr(peer, name)(src, index, dim, two, dim_size))


@settings(deadline=None, max_examples=80)
@given(problem=problems(), name=st.sampled_from(COMPOSITES))
def test_random_composites(problem, name):
    src, index, dim, out, dim_size = problem
    src = src.double()
    more = {}
    if name in ("scatter_logsumexp", "scatter_std") and out is not None:
        more = {"out": out.double().abs()}
    one, two = ({key: value.clone() for key, value in more.items()} for _ in range(2))
    same(
        getattr(ops, name)(src, index, dim, dim_size=dim_size, **one),
        getattr(peer, name)(src, index, dim, dim_size=dim_size, **two),
    )


@settings(deadline=None, max_examples=100)
@given(
    leading=st.integers(0, 3), trailing=st.integers(0, 3), cuts=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    reduce=st.sampled_from(["sum", "add", "mean", "min", "max"]), dtype=DTYPES, seed=st.integers(0, 2**20),
)  # fmt: skip
def test_random_segments(leading, trailing, cuts, reduce, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    indptr = torch.tensor([0, *sorted(cuts), 6])
    rows = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff())
    lead, trail = (leading,) * (leading > 0), (trailing,) * (trailing > 0)
    if lead:
        indptr, rows = indptr.unsqueeze(0), rows.unsqueeze(0)
    src = (torch.randn(*lead, 6, *trail, generator=generator) * 5).to(dtype)
    num_rows = indptr.shape[-1] - 1
    same(ops.segment_csr(src, indptr, reduce=reduce), peer.segment_csr(src, indptr, reduce=reduce))
    same(
        ops.segment_coo(src, rows, dim_size=num_rows, reduce=reduce),
        peer.segment_coo(src, rows, dim_size=num_rows, reduce=reduce),
    )
    small = ops.segment_csr(src, indptr)
    same(ops.gather_csr(small, indptr), peer.gather_csr(small, indptr))
    same(ops.gather_coo(small, rows.expand(*lead, -1)), peer.gather_coo(small, rows.expand(*lead, -1)))


@pytest.mark.parametrize("name", ["segment_min_csr", "segment_max_csr"])
def test_positions_of_segment_extremes(name):
    src, indptr = (
        torch.randn(3, 6, 2),
        torch.stack([torch.tensor(cuts) for cuts in ([0, 2, 2, 6], [0, 0, 1, 6], [0, 6, 6, 6])]),
    )
    same(getattr(ops, name)(src, indptr), getattr(peer, name)(src, indptr))


def test_what_differs_on_purpose():
    """In torch_scatter a maximum starts at the lowest finite number and loses -inf; a softmax of no entries fails."""
    src, index = torch.tensor([float("-inf")]), torch.tensor([0])
    assert ops.scatter_max(src, index)[0].item() == float("-inf")
    assert peer.scatter_max(src, index)[0].item() == 0.0
