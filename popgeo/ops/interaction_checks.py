"""The checks of what an interaction is given: every array has as many numbers as the kernels read. No value is read."""

from collections.abc import Sequence

import torch
from torch import Tensor

from popgeo.ops.filter_network import Activation, FilterNetwork, Gaussians
from popgeo.ops.interaction_call import Call, plan_size
from popgeo.ops.kernel_arguments import check_array
from popgeo.ops.refusals import check_index


def check_call(call: Call) -> None:
    """Checks the arguments of an interaction.

    Raises:
        ValueError: a shape does not fit, or there is no such activation.
    """
    FilterNetwork(weights=call.weights, biases=call.biases)  # checks its layers
    if call.activation not in list(Activation):
        raise ValueError(f"activation is {call.activation}; allowed are 0 to {len(Activation) - 1}.")
    if call.centres is not None:
        Gaussians(centres=call.centres, width=call.width)  # checks the width
    if call.num_nodes < 0:
        raise ValueError(f"num_nodes is {call.num_nodes}; it cannot be negative.")
    x, centres, num_nodes, num_edges = call.x, call.centres, call.num_nodes, call.src.shape[0]
    check_index("src", call.src, num_edges, x)
    check_index("dst", call.dst, num_edges, x)
    channels, inputs = call.weights[-1].shape[0], call.weights[0].shape[1]
    width = channels if call.direction is None else channels // 3 * 5
    if x.dim() != 2 or x.shape[1] != width or (call.direction is not None and channels % 3):
        raise ValueError(
            f"x has shape {tuple(x.shape)}; the network makes filters of {channels} channels: [n, {width}]."
        )
    if call.direction is not None and call.direction.shape != (num_edges, 3):
        raise ValueError(
            f"direction has shape {tuple(call.direction.shape)}; pass one vector for each edge: ({num_edges}, 3)."
        )
    wanted = (num_edges,) if centres is not None else (num_edges, inputs)
    if call.expansion.shape != wanted:
        raise ValueError(
            f"expansion has shape {tuple(call.expansion.shape)}; for these edges and this network pass {wanted}."
        )
    if centres is not None and centres.shape != (inputs,):
        raise ValueError(f"There are {centres.numel()} centres; the network takes {inputs} inputs.")
    if call.envelope is not None and call.envelope.shape not in ((num_edges,), (num_edges, 1)):
        raise ValueError(
            f"envelope has shape {tuple(call.envelope.shape)}; pass one factor for each edge: ({num_edges},)."
        )
    if call.half_list and x.shape[0] != num_nodes:
        raise ValueError(
            f"x has {x.shape[0]} rows and num_nodes is {num_nodes}; in a half list every node sends and receives, so "
            "they must be equal."
        )
    if call.plan is not None:
        check_array("plan", call.plan, (plan_size(num_edges, x.shape[0], num_nodes),), torch.int32)


def check_backward(call: Call, filters: Tensor, grad: Tensor, wanted: Sequence[bool]) -> None:
    """Checks the arguments of the backward pass, and that each gradient that is wanted is of a tensor.

    Raises:
        ValueError: a shape or a type does not fit.
    """
    check_call(call)
    (rows, width), dtype = call.filters_shape, call.x.dtype
    twice = filters.dim() == 2 and filters.shape[1] == 2 * width  # with slopes next to the filters
    check_array("filters", filters, (rows, 2 * width if twice else width), dtype)
    channels = call.x.shape[1] if call.direction is None else call.x.shape[1] // 5 * 4
    check_array("grad", grad, (call.num_nodes, channels), dtype)
    check_wanted(wanted, call.tensors)


def check_second(
    call: Call,
    filters: Tensor,
    grad: Tensor,
    first: Sequence[bool],
    along: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> None:
    """Checks the arguments of the second backward pass.

    Raises:
        ValueError: a shape or a type does not fit.
    """
    check_backward(call, filters, grad, first)
    check_wanted(wanted, [grad, *call.tensors])
    ways = [tensor for tensor, is_first in zip(call.tensors, first, strict=True) if is_first]
    if len(along) != len(ways):
        raise ValueError(f"There are {len(along)} gradients of gradients; {len(ways)} gradients were made.")
    for number, (way, tensor) in enumerate(zip(along, ways, strict=True)):
        if way is not None and tensor is not None:
            check_array(f"along[{number}]", way, tensor.shape, tensor.dtype)


def check_wanted(wanted: Sequence[bool], tensors: Sequence[Tensor | None]) -> None:
    """Checks that there is one choice for each tensor, and that no gradient of a missing tensor is wanted.

    Raises:
        ValueError: the choices do not fit.
    """
    if len(wanted) != len(tensors) or any(w and t is None for w, t in zip(wanted, tensors, strict=True)):
        given = [t is not None for t in tensors]
        raise ValueError(f"The gradients {list(wanted)} are wanted; only these tensors were given: {given}.")
