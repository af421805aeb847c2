"""The interaction as torch ops: forward, backward, second backward and plan, each one op in captured graphs.

All but the plan have a decomposition into interpolation and convolution in torch's table. Machines use it for costs and
for tiles; it reads no plan.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import register_decomposition

from popgeo.native import library
from popgeo.ops import interaction_call, interaction_on_device, sum_on_device
from popgeo.ops.eager import is_eager
from popgeo.ops.interaction_call import MAX_POINTS, STENCIL, InteractionCall, empty_plan
from popgeo.ops.interaction_checks import check_backward, check_call, check_second
from popgeo.ops.interaction_on_device import DevicePass
from popgeo.ops.kernel_arguments import check_array
from popgeo.ops.refusals import check_index
from popgeo.ops.register_op import LIBRARY, refusing_none, register

# The attributes of `InteractionCall`, in its order.
_ARGUMENTS = (
    "Tensor x, Tensor table, Tensor r, Tensor? direction, Tensor src, Tensor dst, SymInt num_nodes, float cutoff, "
    "bool half_list, Tensor? plan, Tensor? weights"
)
NUM_ARGUMENTS = 11
_TABLE = 1  # place of the table in `InteractionCall.tensors`


def interact(call: InteractionCall) -> Tensor:
    """Compute the sums of an interaction. The first two derivatives are fused; higher ones use the definition.

    Raises:
        ValueError: an index is out of range, or the plan belongs to different edges.
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in call.tensors):
        return _Interaction.apply(call, *call.tensors)
    return _below_autograd("interaction", _forward, call.arguments)


def interact_backward(call: InteractionCall, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
    """Compute the wanted gradients with respect to `InteractionCall.tensors`, which can be differentiated again."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (grad, *call.tensors)):
        return list(_Backward.apply(call, list(wanted), grad, *call.tensors))
    return _below_autograd("interaction_backward", _backward, (*call.arguments, grad, list(wanted)))


def interact_second(
    call: InteractionCall, grad: Tensor, first: Sequence[bool], along: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor]:
    """Differentiate the `first` gradients with respect to `grad` and `InteractionCall.tensors`, where wanted."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (grad, *along, *call.tensors)):
        return call.second_gradients(grad, first, along, wanted)
    return _below_autograd(
        "interaction_second", _second, (*call.arguments, grad, list(first), list(along), list(wanted))
    )


def _of_arguments(of_call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of an `InteractionCall` so that it takes the call's fields as separate arguments, as ops do."""
    return lambda *arguments: of_call(InteractionCall(*arguments[:NUM_ARGUMENTS]), *arguments[NUM_ARGUMENTS:])


def _spread(results: Iterable[Any], wanted: Sequence[bool]) -> list[Any]:
    """Return a list with the results at the wanted positions, in order, and None at other positions."""
    remaining = iter(results)
    return [next(remaining) if is_wanted else None for is_wanted in wanted]


def pack_forward(call: InteractionCall, results: Sequence[Tensor], num_threads: int) -> bytes:
    """Pack the struct of a forward call, whose results are the sums and the working memory."""
    out, workspace = results
    return call.pack(out=out, workspace=workspace, num_threads=num_threads)


def pack_backward(
    call: InteractionCall,
    results: Sequence[Tensor],
    num_threads: int,
    grad: Tensor,
    wanted: Sequence[bool],
    **second: Any,
) -> bytes:
    """Pack the struct of a backward call, whose results are the wanted gradients and the working memory.

    `second` contains the further arguments of `InteractionCall.pack` in the second backward pass.
    """
    *gradients, workspace = results
    to_x, *grads = _spread(gradients, wanted)
    return call.pack(out=to_x, grad=grad, grads=grads, workspace=workspace, num_threads=num_threads, **second)


def pack_second(
    call: InteractionCall,
    results: Sequence[Tensor],
    num_threads: int,
    grad: Tensor,
    first: Sequence[bool],
    along: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> bytes:
    """Pack the struct of the second backward pass, whose first result is the gradient of `grad`, if wanted."""
    ways = _spread(along, first)
    del ways[_TABLE]
    to_grad, rest = (results[0], results[1:]) if wanted[0] else (None, results)
    return pack_backward(call, rest, num_threads, grad, wanted[1:], along=ways, to_grad=to_grad)


class _Interaction(torch.autograd.Function):
    """The autograd function of the interaction in eager code."""

    @staticmethod
    def forward(ctx: Any, call: InteractionCall, *tensors: Tensor | None) -> Tensor:
        ctx.call = call.of([None for _ in tensors])  # torch saves the tensors and notices changes in place
        ctx.save_for_backward(*tensors)
        return _below_autograd("interaction", _forward, call.arguments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        return None, *_spread(interact_backward(ctx.call.of(ctx.saved_tensors), grad, wanted), wanted)


class _Backward(torch.autograd.Function):
    """The autograd function of the backward pass in eager code."""

    @staticmethod
    def forward(
        ctx: Any, call: InteractionCall, first: list[bool], grad: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.call, ctx.first = call.of([None for _ in tensors]), first
        ctx.save_for_backward(*tensors, grad)
        ctx.set_materialize_grads(False)
        return tuple(_below_autograd("interaction_backward", _backward, (*call.arguments, grad, first)))

    @staticmethod
    def backward(ctx: Any, *along: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, grad = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        gradients = interact_second(ctx.call.of(tensors), grad, ctx.first, along, wanted)
        return None, None, *_spread(gradients, wanted)


def _below_autograd(name: str, kernel: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Run an op, and use torch's dispatcher only if necessary."""
    if is_eager([*arguments, *(t for argument in arguments if isinstance(argument, list | tuple) for t in argument)]):
        return kernel(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.popgeo, name).default(*arguments)


@_of_arguments
def _forward(call: InteractionCall) -> Tensor:
    check_call(call)
    if interaction_on_device.serves(call):
        return DevicePass(call).sums()
    if not call.is_served():
        return call.sums()
    call, num_threads = call.laid_out(), torch.get_num_threads()
    results = out, _ = _empty_forward(call), call.workspace()
    interaction_call.run(pack_forward(call, results, num_threads))
    return out


@_of_arguments
def _backward(call: InteractionCall, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
    check_backward(call, grad, wanted)
    if interaction_on_device.serves(call):
        return DevicePass(call).gradients(grad, wanted)
    if not call.is_served():
        return call.gradients(grad, wanted)
    call, num_threads = call.laid_out(), torch.get_num_threads()
    gradients = _empty_gradients(call.tensors, wanted)
    grad = library.as_read(grad)  # a name keeps the copy alive while the kernel runs
    results = [*gradients, call.workspace()]
    interaction_call.run(pack_backward(call, results, num_threads, grad, wanted))
    return gradients


@_of_arguments
def _second(
    call: InteractionCall, grad: Tensor, first: Sequence[bool], along: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor]:
    check_second(call, grad, first, along, wanted)
    if serves_second(first, along) and interaction_on_device.serves(call):
        along_x, _, along_r, along_direction = _spread(along, first)
        return DevicePass(call).second_gradients(grad, along_x, along_r, along_direction, wanted)
    if not call.is_served() or not serves_second(first, along):
        return call.second_gradients(grad, first, along, wanted)
    call, num_threads = call.laid_out(), torch.get_num_threads()
    gradients = _empty_gradients([grad, *call.tensors], wanted)
    grad = library.as_read(grad)  # a name keeps the copy alive while the kernel runs
    along = [None if t is None else library.as_read(t) for t in along]
    results = [*gradients, call.workspace(is_second=True)]
    interaction_call.run(pack_second(call, results, num_threads, grad, first, along, wanted))
    return gradients


def serves_second(first: Sequence[bool], along: Sequence[Any]) -> bool:
    """Check whether the kernels can run the second backward pass. They cannot differentiate the table's gradient."""
    return not first[_TABLE] or along[sum(first[:_TABLE])] is None


def _plan(src: Tensor, dst: Tensor, r: Tensor, cutoff: float, *sizes: int) -> tuple[Tensor, Tensor]:
    num_edges = src.numel()
    check_index("src", src, num_edges, src)
    check_index("dst", dst, num_edges, src)
    check_array("r", r, (num_edges,), torch.float64 if r.dtype is torch.float64 else torch.float32)
    if not 0 < cutoff < float("inf") or not STENCIL <= sizes[2] < MAX_POINTS or max(8 * num_edges, *sizes) >= 2**31:
        raise ValueError(
            f"There are {num_edges} edges, {sizes[0]} sources, {sizes[1]} rows and {sizes[2]} points up to {cutoff}; "
            f"the cutoff must be positive, with {STENCIL} to {MAX_POINTS - 1} points and fewer than 2^28 edges."
        )
    plan, weights = empty_plan(src, dst, r)
    plan.zero_()
    if sum_on_device.serves(r):
        interaction_on_device.fill_plan(src, dst, r, cutoff, sizes, plan, weights)
    elif interaction_call.is_served() and src.is_cpu:  # only the kernels read it
        interaction_call.fill_plan(src, dst, library.as_read(r), cutoff, sizes, plan, weights)
    return plan, weights


def _empty_forward(call: InteractionCall) -> Tensor:
    return call.x.new_empty(call.num_nodes, call.out_channels)


def _empty_gradients(tensors: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor]:
    return [t.new_empty(t.shape) for t, is_wanted in zip(tensors, wanted, strict=True) if is_wanted and t is not None]


make_plan = register(
    "interaction_plan(Tensor src, Tensor dst, Tensor r, float cutoff, int num_sources, int num_rows, int num_points)"
    " -> (Tensor plan, Tensor weights)",
    kernel=_plan,
    fake=empty_plan,
)
register(f"interaction({_ARGUMENTS}) -> Tensor", kernel=_forward, fake=_of_arguments(_empty_forward))
register(
    f"interaction_backward({_ARGUMENTS}, Tensor grad, bool[] wanted) -> Tensor[]",
    kernel=_backward,
    fake=_of_arguments(lambda call, grad, wanted: _empty_gradients(call.tensors, wanted)),
)
register(
    f"interaction_second({_ARGUMENTS}, Tensor grad, bool[] first, Tensor?[] along, bool[] wanted) -> Tensor[]",
    kernel=_second,
    fake=_of_arguments(lambda call, grad, first, along, wanted: _empty_gradients([grad, *call.tensors], wanted)),
)
for _name, _run, _definition in (
    ("interaction", interact, InteractionCall.sums),
    ("interaction_backward", interact_backward, InteractionCall.gradients),
    ("interaction_second", interact_second, InteractionCall.second_gradients),
):
    LIBRARY.impl(_name, refusing_none(_name, _of_arguments(_run)), "Autograd")
    register_decomposition(getattr(torch.ops.popgeo, _name).default)(_of_arguments(_definition))
