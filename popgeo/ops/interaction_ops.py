"""The interaction as operations of torch: forward, backward, second backward and plan, each whole in a captured graph.

All but the plan have a decomposition in torch's table, into interpolation and convolution in plain torch: for the cost
of a machine and for its tiles. It reads no plan.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import register_decomposition

from popgeo.native import library
from popgeo.ops import interaction_call
from popgeo.ops.eager import is_eager
from popgeo.ops.interaction_call import MAX_POINTS, STENCIL, InteractionCall, empty_plan
from popgeo.ops.interaction_checks import check_backward, check_call, check_second
from popgeo.ops.kernel_arguments import check_array
from popgeo.ops.refusals import check_index
from popgeo.ops.register_op import LIBRARY, refusing_none, register

# Those of `InteractionCall`, in its order.
_ARGUMENTS = (
    "Tensor x, Tensor table, Tensor r, Tensor? direction, Tensor src, Tensor dst, SymInt num_nodes, float cutoff, "
    "bool half_list, Tensor? plan, Tensor? weights"
)
NUM_ARGUMENTS = 11
_TABLE = 1  # its place in `Call.tensors`


def interact(call: InteractionCall) -> Tensor:
    """The sums of an interaction; twice differentiable in one pass each, and then as the definition is.

    Raises:
        ValueError: an index is out of range, or the plan is of other edges.
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in call.tensors):
        return _Interaction.apply(call, *call.tensors)
    return _below_autograd("interaction", _forward, call.arguments)


def interact_backward(call: InteractionCall, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
    """The wanted ones of the gradients by `Call.tensors`; they can be differentiated again."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (grad, *call.tensors)):
        return list(_Backward.apply(call, list(wanted), grad, *call.tensors))
    return _below_autograd("interaction_backward", _backward, (*call.arguments, grad, list(wanted)))


def interact_second(
    call: InteractionCall, grad: Tensor, first: Sequence[bool], along: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor]:
    """Return the wanted gradients by `grad` and by `InteractionCall.tensors`, from the `first` gradients."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (grad, *along, *call.tensors)):
        return call.second_gradients(grad, first, along, wanted)
    return _below_autograd(
        "interaction_second", _second, (*call.arguments, grad, list(first), list(along), list(wanted))
    )


def _of_arguments(of_call: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a function of a call and more with arguments in turn, as torch calls an operation."""
    return lambda *arguments: of_call(InteractionCall(*arguments[:NUM_ARGUMENTS]), *arguments[NUM_ARGUMENTS:])


def _where_wanted(made: Iterable[Any], wanted: Sequence[bool]) -> list[Any]:
    """What was made, each at its place among all that could be wanted; None at the others."""
    given = iter(made)
    return [next(given) if is_wanted else None for is_wanted in wanted]


def pack_forward(call: InteractionCall, results: Sequence[Tensor], num_threads: int) -> bytes:
    """The structure of a forward call, whose results are the sums and the working memory."""
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
    """The structure of a backward call; its results are the gradients wanted, and the working memory.

    `second` holds the further arguments of `Call.pack` in the second backward pass.
    """
    *made, workspace = results
    to_x, *grads = _where_wanted(made, wanted)
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
    """The structure of a call of the second backward pass; results as in `pack_backward`, that of `grad` first."""
    ways = _where_wanted(along, first)
    del ways[_TABLE]
    to_grad, rest = (results[0], results[1:]) if wanted[0] else (None, results)
    return pack_backward(call, rest, num_threads, grad, wanted[1:], along=ways, to_grad=to_grad)


class _Interaction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: InteractionCall, *tensors: Tensor | None) -> Tensor:
        ctx.call = call.of([None for _ in tensors])  # torch keeps the tensors, and watches over them
        ctx.save_for_backward(*tensors)
        return _below_autograd("interaction", _forward, call.arguments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        return None, *_where_wanted(interact_backward(ctx.call.of(ctx.saved_tensors), grad, wanted), wanted)


class _Backward(torch.autograd.Function):
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
        made = interact_second(ctx.call.of(tensors), grad, ctx.first, along, wanted)
        return None, None, *_where_wanted(made, wanted)


def _below_autograd(name: str, kernel: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Runs an operation, which torch's dispatcher sees only if it has something to add."""
    if is_eager([*arguments, *(t for argument in arguments if isinstance(argument, list | tuple) for t in argument)]):
        return kernel(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.popgeo, name).default(*arguments)


@_of_arguments
def _forward(call: InteractionCall) -> Tensor:
    check_call(call)
    if not call.is_served():
        return call.sums()
    call, num_threads = call.laid_out(), torch.get_num_threads()
    results = out, _ = _empty_forward(call), call.workspace()
    interaction_call.run(pack_forward(call, results, num_threads))
    return out


@_of_arguments
def _backward(call: InteractionCall, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
    check_backward(call, grad, wanted)
    if not call.is_served():
        return call.gradients(grad, wanted)
    call, num_threads = call.laid_out(), torch.get_num_threads()
    made = _empty_gradients(call.tensors, wanted)
    grad = library.as_read(grad)  # held by name while it runs
    results = [*made, call.workspace()]
    interaction_call.run(pack_backward(call, results, num_threads, grad, wanted))
    return made


@_of_arguments
def _second(
    call: InteractionCall, grad: Tensor, first: Sequence[bool], along: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor]:
    check_second(call, grad, first, along, wanted)
    if not call.is_served() or not serves_second(first, along):
        return call.second_gradients(grad, first, along, wanted)
    call, num_threads = call.laid_out(), torch.get_num_threads()
    made = _empty_gradients([grad, *call.tensors], wanted)
    grad = library.as_read(grad)  # held by name while it runs
    along = [None if t is None else library.as_read(t) for t in along]
    results = [*made, call.workspace(is_second=True)]
    interaction_call.run(pack_second(call, results, num_threads, grad, first, along, wanted))
    return made


def serves_second(first: Sequence[bool], along: Sequence[Any]) -> bool:
    """Whether the kernels compute the second backward pass: that of the table's gradient is the definition's."""
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
    if interaction_call.is_served() and src.is_cpu:  # it is not read elsewhere
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
