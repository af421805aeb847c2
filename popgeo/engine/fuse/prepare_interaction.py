"""How the engine calls interactions: structures packed once, for the places that operands and results have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, substitute
from popgeo.engine.fuse.plan_interactions import BACKWARD, FORWARD, PLAN
from popgeo.engine.fuse.prepared import PreparedCall, PreparedOp, late_arguments, register_prepared
from popgeo.ops import interaction_call
from popgeo.ops.interaction_call import Call
from popgeo.ops.interaction_ops import NUM_ARGUMENTS, pack_backward, pack_forward


def _prepare_plan(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall:
    (plan,) = (tensors[v] for v in op.makes())
    late, _ = late_arguments(op, tensors)

    def call(*operands: Tensor) -> None:
        places = tensors | dict(zip(late, operands, strict=True)) if late else tensors  # type: ignore[operator]
        src, dst, envelope, distances, *sizes = substitute(op.args, places.__getitem__)
        interaction_call.fill_plan(src, dst, envelope, distances, tuple(sizes), plan)

    return call


def _prepare(
    direction: str, pack: Callable[..., bytes]
) -> Callable[[OpGraph, Op, Mapping[int, Tensor]], PreparedCall | None]:
    def prepare(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> PreparedCall | None:
        results = [tensors[v] for v in op.makes()]
        late, _ = late_arguments(op, tensors)
        limit = torch.get_num_threads()  # there is working memory for so many

        def packed(num_threads: int, operands: Mapping[int, Tensor]) -> bytes:
            arguments: Sequence[Any] = substitute(op.args, operands.__getitem__)
            return pack(Call(*arguments[:NUM_ARGUMENTS]), results, num_threads, *arguments[NUM_ARGUMENTS:])

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


register_prepared(PLAN, PreparedOp(prepare=_prepare_plan))
register_prepared(FORWARD, PreparedOp(prepare=_prepare("forward", pack_forward)))
register_prepared(BACKWARD, PreparedOp(prepare=_prepare("backward", pack_backward)))
