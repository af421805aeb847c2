"""The interaction as operations of torch for graphs: with the plan, the filters and the working memory as values."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.ops import interaction_call
from popgeo.ops.interaction_call import Call
from popgeo.ops.refusals import refuse_index
from popgeo.ops.register_op import register

# What all of them take, in the order of `Call`, and with how many threads at most.
_ARGUMENTS = (
    "int num_edges, int num_rows, Tensor plan, Tensor x, Tensor expansion, Tensor? centres, float width, "
    "Tensor? envelope, Tensor[] weights, Tensor?[] biases, int activation, bool half_list, int num_threads"
)
_NUM_ARGUMENTS = 13


def as_call(arguments: Sequence[Any]) -> tuple[Call, int]:
    """The call that the arguments of an operation describe, and its number of threads."""
    names = tuple(Call.__dataclass_fields__)
    *given, num_threads = arguments[:_NUM_ARGUMENTS]
    return Call(**dict(zip(names, given, strict=True))), num_threads


def fill_plan(
    src: Tensor, dst: Tensor, envelope: Tensor | None, distances: Tensor | None, sizes: tuple[int, int], plan: Tensor
) -> None:
    """Fills the plan's memory.

    Raises:
        ValueError: an index is out of range.
    """
    if not interaction_call.make_plan(src, dst, sizes, envelope, distances, plan):
        refuse_index("src", src, sizes[0])
        refuse_index("dst", dst, sizes[1])


def pack_forward(arguments: Sequence[Any], results: Sequence[Tensor], num_threads: int) -> bytes:
    """The structure of an `interaction`, whose results are the sums, the filters and the working memory."""
    out, filters, workspace = results
    return as_call(arguments)[0].pack(out=out, filters=filters, workspace=workspace, num_threads=num_threads)


def pack_backward(arguments: Sequence[Any], results: Sequence[Tensor], num_threads: int) -> bytes:
    """The structure of an `interaction_backward`; its results are the gradients wanted, and the working memory."""
    filters, grad, wanted = arguments[_NUM_ARGUMENTS:]
    *made, workspace = results
    given = iter(made)
    to_x, *to_layers = [next(given) if is_wanted else None for is_wanted in wanted]
    half = len(to_layers) // 2
    pairs = [t for pair in zip(to_layers[:half], to_layers[half:], strict=True) for t in pair]
    return as_call(arguments)[0].pack(
        out=to_x,
        filters=filters,
        grad=grad,
        grads=[None, None, *pairs],
        workspace=workspace,
        num_threads=num_threads,
    )


def _plan(
    src: Tensor,
    dst: Tensor,
    envelope: Tensor | None,
    distances: Tensor | None,
    num_sources: int,
    num_rows: int,
) -> Tensor:
    plan = _empty_plan(src, dst, envelope, distances, num_sources, num_rows)
    fill_plan(src, dst, envelope, distances, (num_sources, num_rows), plan)
    return plan


def _empty_plan(src: Tensor, dst: Tensor, envelope: Any, distances: Any, num_sources: int, num_rows: int) -> Tensor:
    return src.new_empty(interaction_call.plan_size(src.shape[0], num_sources, num_rows), dtype=torch.int32)


def _empty_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call, num_threads = as_call(arguments)
    x, channels = call.x, call.x.shape[1]
    filters = x.new_empty(interaction_call.filters_shape(call.num_edges, channels))
    return x.new_empty(call.num_rows, channels), filters, x.new_empty(call.workspace_size(num_threads))


def _empty_backward(*arguments: Any) -> list[Tensor]:
    call, num_threads = as_call(arguments)
    tensors = call.x, *call.weights, *call.biases
    shapes = [t.shape for t, wanted in zip(tensors, arguments[-1], strict=True) if wanted and t is not None]
    return [*map(call.x.new_empty, shapes), call.x.new_empty(call.workspace_size(num_threads))]


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    results = _empty_forward(*arguments)
    interaction_call.run("forward", pack_forward(arguments, results, arguments[_NUM_ARGUMENTS - 1]))
    return results


def _backward(*arguments: Any) -> list[Tensor]:
    results = _empty_backward(*arguments)
    interaction_call.run("backward", pack_backward(arguments, results, arguments[_NUM_ARGUMENTS - 1]))
    return results


register(
    "interaction_plan(Tensor src, Tensor dst, Tensor? envelope, Tensor? distances, int num_sources, int num_rows)"
    " -> Tensor",
    kernel=_plan,
    fake=_empty_plan,
)
register(
    f"interaction({_ARGUMENTS}) -> (Tensor out, Tensor filters, Tensor workspace)",
    kernel=_forward,
    fake=_empty_forward,
)
register(
    f"interaction_backward({_ARGUMENTS}, Tensor filters, Tensor grad, bool[] wanted) -> Tensor[]",
    kernel=_backward,
    fake=_empty_backward,
)
