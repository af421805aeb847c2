"""The interaction as operations of torch: forward, backward, second backward and plan, each whole in a captured graph.

All but the plan have a decomposition in torch's table, into the convolution and plain torch: for inductor, for what a
machine costs and for its tiles. What the forward operation keeps, only the backward ones read.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import register_decomposition

from popgeo.native import library
from popgeo.ops import interaction_call
from popgeo.ops.eager import is_eager
from popgeo.ops.interaction_call import Call
from popgeo.ops.interaction_checks import check_backward, check_call, check_second
from popgeo.ops.kernel_arguments import check_array
from popgeo.ops.refusals import check_index
from popgeo.ops.register_op import LIBRARY, refusing_none, register

# Those of `Call`, in its order.
_ARGUMENTS = (
    "Tensor x, Tensor expansion, Tensor? envelope, Tensor[] weights, Tensor?[] biases, Tensor src, Tensor dst, "
    "SymInt num_nodes, int activation, bool half_list, Tensor? centres, float width, Tensor? plan, Tensor? direction"
)
NUM_ARGUMENTS = 14
_NUM_EDGE_TENSORS = 4  # of `Call.tensors`, before the layers'


def interact(call: Call) -> tuple[Tensor, Tensor]:
    """The sums of an interaction, and the filters as its backward pass reads them; differentiable twice.

    Raises:
        ValueError: an index is out of range, or the plan is of other edges.
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in call.tensors):
        return _Interaction.apply(call, *call.tensors)
    return _below_autograd("interaction", _forward, call.arguments)


def interact_backward(call: Call, filters: Tensor, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
    """The wanted ones of the gradients by `Call.tensors`; they can be differentiated again."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (grad, *call.tensors)):
        return list(_Backward.apply(call, filters, list(wanted), grad, *call.tensors))
    return _below_autograd("interaction_backward", _backward, (*call.arguments, filters, grad, list(wanted)))


def interact_second(
    call: Call,
    filters: Tensor,
    grad: Tensor,
    first: Sequence[bool],
    along: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor]:
    """The wanted ones of the gradients by `grad` and `Call.tensors`, from those of the `first` ones: see `Call`.

    If they may be differentiated again they are the definition's.
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (grad, *along, *call.tensors)):
        return call.second_gradients(grad, first, along, wanted)
    arguments = *call.arguments, filters, grad, list(first), list(along), list(wanted)
    return _below_autograd("interaction_second", _second, arguments)


def pack_forward(call: Call, results: Sequence[Tensor], num_threads: int) -> bytes:
    """The structure of a forward call, whose results are the sums, the filters and the working memory."""
    out, filters, workspace = results
    return call.pack(out=out, filters=filters, workspace=workspace, num_threads=num_threads)


def pack_backward(
    call: Call,
    results: Sequence[Tensor],
    num_threads: int,
    filters: Tensor,
    grad: Tensor,
    wanted: Sequence[bool],
    **second: Any,
) -> bytes:
    """The structure of a backward call; its results are the gradients wanted, and the working memory.

    `second` is what `Call.pack` takes in addition in the second backward pass.
    """
    *made, workspace = results
    given = iter(made)
    to_x, *others = [next(given) if is_wanted else None for is_wanted in wanted]
    edges, layers, half = others[:3], others[3:], len(call.weights)
    pairs = [t for pair in zip(layers[:half], layers[half:], strict=True) for t in pair]
    grads = [*edges, *pairs]
    return call.pack(
        out=to_x, filters=filters, grad=grad, grads=grads, workspace=workspace, num_threads=num_threads, **second
    )


def pack_second(
    call: Call,
    results: Sequence[Tensor],
    num_threads: int,
    filters: Tensor,
    grad: Tensor,
    first: Sequence[bool],
    along: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> bytes:
    """The structure of a call of the second backward pass; results as in `pack_backward`, that of `grad` first."""
    used, is_asked = iter(along), wanted[0]
    ways = [next(used) if is_first else None for is_first in first[:_NUM_EDGE_TENSORS]]
    to_grad, rest = (results[0], results[1:]) if is_asked else (None, results)
    return pack_backward(call, rest, num_threads, filters, grad, wanted[1:], along=ways, to_grad=to_grad)


class _Interaction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        out, filters = _below_autograd("interaction", _forward, call.arguments)
        ctx.call = call.of([None for _ in tensors])  # torch keeps the tensors, and watches over them
        ctx.save_for_backward(*tensors, filters)
        ctx.mark_non_differentiable(filters)
        return out, filters

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        *tensors, filters = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        made = iter(interact_backward(ctx.call.of(tensors), filters, grad, wanted))
        return None, *(next(made) if is_wanted else None for is_wanted in wanted)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, filters: Tensor, first: list[bool], grad: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.call, ctx.first = call.of([None for _ in tensors]), first
        ctx.save_for_backward(*tensors, filters, grad)
        ctx.set_materialize_grads(False)
        arguments = *call.arguments, filters, grad, first
        return tuple(_below_autograd("interaction_backward", _backward, arguments))

    @staticmethod
    def backward(ctx: Any, *along: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, filters, grad = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        made = iter(interact_second(ctx.call.of(tensors), filters, grad, ctx.first, along, wanted))
        return None, None, None, *(next(made) if is_wanted else None for is_wanted in wanted)


def _below_autograd(name: str, kernel: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Runs an operation, which torch's dispatcher sees only if it has something to add."""
    if is_eager([*arguments, *(t for argument in arguments if isinstance(argument, list | tuple) for t in argument)]):
        return kernel(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.popgeo, name).default(*arguments)


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    call = Call(*arguments)
    check_call(call)
    if not call.is_served():
        return call.sums(), call.empty_filters()
    call, num_threads = call.laid_out(), torch.get_num_threads()
    results = *_empty_forward(*arguments), call.workspace(num_threads)
    interaction_call.run("forward", pack_forward(call, results, num_threads))
    return results[0], results[1]


def _backward(*arguments: Any) -> list[Tensor]:
    call, (filters, grad, wanted) = Call(*arguments[:NUM_ARGUMENTS]), arguments[NUM_ARGUMENTS:]
    check_backward(call, filters, grad, wanted)
    if not call.is_served():
        return call.gradients(grad, wanted)
    call, num_threads = call.laid_out(), torch.get_num_threads()
    made = _empty_backward(*arguments)
    filters, grad = library.as_read(filters), library.as_read(grad)  # held by name while it runs
    results = [*made, call.workspace(num_threads)]
    interaction_call.run("backward", pack_backward(call, results, num_threads, filters, grad, wanted))
    return made


def _second(*arguments: Any) -> list[Tensor]:
    call, (filters, grad, first, along, wanted) = Call(*arguments[:NUM_ARGUMENTS]), arguments[NUM_ARGUMENTS:]
    check_second(call, filters, grad, first, along, wanted)
    if not call.is_served() or not serves_second(first, along):
        return call.second_gradients(grad, first, along, wanted)
    call, num_threads = call.laid_out(), torch.get_num_threads()
    made = _empty_second(*arguments)
    filters, grad = library.as_read(filters), library.as_read(grad)  # held by name while it runs
    along = [None if t is None else library.as_read(t) for t in along]
    results = [*made, call.workspace(num_threads, is_second=True)]
    interaction_call.run("second", pack_second(call, results, num_threads, filters, grad, first, along, wanted))
    return made


def serves_second(first: Sequence[bool], along: Sequence[Any]) -> bool:
    """Whether the kernels compute the second backward pass: that of weights' gradients is the definition's."""
    return all(t is None for t in along[sum(first[:_NUM_EDGE_TENSORS]) :])


def _plan(src: Tensor, dst: Tensor, envelope: Tensor | None, distances: Tensor | None, *sizes: int) -> Tensor:
    num_edges = src.numel()
    check_index("src", src, num_edges, src)
    check_index("dst", dst, num_edges, src)
    for name, factors in (("envelope", envelope), ("distances", distances)):
        if factors is not None:
            check_array(name, factors, (num_edges,), torch.float32)
    if not all(0 <= number < 2**31 for number in (num_edges, *sizes[:2])):
        raise ValueError(f"There are {num_edges} edges, {sizes[0]} sources and {sizes[1]} rows; allowed are 0 to 2^31.")
    plan = _empty_plan(src, dst, envelope, distances, *sizes).zero_()
    if interaction_call.is_served():  # it is not read elsewhere
        interaction_call.fill_plan(src, dst, envelope, distances, sizes, plan)
    return plan


def _empty_plan(src: Tensor, dst: Tensor, envelope: Any, distances: Any, *sizes: int) -> Tensor:
    return src.new_empty(interaction_call.plan_size(src.shape[0], *sizes[:2]), dtype=torch.int32)


def _empty_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    call = Call(*arguments)
    channels = call.x.shape[1] if call.direction is None else call.x.shape[1] // 5 * 4
    return call.x.new_empty(call.num_nodes, channels), call.empty_filters()


def _empty_backward(*arguments: Any) -> list[Tensor]:
    tensors, wanted = Call(*arguments[:NUM_ARGUMENTS]).tensors, arguments[-1]
    return [t.new_empty(t.shape) for t, is_wanted in zip(tensors, wanted, strict=True) if is_wanted and t is not None]


def _empty_second(*arguments: Any) -> list[Tensor]:
    (_, grad, _, _, wanted), tensors = arguments[NUM_ARGUMENTS:], Call(*arguments[:NUM_ARGUMENTS]).tensors
    given = zip((grad, *tensors), wanted, strict=True)
    return [t.new_empty(t.shape) for t, is_wanted in given if is_wanted and t is not None]


def _decomposed(call: Call) -> tuple[Tensor, Tensor]:
    return call.sums(), call.empty_filters()


def _of_arguments(of_call: Callable[..., Any], first: int = NUM_ARGUMENTS) -> Callable[..., Any]:
    """What takes a call and more, as torch calls an operation: with arguments in turn, more of them from `first` on."""
    return lambda *arguments: of_call(Call(*arguments[:NUM_ARGUMENTS]), *arguments[first:])


make_plan = register(
    "interaction_plan(Tensor src, Tensor dst, Tensor? envelope, Tensor? distances, int num_sources, int num_rows, "
    "bool joins_twins=False) -> Tensor",
    kernel=_plan,
    fake=_empty_plan,
)
register(f"interaction({_ARGUMENTS}) -> (Tensor out, Tensor filters)", kernel=_forward, fake=_empty_forward)
register(
    f"interaction_backward({_ARGUMENTS}, Tensor filters, Tensor grad, bool[] wanted) -> Tensor[]",
    kernel=_backward,
    fake=_empty_backward,
)
register(
    f"interaction_second({_ARGUMENTS}, Tensor filters, Tensor grad, bool[] first, Tensor?[] along, bool[] wanted)"
    " -> Tensor[]",
    kernel=_second,
    fake=_empty_second,
)
for _name, _run, _definition in (
    ("interaction", interact, _decomposed),
    ("interaction_backward", interact_backward, Call.gradients),
    ("interaction_second", interact_second, Call.second_gradients),
):
    LIBRARY.impl(_name, refusing_none(_name, _of_arguments(_run)), "Autograd")
    # The definition reads no filters.
    register_decomposition(getattr(torch.ops.popgeo, _name).default)(_of_arguments(_definition, NUM_ARGUMENTS + 1))
