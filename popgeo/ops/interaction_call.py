"""The arguments of one interaction, its definition in plain torch, and its calls of compiled kernels."""

import functools
import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from popgeo.native import library
from popgeo.ops.cfconv import cfconv, vector_messages
from popgeo.ops.gather_scatter import rows_of_ends
from popgeo.ops.kernel_arguments import as_int64
from popgeo.ops.refusals import refuse_index

# From interaction.h: points for the interpolation of a filter, points for a slope, and the limit for points of a grid.
POINTS, STENCIL, MAX_POINTS = 8, 11, 1 << 16
_DTYPES, _CPU = (torch.float32, torch.float64), torch.device("cpu")
_pack_plan = struct.Struct("10qd").pack  # InteractionPlanCall of interaction_plan.cpp
_pack_call = struct.Struct("25qd").pack  # InteractionCall of interaction.h


@dataclass(frozen=True)
class InteractionCall:
    """The arguments of one interaction, in the order of the operations' schemas.

    Attributes:
        x: Features of the sources. [num_sources, channels]
        table: Filters at equidistant points from 0 to the cutoff. [num_points, channels]
        r: Distance of each edge. [num_edges]
        direction: Unit vector of each edge, from its receiver to its source, for messages of scalars and vectors; None
            for messages of scalars alone. [num_edges, 3]
        src: Source of each edge. [num_edges]
        dst: Receiver of each edge. [num_edges]
        num_nodes: Number of receivers.
        cutoff: Distance of the last row of the table.
        half_list: Whether each edge represents both directions.
        plan: First result of `make_plan`. int32 [plan_size(num_edges)]
        weights: Second result of `make_plan`. [num_edges, 8]
    """

    x: Tensor
    table: Tensor
    r: Tensor
    direction: Tensor | None
    src: Tensor
    dst: Tensor
    num_nodes: int
    cutoff: float
    half_list: bool
    plan: Tensor | None = None
    weights: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor | None]:
        """The differentiable arguments."""
        return [self.x, self.table, self.r, self.direction]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """All arguments, in the order of the operations' schemas."""
        return tuple(vars(self).values())

    @property
    def out_channels(self) -> int:
        """Channels of the sums."""
        return self.x.shape[1] if self.direction is None else self.x.shape[1] // 5 * 4

    def of(self, tensors: Sequence[Any]) -> "InteractionCall":
        """Return the same call with different `tensors`."""
        return replace(self, **dict(zip(("x", "table", "r", "direction"), tensors, strict=True)))

    def sums(self) -> Tensor:
        """Compute the sums by the definition, which has derivatives of any order. [num_nodes, channels]."""
        w = interpolated(self.table, self.r, self.cutoff).to(self.x.dtype)

        def convolve(x: Tensor, w: Tensor, odd: bool = False) -> Tensor:
            message = cfconv(x, w, self.src, self.dst, self.num_nodes)
            if not self.half_list:
                return message
            back = cfconv(x, w, self.dst, self.src, self.num_nodes)
            return message - back if odd else message + back

        return convolve(self.x, w) if self.direction is None else vector_messages(convolve, self.x, w, self.direction)

    def gradients(self, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
        """Compute the gradients with respect to `tensors` by autograd of the definition.

        If gradients are enabled, the results can be differentiated again.

        Args:
            grad: Gradient of the sums.
            wanted: Whether each of `tensors` gets a gradient.
        """
        again = torch.is_grad_enabled()
        tensors = list(self.tensors)
        with _autograd_again(), torch.enable_grad():
            for i, (t, is_wanted) in enumerate(zip(tensors, wanted, strict=True)):
                if t is not None:
                    named = t.view_as(t) if again else t.detach()
                    tensors[i] = named if named.requires_grad else named.requires_grad_(is_wanted)
            by = [t for t, is_wanted in zip(tensors, wanted, strict=True) if t is not None and is_wanted]
            return list(torch.autograd.grad(self.of(tensors).sums(), by, grad, create_graph=again))

    def second_gradients(
        self, grad: Tensor, first: Sequence[bool], along: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> list[Tensor]:
        """Compute the derivatives of `gradients` with respect to `grad` and `tensors`.

        If gradients are enabled, the results can be differentiated again.

        Args:
            grad: Gradient of the sums.
            first: Whether each of `tensors` has a gradient in the first pass, which this pass differentiates.
            along: Gradient of each gradient of the first pass; None for an unused gradient.
            wanted: Whether `grad`, and each of `tensors`, gets a gradient.
        """
        again = torch.is_grad_enabled()
        with _autograd_again(), torch.enable_grad():
            leaves = [
                None if t is None else (t.view_as(t) if again and t.requires_grad else t.detach().requires_grad_())
                for t in (grad, *self.tensors)
            ]
            made = self.of(leaves[1:]).gradients(leaves[0], first)  # type: ignore[arg-type]
            used = [(one, t) for one, t in zip(made, along, strict=True) if t is not None and one.requires_grad]
            by = [t for t, is_wanted in zip(leaves, wanted, strict=True) if t is not None and is_wanted]
            outputs, given = zip(*used, strict=True) if used else ((), ())
            return list(torch.autograd.grad(outputs, by, given, create_graph=again, materialize_grads=True))

    def is_served(self) -> bool:
        """Check whether the kernels can compute the call: float32 or float64 tensors, on a CPU with kernels."""
        given = [t for t in self.tensors if t is not None]
        one_type = all(t.dtype is self.x.dtype for t in given if t is not self.table)
        fits = one_type and self.x.dtype in _DTYPES and self.table.dtype in (self.x.dtype, torch.float64)
        return fits and all(t.is_cpu and t.numel() > 0 for t in given) and self.src.numel() > 0 and is_served()

    def laid_out(self) -> "InteractionCall":
        """Return the same call with a plan and contiguous tensors, as the kernels require."""
        plan, weights = self.plan, self.weights
        if plan is None or weights is None:
            sizes = self.x.shape[0], self.num_nodes, self.table.shape[0]
            plan, weights = empty_plan(self.src, self.dst, self.r)
            fill_plan(self.src, self.dst, self.r.contiguous(), self.cutoff, sizes, plan, weights)
        tensors = [None if t is None else library.as_read(t) for t in self.tensors]
        return replace(self.of(tensors), plan=library.as_read(plan), weights=library.as_read(weights))

    def pack(
        self,
        *,
        out: Tensor | None = None,
        grad: Tensor | None = None,
        grads: Sequence[Tensor | None] = (None,) * 3,
        workspace: Tensor | None = None,
        along: Sequence[Tensor | None] | None = None,
        to_grad: Tensor | None = None,
        num_threads: int = 1,
    ) -> bytes:
        """Pack the call into the struct `InteractionCall` of interaction.h.

        Args:
            out: Memory for the sums, or for the gradient of `x`; None if it is not wanted.
            grad: Gradient of the sums, for the backward passes. [num_rows, channels]
            grads: Memory for the gradients of the table, the distances and the directions.
            workspace: Result of `workspace`.
            along: Gradients of the gradients of `x`, distances and directions, in the second backward pass.
            to_grad: Memory for the gradient of `grad`.
            num_threads: Largest number of threads; the bits are the same for any number.
        """
        ways = (None,) * 3 if along is None else along
        data = self.plan, self.weights, self.table, self.x, self.direction, grad, *ways
        pointers = map(library.address, (*data, out, *grads, to_grad, workspace))
        sizes = self.src.shape[0], self.x.shape[0], self.num_nodes, self.table.shape[0]
        channels = self.table.shape[1] if self.direction is None else self.table.shape[1] // 3
        types = self.x.dtype is torch.float64, self.table.dtype is torch.float64
        spacing = self.cutoff / (self.table.shape[0] - 1)
        return _pack_call(*pointers, *sizes, channels, self.half_list, along is not None, *types, num_threads, spacing)

    def workspace_bytes(self, *, is_second: bool = False) -> int:
        """Return the bytes of the working memory of a call."""
        native = library.packed("popgeo_interaction_workspace")
        assert native is not None
        return native(self.pack(along=(None,) * 3 if is_second else None))

    def workspace(self, *, is_second: bool = False) -> Tensor:
        """Allocate the working memory of a call. uint8."""
        return torch.empty(self.workspace_bytes(is_second=is_second), dtype=torch.uint8)


def interpolated(table: Tensor, r: Tensor, cutoff: float) -> Tensor:
    """Interpolate filters at distances with the polynomial through the eight nearest rows; 0 from the cutoff on.

    Args:
        table: Filters at equidistant points from 0 to the cutoff. [num_points, channels]
        r: Distances. [num_edges]
        cutoff: Distance of the last row.

    Returns:
        [num_edges, channels]

    Example:
        >>> interpolated(torch.arange(11.0).view(-1, 1) ** 3, torch.tensor([0.25, 1.0]), cutoff=1.0).round(decimals=3)
        tensor([[15.6250],
                [ 0.0000]], dtype=torch.float64)
    """
    start, weights = lagrange_weights(r, cutoff, table.shape[0])
    made = None
    for k in range(POINTS):
        row = weights[k].unsqueeze(1) * rows_of_ends(table, start + k)
        made = row if made is None else made + row
    return torch.where((r >= cutoff).unsqueeze(1), 0.0, made)  # type: ignore[arg-type]


def lagrange_weights(r: Tensor, cutoff: float, num_points: int) -> tuple[Tensor, list[Tensor]]:
    """Return the first of the eight points of the grid around each distance, and their weights in float64.

    Example:
        >>> start, weights = lagrange_weights(torch.tensor([0.5]), cutoff=1.0, num_points=11)
        >>> start, torch.stack(weights, 1).round().int()
        (tensor([2]), tensor([[0, 0, 0, 1, 0, 0, 0, 0]], dtype=torch.int32))
    """
    place = torch.where(r >= cutoff, 0.0, r).double() * ((num_points - 1) / cutoff)
    start = (torch.nan_to_num(place.detach()).floor().clamp(0, num_points) - (POINTS // 2 - 1)).long()
    start = start.clamp(0, num_points - POINTS)
    apart = [place - start - k for k in range(POINTS)]
    weights = []
    for k in range(POINTS):
        weight = torch.ones_like(place)
        for j in range(POINTS):
            if j != k:
                weight = weight * apart[j] / (k - j)
        weights.append(weight)
    return start, weights


def slopes(table: Tensor) -> Tensor:
    """Compute finite-difference slopes at each row of a table, times the row spacing, from eleven rows each.

    Example:
        >>> slopes(torch.arange(12.0).square().view(-1, 1))[:3].round(decimals=3).flatten().abs()
        tensor([0., 2., 4.])
    """
    factors, half, count = _factors_of_slopes(table.device).to(table), STENCIL // 2, len(table) - STENCIL + 1
    ends = factors[:half] @ table[:STENCIL], factors[half + 1 :] @ table[-STENCIL:]
    # A product with a window of each row would copy all windows, eleven times the table.
    inner = torch.zeros_like(table[:count])
    for place, factor in enumerate(_factors_of_slopes(_CPU)[half].tolist()):
        inner.add_(table[place : place + count], alpha=factor)
    return torch.cat([ends[0], inner, ends[1]])


def slopes_transposed(grad: Tensor) -> Tensor:
    """Compute the gradient of a table from the gradient of its `slopes`. [num_points, channels].

    Example:
        >>> grad, table = torch.randn(2, 12, 3, dtype=torch.float64)
        >>> torch.allclose((slopes(table) * grad).sum(), (table * slopes_transposed(grad)).sum())
        True
    """
    factors, half, count = _factors_of_slopes(grad.device).to(grad), STENCIL // 2, len(grad) - STENCIL + 1
    out = torch.zeros_like(grad)
    out[:STENCIL] += factors[:half].t() @ grad[:half]
    out[-STENCIL:] += factors[half + 1 :].t() @ grad[-half:]
    for place, factor in enumerate(_factors_of_slopes(_CPU)[half].tolist()):
        out[place : place + count].add_(grad[half : half + count], alpha=factor)
    return out


@functools.cache  # by device, because a CUDA graph cannot capture a copy from ordinary memory
def _factors_of_slopes(device: torch.device) -> Tensor:
    """Return the finite-difference coefficients for the slope at each of eleven points. [11, 11]."""
    places = torch.arange(STENCIL, dtype=torch.float64)
    powers = (places.view(1, 1, -1) - places.view(-1, 1, 1)) ** places.view(1, -1, 1)  # [at, power, place]
    factors = torch.linalg.solve(powers, torch.eye(STENCIL, dtype=torch.float64)[1].expand(STENCIL, -1))
    return factors.to(device)


def _autograd_again() -> AbstractContextManager[Any]:
    """Return a context that enables autograd inside a kernel, where torch has disabled it."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView", "AutogradFunctionality"):
        excluded = excluded.remove(torch._C._dispatch_key_parse(key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def is_served() -> bool:
    """Check whether the compiled library is used and this CPU has fused multiply-adds."""
    native = library.function("popgeo_interaction_is_served", "", "q")
    return native is not None and bool(native())


def plan_size(num_edges: int) -> int:
    """Return the number of entries of a plan; interaction.h explains the layout."""
    return 5 + 4 * num_edges


def empty_plan(src: Tensor, dst: Tensor, r: Tensor, *rest: float) -> tuple[Tensor, Tensor]:
    """Allocate a plan and its weights."""
    return src.new_empty(plan_size(src.shape[0]), dtype=torch.int32), r.new_empty(src.shape[0], POINTS)


def fill_plan(
    src: Tensor, dst: Tensor, r: Tensor, cutoff: float, sizes: Sequence[int], plan: Tensor, weights: Tensor
) -> None:
    """Fill a plan and its weights, for edges shorter than the cutoff; `sizes` are sources, receivers and points.

    Raises:
        ValueError: an index is out of range.
    """
    native = library.packed("popgeo_interaction_plan")
    assert native is not None
    src, dst = as_int64(src), as_int64(dst)
    if native(pack_plan(src, dst, r, cutoff, sizes, plan, weights)):
        refuse_index("src", src, sizes[0])
        refuse_index("dst", dst, sizes[1])


def pack_plan(
    src: Tensor, dst: Tensor, r: Tensor, cutoff: float, sizes: Sequence[int], plan: Tensor, weights: Tensor
) -> bytes:
    """Pack the struct `InteractionPlanCall` of interaction_plan.cpp; the arguments are those of `fill_plan`."""
    pointers = map(library.address, (src, dst, r, plan, weights))
    return _pack_plan(*pointers, src.shape[0], *sizes, r.dtype is torch.float64, cutoff)


def run(packed: bytes) -> None:
    """Run a packed call, forward or backward.

    Raises:
        ValueError: the plan belongs to different edges, or was changed.
    """
    native = library.packed("popgeo_interaction")
    assert native is not None
    if native(packed):
        raise ValueError("The plan of the interaction belongs to different edges or was changed. Make a new plan.")
