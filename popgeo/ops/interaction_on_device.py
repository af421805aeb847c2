"""Interactions on a GPU by Triton kernels: sums by receiver, gradients by source, by edge and by point of the grid.

A plan contains for each edge the first point of its filter, -1 for an absent edge, and the orders of the present edges
by this point, by receiver and by source. Each sum has one order, so all runs give the same bits.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from popgeo.ops import sum_on_device
from popgeo.ops.interaction_call import InteractionCall, empty_plan, lagrange_weights, slopes, slopes_transposed
from popgeo.ops.sum_on_device import require_range

_HEADER = 5  # entries at the start of a plan that only the processor's kernels use


def serves(call: InteractionCall) -> bool:
    """Check whether Triton can compute the call: on a GPU, with distances in float32 or float64."""
    fits = call.r.dtype in (torch.float32, torch.float64) and call.src.numel() > 0
    on_device = fits and all(sum_on_device.serves(t) and t.numel() > 0 for t in call.tensors if t is not None)
    return on_device and sum_on_device.triton_kernels() is not None


def fill_plan(
    src: Tensor, dst: Tensor, r: Tensor, cutoff: float, sizes: Sequence[int], plan: Tensor, weights: Tensor
) -> None:
    """Fill a plan and its weights without waiting for the device; `sizes` are sources, receivers and points."""
    require_range("src", src, sizes[0])
    require_range("dst", dst, sizes[1])
    absent = r >= cutoff
    start, by_point = lagrange_weights(r, cutoff, sizes[2])
    keys = ((start, sizes[2]), (dst, sizes[1]), (src, sizes[0]))
    orders = [torch.sort(torch.where(absent, end, key), stable=True).indices for key, end in keys]
    plan[_HEADER:].view(4, -1).copy_(torch.stack([torch.where(absent, -1, start), *orders]))
    weights.copy_(torch.where(absent.unsqueeze(1), 0.0, torch.stack(by_point, 1)))


class DevicePass:
    """The sums and both backward passes of one call."""

    def __init__(self, call: InteractionCall) -> None:
        plan, weights = call.plan, call.weights
        if plan is None or weights is None:
            plan, weights = empty_plan(call.src, call.dst, call.r)
            sizes = call.x.shape[0], call.num_nodes, call.table.shape[0]
            fill_plan(call.src, call.dst, call.r, call.cutoff, sizes, plan, weights)
        self.call = call
        self.kernels: Any = sum_on_device.triton_kernels("triton_interaction")  # `serves` has checked that they exist
        self.wide = torch.float64 if call.x.dtype is torch.float64 else torch.float32
        self.start, *orders = plan[_HEADER:].view(4, -1)
        self.by_point, self.by_receiver, self.by_source = orders
        self.weights = weights.to(self.wide).contiguous()
        self.x, self.src, self.dst = call.x.contiguous(), call.src.contiguous(), call.dst.contiguous()
        self.direction = None if call.direction is None else call.direction.to(self.wide).contiguous()
        self.spacing = call.cutoff / (call.table.shape[0] - 1)

    @cached_property
    def values(self) -> Tensor:
        """The filters at the points of the grid. [num_points, channels]."""
        return self.call.table.to(self.wide).contiguous()

    @cached_property
    def exact_slopes(self) -> Tensor:
        """Their derivatives by the distance, in float64. [num_points, channels]."""
        return slopes(self.call.table.double()) / self.spacing

    @cached_property
    def slopes(self) -> Tensor:
        """Their derivatives by the distance, rounded. [num_points, channels]."""
        return self.exact_slopes.to(self.wide)

    @cached_property
    def bends(self) -> Tensor:
        """Their second derivatives. [num_points, channels]."""
        return (slopes(self.exact_slopes) / self.spacing).to(self.wide)

    def sums(self) -> Tensor:
        """Compute the sums. [num_nodes, out_channels]."""
        return self._at_receivers(self.x, self.values, None, self.direction)

    def gradients(self, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
        """Compute the wanted gradients with respect to `InteractionCall.tensors`."""
        grad, call, direction = grad.contiguous(), self.call, self.direction
        at_edges = cache(lambda: self._at_edges(self.x, grad, self.slopes, self.values))
        makers = (
            lambda: self._at_sources(grad, self.values, None, direction),
            lambda: self._at_points(self.x, grad, None, direction).to(call.table.dtype),
            lambda: at_edges()[0].to(call.r.dtype),
            lambda: at_edges()[1].to(call.direction.dtype),  # type: ignore[union-attr]  # wanted if it is there
        )
        return [make() for make, is_wanted in zip(makers, wanted, strict=True) if is_wanted]

    def second_gradients(
        self,
        grad: Tensor,
        along_x: Tensor | None,
        along_r: Tensor | None,
        along_direction: Tensor | None,
        wanted: Sequence[bool],
    ) -> list[Tensor]:
        """Compute the wanted gradients with respect to `grad` and `InteractionCall.tensors`.

        Args:
            grad: Gradient of the sums.
            along_x: Gradient of the gradient of x.
            along_r: Gradient of the gradient of r.
            along_direction: Gradient of the gradient of the directions.
            wanted: Whether `grad`, and each of the tensors, gets a gradient.
        """
        call, grad, x, direction = self.call, grad.contiguous(), self.x, self.direction
        made: list[list[Tensor]] = [[], [], [], [], []]
        along = [None if t is None else t.to(self.wide).contiguous() for t in (along_r, along_direction)]
        of_edges = any(wanted[3:])
        if along_x is not None:
            along_x = along_x.contiguous()
            made[0] += [self._at_receivers(along_x, self.values, None, direction)] if wanted[0] else []
            made[2] += [self._at_points(along_x, grad, None, direction).double()] if wanted[2] else []
            if of_edges:
                by_r, by_direction = self._at_edges(along_x, grad, self.slopes, self.values)
                made[3], made[4] = [by_r], [by_direction]
        if of_edges:
            by_r, by_direction = self._at_edges(x, grad, self.bends, self.slopes)
        if along[0] is not None:
            made[0] += [self._at_receivers(x, self.slopes, along[0], direction)] if wanted[0] else []
            made[1] += [self._at_sources(grad, self.slopes, along[0], direction)] if wanted[1] else []
            if wanted[2]:
                at_points = self._at_points(x, grad, along[0], direction).double()
                made[2].append(slopes_transposed(at_points) / self.spacing)
            if of_edges:
                made[3].append(by_r * along[0])
                made[4].append(by_direction * along[0].unsqueeze(1))
        if along[1] is not None:
            values = _of_edges(self.values)
            made[0] += [self._at_receivers(x, values, None, along[1])] if wanted[0] else []
            made[1] += [self._at_sources(grad, values, None, along[1])] if wanted[1] else []
            made[2] += [_of_edges(self._at_points(x, grad, None, along[1])).double()] if wanted[2] else []
            made[3] += [(by_direction * along[1]).sum(1)] if of_edges else []
        like = grad, x, call.table, call.r, call.direction
        return [
            sum(terms[1:], terms[0]).to(one.dtype) if terms else torch.zeros_like(one)
            for terms, one, is_wanted in zip(made, like, wanted, strict=True)
            if is_wanted and one is not None
        ]

    def _at_receivers(self, x: Tensor, table: Tensor, scale: Tensor | None, direction: Tensor | None) -> Tensor:
        """Sum x * filter * scale at the receivers, and in a half list also at the sources. [num_nodes, channels]."""
        return self._sum(x, table, scale, direction, is_transposed=False)

    def _at_sources(self, grad: Tensor, table: Tensor, scale: Tensor | None, direction: Tensor | None) -> Tensor:
        """Sum grad * filter * scale at the sources; in a half list these are the receivers. [num_sources, channels]."""
        return self._sum(grad, table, scale, direction, is_transposed=True)

    def _sum(
        self, x: Tensor, table: Tensor, scale: Tensor | None, direction: Tensor | None, is_transposed: bool
    ) -> Tensor:
        ways = [
            (self.src, self.dst, self.by_receiver, self.call.num_nodes, direction),
            (self.dst, self.src, self.by_source, self.x.shape[0], direction),
        ]
        if is_transposed:
            ways.reverse()
        made: list[Tensor] = []
        for senders, rows, order, num_rows, towards in ways if self.call.half_list else ways[:1]:
            if made and towards is not None:  # the reverse edge has the opposite direction
                towards = -towards
            ends = senders, self._pointers(rows, order, num_rows), order
            made.append(
                self.kernels.interaction_rows(x, table, scale, towards, self.start, self.weights, *ends, is_transposed)
            )
        return sum(made[1:], made[0])

    def _at_edges(self, x: Tensor, grad: Tensor, table: Tensor, of_direction: Tensor) -> tuple[Tensor, Tensor]:
        """Sum x * grad * filter over the channels of each edge, and by its direction. [num_edges], [num_edges, 3]."""
        ends = self.src, self.dst, self.call.half_list
        made = self.kernels.interaction_edges(
            x, grad, table, self.direction, of_direction, self.start, self.weights, *ends
        )
        return made[:, 0].contiguous(), made[:, 1:].contiguous()

    def _at_points(self, x: Tensor, grad: Tensor, scale: Tensor | None, direction: Tensor | None) -> Tensor:
        """Sum x * grad * scale, times the weight of each point, over the edges. [num_points, channels]."""
        pointers = self._pointers(self.start, self.by_point, self.call.table.shape[0])
        ends = self.src, self.dst, pointers, self.by_point, self.call.half_list
        return self.kernels.interaction_points(x, grad, scale, direction, self.start, self.weights, *ends)

    def _pointers(self, key: Tensor, order: Tensor, num_rows: int) -> Tensor:
        """Return the first place of each row among the present edges, in the order of the rows. [num_rows + 1]."""
        ordered = torch.where(self.start < 0, num_rows, key).index_select(0, order)
        return sum_on_device.pointers(ordered, num_rows)


def _of_edges(filters: Tensor) -> Tensor:
    """Return filters with zeros for scalars and vectors; the last third multiplies the directions of the edges."""
    of_edges = filters.tensor_split(3, 1)[2]
    return torch.cat([of_edges.new_zeros(len(filters), 2 * of_edges.shape[1]), of_edges], 1)
