"""Checks of the shapes and types of an interaction's arguments, so that kernels never read out of bounds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from popgeo.ops.interaction_call import MAX_POINTS, POINTS, STENCIL, InteractionCall, plan_size
from popgeo.ops.kernel_arguments import check_array
from popgeo.ops.refusals import check_index, check_least, check_shapes


def check_call(call: InteractionCall) -> None:
    """Check the arguments of an interaction.

    Raises:
        ValueError: a shape or a type does not fit.
    """
    x, table, num_edges = call.x, call.table, call.src.shape[0]
    check_least(0, num_nodes=call.num_nodes)
    if not 0 < call.cutoff < float("inf"):
        raise ValueError(f"cutoff is {call.cutoff}; it must be positive and finite.")
    if table.dim() != 2 or not STENCIL <= table.shape[0] < MAX_POINTS:
        points = f"[num_points, channels] with {STENCIL} to {MAX_POINTS - 1} points"
        raise ValueError(f"table has shape {tuple(table.shape)}; pass {points}.")
    check_index("src", call.src, num_edges, x)
    check_index("dst", call.dst, num_edges, x)
    channels = table.shape[1]
    width = channels if call.direction is None else channels // 3 * 5
    if x.dim() != 2 or x.shape[1] != width or (call.direction is not None and channels % 3):
        raise ValueError(f"x has shape {tuple(x.shape)}; for filters of {channels} channels pass [n, {width}].")
    remedy = "Pass one distance, and one vector, for each edge."
    check_shapes(remedy, r=(call.r, (num_edges,)), direction=(call.direction, (num_edges, 3)))
    if call.half_list and x.shape[0] != call.num_nodes:
        raise ValueError(
            f"x has {x.shape[0]} rows and num_nodes is {call.num_nodes}; in a half list every node sends and receives, "
            "so they must be equal."
        )
    check_array("plan", call.plan, (plan_size(num_edges),), torch.int32)
    check_array("weights", call.weights, (num_edges, POINTS), call.r.dtype)


def check_backward(call: InteractionCall, grad: Tensor, wanted: Sequence[bool]) -> None:
    """Check the arguments of the backward pass.

    Raises:
        ValueError: a shape or a type does not fit, or a gradient of a missing tensor is wanted.
    """
    check_call(call)
    check_array("grad", grad, (call.num_nodes, call.out_channels), call.x.dtype)
    check_wanted(wanted, call.tensors)


def check_second(
    call: InteractionCall, grad: Tensor, first: Sequence[bool], along: Sequence[Tensor | None], wanted: Sequence[bool]
) -> None:
    """Check the arguments of the second backward pass.

    Raises:
        ValueError: a shape or a type does not fit, or a gradient of a missing tensor is wanted.
    """
    check_backward(call, grad, first)
    check_wanted(wanted, [grad, *call.tensors])
    ways = [tensor for tensor, is_first in zip(call.tensors, first, strict=True) if is_first]
    if len(along) != len(ways):
        raise ValueError(f"There are {len(along)} gradients of gradients; the first pass has {len(ways)} gradients.")
    for number, (way, tensor) in enumerate(zip(along, ways, strict=True)):
        if way is not None and tensor is not None:
            check_array(f"along[{number}]", way, tensor.shape, tensor.dtype)


def check_wanted(wanted: Sequence[bool], tensors: Sequence[Tensor | None]) -> None:
    """Check that `wanted` has one boolean per tensor, and that no gradient of a missing tensor is wanted.

    Raises:
        ValueError: the choices do not fit.
    """
    if len(wanted) != len(tensors) or any(w and t is None for w, t in zip(wanted, tensors, strict=True)):
        given = [t is not None for t in tensors]
        raise ValueError(f"The gradients {list(wanted)} are wanted; only these tensors were given: {given}.")
