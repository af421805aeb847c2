"""Gives each interaction of a graph what the engine runs it with: a plan of its edges, distances, working memory.

When the graph is bound to memory, structures are packed once, for the places that operands and results have.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.expand import expand
from popgeo.capture.op_graph import Op, OpGraph, Ref, Value, substitute
from popgeo.capture.passes import drop_unused, with_ops
from popgeo.engine.fuse.def_use import DefUse, ref
from popgeo.engine.fuse.prepared import PreparedCall, PreparedOp, late_arguments, register_prepared
from popgeo.native import library
from popgeo.ops import interaction_call
from popgeo.ops.exp_or_zero import least_exponent
from popgeo.ops.interaction_call import Call
from popgeo.ops.interaction_ops import NUM_ARGUMENTS, pack_backward, pack_forward, pack_second, serves_second

FORWARD, BACKWARD, SECOND, PLAN = (
    f"popgeo.interaction{kind}.default" for kind in ("", "_backward", "_second", "_plan")
)
CFCONV, CFCONV_BACKWARD = (f"popgeo.cfconv{kind}.default" for kind in ("", "_backward"))


def plan_interactions(graph: OpGraph) -> OpGraph:
    """The graph with interactions as the kernels take them; expanded if no kernel does what the graph needs."""
    ops = [op for op in graph.ops if op.target in (FORWARD, BACKWARD, SECOND)]
    if not ops:
        return graph
    uses = DefUse(graph)
    whole = interaction_call.is_served() and all(fits(uses, Call(*op.args[:NUM_ARGUMENTS])) for op in ops)
    whole = whole and all(serves_second(*op.args[-3:-1]) for op in ops if op.target == SECOND)
    return drop_unused(_Planner(uses).graph()) if whole else expand(graph)


def describe_interactions(joined: OpGraph) -> str:
    """How many interactions of a graph run in one pass, and why others run in several; empty without interactions.

    Args:
        joined: As it runs.
    """
    count = sum(op.target == FORWARD for op in joined.ops)
    others = {ref(op.args[1]) for op in joined.ops if op.target == CFCONV}
    total = count + len(others)
    if not total:
        return ""
    kinds = {joined.values[v].dtype for v in others} - {torch.float32}
    if not count and kinds:
        return f"interactions as single operations, since one pass is for float32, not {', '.join(map(str, kinds))}"
    text = f"{count} of {total} interactions in one pass"
    if count == total:
        return text
    if not library.is_available():
        return f"{text} (the compiled kernels are not in use: `popgeo info` says why)"
    if not interaction_call.is_served():
        return f"{text} (no kernels for this processor)"
    return f"{text} (filters made in another way, or used elsewhere)"


def fits(uses: DefUse, call: Any) -> bool:
    """Whether the operands lie in memory as the kernels read them, and stay as they are; `call` is of `Ref`s."""
    num_edges = uses.graph.values[call.src.value].shape[0]
    floating = [*call.tensors, *([] if call.centres is None else [call.centres])]
    return (
        num_edges < 2**28
        and all(uses.graph.values[ref(weight)].numel for weight in call.weights)
        and all(uses.is_plain(ref(t)) for t in floating if t is not None)
        and all(uses.is_plain(ref(index), (num_edges,), torch.int64) for index in (call.src, call.dst))
    )


def _gaussians(uses: DefUse, expansion: int) -> tuple[int, int, float] | None:
    """The distances, centres and width of the Gaussians that an expansion is, cut off below e^-60 or not."""
    least = least_exponent(torch.float32)
    v = expansion
    cut = uses.maker(v, "aten.threshold.default")
    if cut is not None:
        if cut.args[1] > math.exp(least + 1) or cut.args[2] != 0:
            return None
        v = ref(cut.args[0])
    exponential = uses.maker(v, "aten.exp.default")
    if exponential is None:
        return None
    v = ref(exponential.args[0])
    clamped = uses.maker(v, "aten.clamp.default")
    if clamped is not None:
        if len(clamped.args) != 2 or clamped.kwargs or clamped.args[1] > least:
            return None
        v = ref(clamped.args[0])
    scaled = uses.maker(v, "aten.mul.Tensor", "aten.mul.Scalar")
    if scaled is None or not isinstance(scaled.args[1], float) or not scaled.args[1] < 0:
        return None
    squared = uses.maker(ref(scaled.args[0]), "aten.pow.Tensor_Scalar", "aten.square.default")
    if squared is None or squared.args[1:] not in ((), (2,)):
        return None
    difference = uses.maker(ref(squared.args[0]), "aten.sub.Tensor")
    if difference is None or difference.kwargs:
        return None
    num_edges, num_gaussians = uses.graph.values[expansion].shape
    distances, centres = map(ref, difference.args)
    if not uses.is_plain(distances, (num_edges, 1)) or not uses.is_plain(centres):
        return None
    return (distances, centres, scaled.args[1]) if uses.graph.values[centres].numel == num_gaussians else None


class _Planner:
    """Writes a graph again, with each plan before its first use."""

    def __init__(self, uses: DefUse) -> None:
        self._uses, self._values, self._ops = uses, list(uses.graph.values), list[Op]()
        self._storages = itertools.count(max(value.storage for value in self._values) + 1)
        self._plans: dict[tuple[Any, ...], int] = {}
        backward = [op for op in uses.graph.ops if op.target == BACKWARD]
        self._has_second = any(op.target == SECOND for op in uses.graph.ops)
        self._wanted = {ref(op.args[NUM_ARGUMENTS]): op.args[-1] for op in backward}  # by the filters that are read
        self._keeps_slopes = False

    def graph(self) -> OpGraph:
        ops = [self._narrowed(op) if op.target in (BACKWARD, SECOND) else op for op in self._uses.graph.ops]
        self._keeps_slopes = self._can_keep_slopes([op for op in ops if op.target in (FORWARD, BACKWARD, SECOND)])
        has_pairs = any(op.target == FORWARD and Call(*op.args).half_list for op in ops)
        for op in ops:
            if op.target in (FORWARD, BACKWARD, SECOND):
                self._add(op)
            elif op.target == PLAN and self._keeps_slopes and not has_pairs:
                self._ops.append(dataclasses.replace(op, args=(*op.args[:6], True)))
            else:
                self._ops.append(op)
        graph = dataclasses.replace(self._uses.graph, values=tuple(self._values))
        return with_ops(graph, self._ops, graph.outputs)

    def _add(self, op: Op) -> None:
        call: Any = Call(*op.args[:NUM_ARGUMENTS])
        rest = op.args[NUM_ARGUMENTS:]
        filters = op.makes()[1] if op.target == FORWARD else ref(rest[0])
        _, to_expansion, to_envelope, *_ = self._wanted.get(filters, (False,) * 4)
        gaussians = _gaussians(self._uses, ref(call.expansion)) if call.centres is None and not to_expansion else None
        if gaussians is not None:
            distances, centres, width = gaussians
            call = dataclasses.replace(call, expansion=Ref(distances), centres=Ref(centres), width=width)
        if call.plan is None:
            by_edge = (to_expansion or to_envelope or self._has_second) and not self._keeps_slopes
            twins = not (call.half_list or by_edge) and call.direction is None
            call = call.planned(Ref(self._plan(op, call, skips=not to_envelope, twins=twins)))
        stand_in = Call(*substitute(call.arguments, self._stand_in))
        kind = {"is_second": op.target == SECOND, "keeps_slopes": self._keeps_slopes}
        workspace = self._new(stand_in.workspace(torch.get_num_threads(), **kind))
        if op.target == FORWARD and self._keeps_slopes:
            rows, columns = stand_in.filters_shape
            shape, stride = (rows, 2 * columns), (2 * columns, 1)
            self._values[filters] = dataclasses.replace(self._values[filters], shape=shape, stride=stride)
        self._ops.append(dataclasses.replace(op, args=(*call.arguments, *rest), outputs=(*op.outputs, workspace)))

    def _can_keep_slopes(self, ops: Sequence[Op]) -> bool:
        """Whether filters may be kept next to their slopes: forces then need no layer, and edges share with twins.

        They are of Gaussians of distances, which something is differentiated by, but nothing twice.
        """
        calls: list[Any] = [Call(*op.args[:NUM_ARGUMENTS]) for op in ops]
        kept = {op.makes()[1] for op in ops if op.target == FORWARD}
        return (
            any(op.target == BACKWARD and any(op.args[-1][1:3]) for op in ops)
            and not any(op.target == SECOND and any(op.args[-1][2:4]) for op in ops)
            and all(call.centres is not None and call.direction is None for call in calls)
            and kept.isdisjoint(self._uses.returned)
        )

    def _narrowed(self, op: Op) -> Op:
        """A backward pass that makes only what is read: derivatives by positions go no further in training."""
        uses, made = self._uses, iter(op.outputs)
        kept = [next(made) if is_wanted else None for is_wanted in op.args[-1]]
        kept = [v if v in uses.users or v in uses.returned else None for v in kept]
        wanted = [v is not None for v in kept]
        return dataclasses.replace(op, args=(*op.args[:-1], wanted), outputs=tuple(v for v in kept if v is not None))

    def _plan(self, op: Op, call: Any, *, skips: bool, twins: bool) -> int:
        """The plan of the call's edges, made before its first use."""
        distances = None if call.centres is None else call.expansion
        num_sources = self._values[call.x.value].shape[0]
        args = call.src, call.dst, call.envelope if skips else None, distances, num_sources, call.num_nodes, twins
        if args not in self._plans:
            size = interaction_call.plan_size(self._values[call.src.value].shape[0], num_sources, call.num_nodes)
            self._plans[args] = self._new(torch.empty(size, dtype=torch.int32, device="meta"))
            self._ops.append(dataclasses.replace(op, target=PLAN, args=args, outputs=(self._plans[args],)))
        return self._plans[args]

    def _new(self, like: Tensor) -> int:
        value = Value(
            shape=tuple(like.shape),
            stride=like.stride(),
            offset=0,
            dtype=like.dtype,
            storage=next(self._storages),
            producer=None,
        )
        self._values.append(value)
        return len(self._values) - 1

    def _stand_in(self, v: int) -> Tensor:
        """A tensor of the value's shape, of which only the shape is read."""
        return torch.empty(1).expand(self._values[v].shape)


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
        limit = torch.get_num_threads()  # there is working memory for that many

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
register_prepared(SECOND, PreparedOp(prepare=_prepare("second", pack_second)))
