"""Lowers popgeo's own operations on rows: gathers, scatters, convolutions, activations and searches for neighbors.

Each native call is the C function that the operation's kernel in `popgeo/ops` calls, so results have the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from popgeo.engine.program import strided
from popgeo.engine.program.lower_copies import copied
from popgeo.engine.program.native_call import NativeCall, is_plain, native_call
from popgeo.engine.program.strided import MOVED, elements_call, require
from popgeo.ops.half_precision import HALVES
from popgeo.ops.kernel_arguments import FLOAT_DTYPES, NATIVE_DTYPES
from popgeo.ops.neighbor_search import SERVED, SearchKind

_MAX_INT32 = 2**31 - 1
_Words = Callable[..., NativeCall]
_Expected = tuple[Tensor | None, tuple[int, ...], torch.dtype]
THREADS = 1  # stands for the number of threads until the program sets it


def lowers(target: str) -> Callable[[_Words], _Words]:
    """Return a decorator that registers a function for an operation whose tensors are contiguous on the CPU.

    The function gets the results, then the operation's arguments in the schema's order.
    """

    def enter(words: _Words) -> _Words:
        def lower(results: list[Tensor], given: Mapping[str, Any]) -> NativeCall:
            require(all(is_plain(one) for one in (*results, *given.values()) if isinstance(one, Tensor)))
            return words(*results, *given.values())

        strided.lowers(target)(lower)
        return words

    return enter


def _fit(*expected: _Expected) -> bool:
    """Check that tensors, or None, have a shape and a type."""
    return all(one is None or (one.shape == shape and one.dtype is dtype) for one, shape, dtype in expected)


def _plan_of(index: Tensor, num_rows: int, rowptr: Tensor | None, perm: Tensor | None) -> Sequence[_Expected]:
    """Return the shapes and types of an index and its plan."""
    shape = (index.numel(),)
    return (index, shape, torch.int64), (rowptr, (num_rows + 1,), torch.int32), (perm, shape, torch.int32)


@lowers("popgeo.gather.default")
def _gather(out: Tensor, x: Tensor, index: Tensor, *_: Any) -> NativeCall:
    num_edges, (num_rows, channels) = index.numel(), x.shape
    require(_fit((index, (num_edges,), torch.int64), (out, (num_edges, channels), x.dtype)))
    sizes = num_edges, num_rows, channels * x.element_size()
    return native_call("popgeo_gather", x, index, out, *sizes, THREADS, num_threads=6)


@lowers("popgeo.gather_csr.default")
def _gather_csr(out: Tensor, x: Tensor, indptr: Tensor, num_edges: int) -> NativeCall:
    num_rows, channels = x.shape
    require(_fit((indptr, (num_rows + 1,), torch.int64), (out, (num_edges, channels), x.dtype)))
    return native_call("popgeo_gather_csr", x, indptr, out, num_edges, num_rows, channels * x.element_size())


def _sum_words(
    out: Tensor, src: Tensor, index: Tensor, num_rows: int, rowptr: Tensor | None, perm: Tensor | None, num_tiles: int
) -> list[Any]:
    """Return the words of SumCall up to the number of threads."""
    (num_edges, channels), dtype = src.shape, src.dtype
    plan = _plan_of(index, num_rows, rowptr, perm)
    shaped = (src, (index.numel(), channels), dtype), (out, (num_rows, channels), dtype)
    require(dtype in NATIVE_DTYPES and _fit(*plan, *shaped))
    perm = perm if rowptr is not None else None  # without a row pointer there is no plan
    return [NATIVE_DTYPES[dtype], src, index, rowptr, perm, out, num_edges, num_rows, channels, num_tiles]


@lowers("popgeo.scatter_sum.default")
def _scatter_sum(*arguments: Any) -> NativeCall:
    return native_call("popgeo_scatter_sum", *_sum_words(*arguments), THREADS, num_threads=10)


@lowers("popgeo.scatter_mul.default")
def _scatter_mul(out: Tensor, src: Tensor, index: Tensor, num_rows: int, *_: Any) -> NativeCall:
    require(src.dtype not in HALVES)
    words = _sum_words(out, src, index, num_rows, None, None, 0)
    return native_call("popgeo_scatter_mul", *words, THREADS, num_threads=10)


def _extremum(largest: bool, out: Tensor, arg: Tensor, *arguments: Any) -> NativeCall:
    words = _sum_words(out, *arguments)
    require(_fit((arg, tuple(out.shape), torch.int64)))
    sizes = *words[6:], THREADS
    return native_call("popgeo_scatter_extremum", largest, *words[:6], arg, *sizes, num_threads=12)


lowers("popgeo.scatter_max.default")(partial(_extremum, True))
lowers("popgeo.scatter_min.default")(partial(_extremum, False))


def _segments(how: int, out: Tensor, *arguments: Any) -> NativeCall:
    (*arg, src, indptr), num_rows = arguments, arguments[-1].numel() - 1
    (num_edges, channels), dtype = src.shape, src.dtype
    results = [(one, (num_rows, channels), torch.int64) for one in arg]
    fits = _fit((indptr, (num_rows + 1,), torch.int64), (out, (num_rows, channels), dtype), *results)
    require(num_rows >= 0 and dtype in NATIVE_DTYPES and num_edges <= _MAX_INT32 and fits)
    pointers, sizes = (src, indptr, out, *(arg or [None])), (num_edges, num_rows, channels, THREADS)
    return native_call("popgeo_segment_reduce", how, NATIVE_DTYPES[dtype], *pointers, *sizes, num_threads=9)


lowers("popgeo.segment_sum.default")(partial(_segments, 0))
lowers("popgeo.segment_min.default")(partial(_segments, 1))
lowers("popgeo.segment_max.default")(partial(_segments, 2))


@lowers("popgeo.plan.default")
def _plan(rowptr: Tensor, perm: Tensor, index: Tensor, num_rows: int) -> NativeCall:
    num_edges = index.numel()
    require(max(num_edges, num_rows) < _MAX_INT32 and _fit(*_plan_of(index, num_rows, rowptr, perm)))
    return native_call("popgeo_plan", index, rowptr, perm, None, num_edges, num_rows)


@lowers("popgeo.cfconv.default")
def _cfconv(
    out: Tensor, x: Tensor, w: Tensor, src: Tensor, dst: Tensor, num_nodes: int,
    rowptr: Tensor | None, perm: Tensor | None, _rowptr: Tensor | None, _perm: Tensor | None, num_tiles: int,
) -> NativeCall:  # fmt: skip
    (num_sources, channels), num_edges, dtype = x.shape, src.numel(), x.dtype
    plan = (src, (num_edges,), torch.int64), *_plan_of(dst, num_nodes, rowptr, perm)
    shaped = (w, (num_edges, channels), dtype), (out, (num_nodes, channels), dtype)
    require(dtype in FLOAT_DTYPES and dst.numel() == num_edges and _fit(*plan, *shaped))
    pointers = x, w, src, dst, rowptr, None if rowptr is None else perm, out
    sizes = num_edges, num_sources, num_nodes, channels, num_tiles, THREADS
    return native_call("popgeo_cfconv", FLOAT_DTYPES[dtype], *pointers, *sizes, num_threads=13)


@lowers("popgeo.cfconv_backward.default")
def _cfconv_backward(
    grad_x: Tensor, grad_w: Tensor, grad: Tensor, x: Tensor, w: Tensor, src: Tensor, dst: Tensor,
    _rowptr: Tensor | None, _perm: Tensor | None, rowptr: Tensor | None, perm: Tensor | None, num_tiles: int,
) -> NativeCall:  # fmt: skip
    (num_sources, channels), (num_edges,), num_nodes, dtype = x.shape, src.shape, grad.shape[0], x.dtype
    plan = (dst, (num_edges,), torch.int64), *_plan_of(src, num_sources, rowptr, perm)
    shaped = [(one, (num_edges, channels), dtype) for one in (w, grad_w)]
    shaped += [(grad, (num_nodes, channels), dtype), (grad_x, (num_sources, channels), dtype)]
    require(dtype in FLOAT_DTYPES and _fit(*plan, *shaped))
    pointers = grad, x, w, src, dst, rowptr, None if rowptr is None else perm, grad_x, grad_w
    sizes = num_edges, num_sources, num_nodes, channels, num_tiles, THREADS
    return native_call("popgeo_cfconv_backward", FLOAT_DTYPES[dtype], *pointers, *sizes, num_threads=15)


@lowers("popgeo.shifted_softplus.default")
def _shifted_softplus(out: Tensor, x: Tensor) -> NativeCall:
    return _activation(out, None, x)


@lowers("popgeo.shifted_softplus_backward.default")
def _activation(out: Tensor, grad: Tensor | None, x: Tensor) -> NativeCall:
    shape, dtype = tuple(out.shape), out.dtype
    require(dtype in SERVED and _fit(*((one, shape, dtype) for one in (x, grad))))
    return native_call("popgeo_shifted_softplus", dtype is torch.float64, grad, x, out, x.numel())


@lowers("popgeo.round_stochastic.default")
def _round_stochastic(out: Tensor, x: Tensor, counter: Tensor, dtype: torch.dtype) -> NativeCall:
    shape = tuple(x.shape)
    is_one = counter.numel() == 1 and counter.dtype is torch.int64
    require(is_one and dtype in HALVES and _fit((x, shape, torch.float32), (out, shape, dtype)))
    sizes = x.numel(), dtype is torch.bfloat16, THREADS
    return native_call("popgeo_round_stochastic", x, out, counter, *sizes, num_threads=5)


@lowers("popgeo.near_nodes.default")
def _near_nodes(
    others: Tensor, near: Tensor, form: int, slots: int, pos: Tensor, batch: Tensor,
    cutoff: float, num_graphs: int, width: int, nodes_mask: Tensor | None,
) -> NativeCall:  # fmt: skip
    (num_nodes, num_dims), kind = pos.shape, SearchKind(form)
    masks: list[_Expected] = [(batch, (num_nodes,), torch.int64), (nodes_mask, (num_nodes,), torch.bool)]
    is_wide = width > 0 or kind is SearchKind.PAIRS or not num_nodes
    require(pos.dtype in SERVED and slots >= 0 and is_wide and max(width, num_graphs) <= _MAX_INT32 and _fit(*masks))
    sizes = num_nodes, num_dims, slots, width, num_graphs, form, pos.dtype is torch.float64, THREADS, float(cutoff)
    return native_call("popgeo_near_nodes", pos, batch, nodes_mask, others, near, *sizes, num_threads=12)


@lowers("popgeo.identity_loss.default")
def _identity_loss(out: Tensor, x: Tensor) -> NativeCall:
    require(_fit((out, tuple(x.shape), x.dtype)) and x.itemsize in MOVED)
    return elements_call([copied(out, x)])
