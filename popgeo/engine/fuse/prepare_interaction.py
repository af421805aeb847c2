"""How the engine calls interactions: structures packed once, for the places that operands and results have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, substitute
from popgeo.engine.fuse.prepared import PreparedCall, PreparedOp, late_arguments, register_prepared
from popgeo.ops import interaction_call
from popgeo.ops.interaction_ops import as_call, fill_plan, pack_backward, pack_forward

Pack = Callable[[Sequence[Any], Sequence[Tensor], int], bytes]


def _prepare_plan(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall:
    (plan,) = (tensors[v] for v in op.makes())
    late, _ = late_arguments(op, tensors)

    def call(*operands: Tensor) -> None:
        places = tensors | dict(zip(late, operands, strict=True)) if late else tensors  # type: ignore[operator]
        src, dst, envelope, distances, *sizes = substitute(op.args, places.__getitem__)
        fill_plan(src, dst, envelope, distances, tuple(sizes), plan)

    return call


def _prepare(direction: str, pack: Pack) -> Callable[[OpGraph, Op, Mapping[int, Tensor]], PreparedCall]:
    def prepare(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall:
        results = [tensors[v] for v in op.makes()]
        late, _ = late_arguments(op, tensors)
        _, limit = as_call(op.args)  # there is working memory for so many threads

        def packed(num_threads: int, operands: Mapping[int, Tensor]) -> bytes:
            return pack(substitute(op.args, operands.__getitem__), results, num_threads)

        if late:  # their places are new at each run

            def call_late(*operands: Tensor) -> None:
                known = {**tensors, **dict(zip(late, operands, strict=True))}
                interaction_call.run(direction, packed(min(torch.get_num_threads(), limit), known))

            return call_late
        structures: dict[int, bytes] = {}

        def call() -> None:
            num_threads = min(torch.get_num_threads(), limit)
            if num_threads not in structures:
                structures[num_threads] = packed(num_threads, tensors)
            interaction_call.run(direction, structures[num_threads])

        return call

    return prepare


register_prepared("popgeo.interaction_plan.default", PreparedOp(prepare=_prepare_plan))
register_prepared("popgeo.interaction.default", PreparedOp(prepare=_prepare("forward", pack_forward)))
register_prepared("popgeo.interaction_backward.default", PreparedOp(prepare=_prepare("backward", pack_backward)))
