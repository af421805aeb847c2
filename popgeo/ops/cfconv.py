"""SchNet's continuous-filter convolution as one fused op, which reads each edge once and writes each node once."""

import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops import reference, sum_on_device
from popgeo.ops.eager import is_plain
from popgeo.ops.gather_scatter import gather_rows, scatter_sum_rows
from popgeo.ops.kernel_arguments import FLOAT_DTYPES, as_int64, check_array, check_plan_tensors, filled
from popgeo.ops.refusals import check_index, check_least, explain, refuse_index
from popgeo.ops.register_op import register
from popgeo.ops.scatter_plan import EdgePlan
from popgeo.ops.sum_on_device import require_range

_NO_PLANS = None, None, None, None, 0  # row pointer and order of dst, those of src, and tiles
_pack_call, _pack_backward = struct.Struct("14q").pack, struct.Struct("16q").pack  # CfconvCall, CfconvBackwardCall


def cfconv(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, num_nodes: int, plan: EdgePlan | None = None) -> Tensor:
    """Multiply the features of each edge's source by the edge's filter and sum the products at its destination.

    out[dst[e]] += x[src[e]] * w[e], eq. 2 of SchNet (arXiv:1706.08566). Neither the gathered features nor the messages
    are ever in memory. Half precision is summed in float32 and rounded once. The result has the same bits for any
    number of threads and tiles. It is twice differentiable in `x` and `w`.

    Args:
        x: Features of the source nodes. [num_sources, channels]
        w: Filter of each edge. [num_edges, channels]
        src: Source of each edge. [num_edges]
        dst: Destination of each edge. [num_edges]
        num_nodes: Rows of the result; never read from `dst`, so the shape is static.
        plan: Plans of both ends, made once and reused by every layer. Default: the order of the edges.

    Returns:
        Summed messages; zero if no edge arrives. [num_nodes, channels]

    Raises:
        ValueError: shapes or dtypes do not fit, an index is out of range, or the plan belongs to a different index.

    Example:
        >>> x, w = torch.tensor([[2.0], [3.0]]), torch.tensor([[10.0], [1.0], [1.0]])
        >>> cfconv(x, w, src=torch.tensor([1, 0, 1]), dst=torch.tensor([0, 1, 1]), num_nodes=2).flatten()
        tensor([30.,  5.])
    """
    if x.dtype is not w.dtype and torch.is_autocast_enabled(x.device.type):
        common = torch.promote_types(x.dtype, w.dtype)  # like torch's own operations under autocast
        x, w = x.to(common), w.to(common)
    plans: tuple[Any, ...] = _NO_PLANS
    if plan is not None:
        out = _at_once(x, w, src, dst, num_nodes, plan) if is_plain() and type(x) is type(w) is Tensor else None
        if out is not None:
            return out
        if plan.src.check("src", src, x.shape[0]) and plan.dst.check("dst", dst, num_nodes):
            plans = plan.dst.rowptr, plan.dst.perm, plan.src.rowptr, plan.src.perm, plan.dst.num_tiles
    if x.is_complex():  # the op's derivatives are those of real numbers
        _check_forward(x, w, src, dst, num_nodes)
        message = gather_rows(x, src, *plans[2:]) * w
        return scatter_sum_rows(message, dst, num_nodes, *plans[:2], plans[4])
    return _CFCONV(x, w, src, dst, num_nodes, *plans)


def _at_once(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, num_nodes: int, plan: EdgePlan) -> Tensor | None:
    """Return the result by a fast path, in 5 microseconds; None if a call is unusual or invalid.

    A usual call without gradients has contiguous tensors in memory, and the indices from which the plan was made.
    """
    native = library.packed("popgeo_cfconv")
    to_dst = plan.dst
    try:
        (num_edges, channels), (num_sources, width), dtype = w.shape, x.shape, x.dtype
        if (
            native is None
            or channels != width
            or w.dtype is not dtype
            or num_edges != to_dst.num_edges
            or num_edges != plan.src.num_edges
            or not (plan.src.is_of(src, num_sources) and to_dst.is_of(dst, num_nodes))
            or ((x.requires_grad or w.requires_grad) and torch.is_grad_enabled())
            or not (x.is_cpu and w.is_cpu and x.is_contiguous() and w.is_contiguous())
            or not (src.dtype is torch.int64 and src.is_contiguous())
        ):
            return None
        out = x.new_empty(num_nodes, channels)
        pointers = map(library.address, (x, w, src, None, to_dst.rowptr, to_dst.perm, out))
        sizes = num_edges, num_sources, num_nodes, channels, to_dst.num_tiles, torch.get_num_threads()
        return None if native(_pack_call(FLOAT_DTYPES[dtype], *pointers, *sizes)) else out
    except (ValueError, KeyError, RuntimeError):
        return None


def _check(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> None:
    num_edges, x_shape, w_shape = src.numel(), x.shape, w.shape
    if len(x_shape) != 2 or w_shape != (num_edges, x_shape[1]):
        raise ValueError(
            f"x has shape {tuple(x_shape)} and w {tuple(w_shape)}; they are (num_sources, channels) and "
            f"({num_edges}, channels) with the same number of channels."
        )
    if x.dtype != w.dtype or (not (x.is_cpu and w.is_cpu) and x.device != w.device):
        raise ValueError(f"x is {x.dtype} on {x.device} and w {w.dtype} on {w.device}; convert one to the other.")
    check_index("src", src, num_edges, x)
    check_index("dst", dst, num_edges, x)


def _check_forward(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, num_nodes: int) -> None:
    _check(x, w, src, dst)
    check_least(0, num_nodes=num_nodes)


def _check_backward(grad: Tensor, x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> None:
    _check(x, w, src, dst)
    check_array("grad", grad, (*grad.shape[:1], x.shape[1]), x.dtype)


def _cfconv(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, num_nodes: int, *plans: Any) -> Tensor:
    _check_forward(x, w, src, dst, num_nodes)
    dst_rowptr, dst_perm, _, _, num_tiles = filled(plans, _NO_PLANS)
    dst_rowptr, dst_perm = check_plan_tensors("dst", dst, num_nodes, dst_rowptr, dst_perm)
    if sum_on_device.serves(x):
        require_range("src", src, x.shape[0])
        return sum_on_device.cfconv(x, w, src, dst, num_nodes, dst_rowptr, dst_perm)
    native = library.packed("popgeo_cfconv")
    if native is None or not x.is_cpu or x.dtype not in FLOAT_DTYPES:
        refuse_index("src", src, x.shape[0])
        refuse_index("dst", dst, num_nodes)
        return reference.cfconv(x, w, src, dst, num_nodes)
    num_edges, channels = w.shape
    x, w, src, dst = x.contiguous(), w.contiguous(), as_int64(src), as_int64(dst)
    out = x.new_empty(num_nodes, channels)
    pointers = map(library.address, (x, w, src, dst, dst_rowptr, dst_perm, out))
    sizes = num_edges, x.shape[0], num_nodes, channels, num_tiles, torch.get_num_threads()
    if native(_pack_call(FLOAT_DTYPES[x.dtype], *pointers, *sizes)):
        refuse_index("src", src, x.shape[0])
        explain("dst", dst, num_nodes, dst_rowptr, dst_perm)
    return out


def _cfconv_backward(
    grad: Tensor, x: Tensor, w: Tensor, src: Tensor, dst: Tensor, *plans: Any
) -> tuple[Tensor, Tensor]:
    _check_backward(grad, x, w, src, dst)
    _, _, src_rowptr, src_perm, num_tiles = filled(plans, _NO_PLANS)
    src_rowptr, src_perm = check_plan_tensors("src", src, x.shape[0], src_rowptr, src_perm)
    if sum_on_device.serves(x):
        require_range("dst", dst, grad.shape[0])
        return sum_on_device.cfconv_backward(grad, x, w, src, dst, src_rowptr, src_perm)
    native = library.packed("popgeo_cfconv_backward")
    if native is None or not x.is_cpu or x.dtype not in FLOAT_DTYPES:
        refuse_index("src", src, x.shape[0])
        refuse_index("dst", dst, grad.shape[0])
        return reference.cfconv_backward(grad, x, w, src, dst)
    num_edges, channels = w.shape
    grad, x, w = grad.contiguous(), x.contiguous(), w.contiguous()
    src, dst = as_int64(src), as_int64(dst)
    grad_x, grad_w = torch.empty_like(x), torch.empty_like(w)
    pointers = map(library.address, (grad, x, w, src, dst, src_rowptr, src_perm, grad_x, grad_w))
    sizes = num_edges, x.shape[0], grad.shape[0], channels, num_tiles, torch.get_num_threads()
    if native(_pack_backward(FLOAT_DTYPES[x.dtype], *pointers, *sizes)):
        refuse_index("dst", dst, grad.shape[0])
        explain("src", src, x.shape[0], src_rowptr, src_perm)
    return grad_x, grad_w


def _fake(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, num_nodes: int, *plans: Any) -> Tensor:
    _check_forward(x, w, src, dst, num_nodes)
    return x.new_empty(num_nodes, x.shape[1])


def _fake_backward(grad: Tensor, x: Tensor, w: Tensor, src: Tensor, dst: Tensor, *plans: Any) -> tuple[Tensor, Tensor]:
    _check_backward(grad, x, w, src, dst)
    return x.new_empty(x.shape), w.new_empty(w.shape)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, w, src, dst, dst_rowptr, dst_perm, src_rowptr, src_perm = ctx.saved_tensors
    _, num_tiles = ctx.numbers
    grad_x = grad_w = None
    if ctx.needs_input_grad[0] and ctx.needs_input_grad[1]:
        grad_x, grad_w = _CFCONV_BACKWARD(grad, *ctx.saved_tensors, num_tiles)
    elif ctx.needs_input_grad[0]:
        grad_x = _CFCONV(grad, w, dst, src, x.shape[0], src_rowptr, src_perm, dst_rowptr, dst_perm, num_tiles)
    elif ctx.needs_input_grad[1]:
        grad_w = gather_rows(x, src, src_rowptr, src_perm, 0) * gather_rows(grad, dst, dst_rowptr, dst_perm, 0)
    return grad_x, grad_w, *[None] * 8


def _differentiate_backward(ctx: Any, to_x: Tensor, to_w: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the second backward pass: grad_x is linear in (grad, w), and grad_w is linear in (grad, x)."""
    grad, x, w, src, dst, dst_rowptr, dst_perm, src_rowptr, src_perm = ctx.saved_tensors
    forward = (dst_rowptr, dst_perm, src_rowptr, src_perm, *ctx.numbers)
    reverse = (src_rowptr, src_perm, dst_rowptr, dst_perm, *ctx.numbers)
    num_sources, num_nodes = x.shape[0], grad.shape[0]
    to_grad = second_x = second_w = None
    if ctx.needs_input_grad[0]:
        to_grad = _CFCONV(to_x, w, src, dst, num_nodes, *forward) + _CFCONV(x, to_w, src, dst, num_nodes, *forward)
    if ctx.needs_input_grad[1]:
        second_x = _CFCONV(grad, to_w, dst, src, num_sources, *reverse)
    if ctx.needs_input_grad[2]:
        at_source = gather_rows(to_x, src, src_rowptr, src_perm, 0)
        second_w = at_source * gather_rows(grad, dst, dst_rowptr, dst_perm, 0)
    return to_grad, second_x, second_w, *[None] * 7


_PLAN_SCHEMA = (
    "Tensor? dst_rowptr=None, Tensor? dst_perm=None, Tensor? src_rowptr=None, Tensor? src_perm=None, int num_tiles=0"
)
_CFCONV = register(
    f"cfconv(Tensor x, Tensor w, Tensor src, Tensor dst, SymInt num_nodes, {_PLAN_SCHEMA}) -> Tensor",
    kernel=_cfconv,
    fake=_fake,
    backward=_differentiate,
)
_CFCONV_BACKWARD = register(
    f"cfconv_backward(Tensor grad, Tensor x, Tensor w, Tensor src, Tensor dst, {_PLAN_SCHEMA})"
    " -> (Tensor grad_x, Tensor grad_w)",
    kernel=_cfconv_backward,
    fake=_fake_backward,
    backward=_differentiate_backward,
)


def vector_messages(convolve: Callable[..., Tensor], x: Tensor, w: Tensor, direction: Tensor) -> Tensor:
    """Sum messages of scalars and of vectors, eq. 7 and 8 of PaiNN (arXiv:2102.03150).

    Args:
        convolve: Function of `x` and `w` that sums x_j * w_ij over the neighbors j of each atom i. With `odd=True` the
            filters of a half list change their sign in the other direction.
        x: Features that each atom sends: scalars, vectors axis by axis, and scalars to multiply the edge's direction.
            [num_nodes, 5 * channels]
        w: Filters of these three. [num_edges, 3 * channels]
        direction: Unit vector of each edge. [num_edges, 3]

    Returns:
        Scalars, and vectors axis by axis. [num_nodes, 4 * channels]
    """
    w_s, w_vv, w_vs = w.chunk(3, dim=1)  # each [num_edges, channels]
    channels = w_s.shape[1]
    s, v, edge = x.split([channels, 3 * channels, channels], dim=1)
    along = (direction.unsqueeze(2) * w_vs.unsqueeze(1)).flatten(1)  # [num_edges, 3 * channels]
    vectors = convolve(v, w_vv.repeat(1, 3)) + convolve(edge.repeat(1, 3), along, odd=True)
    return torch.cat([convolve(s, w_s), vectors], dim=1)
