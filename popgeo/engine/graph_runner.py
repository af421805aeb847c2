"""Runs an `OpGraph` in memory that is allocated once; weights and buffers stay in the model's memory."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.control_flow import COND, FOR_LOOP
from popgeo.capture.expand import expand
from popgeo.capture.marks import layout_of, marks_of
from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Value
from popgeo.capture.operations import Out, operation_of
from popgeo.capture.passes import fold_constants, is_random, with_ops
from popgeo.capture.value_list import ValueList
from popgeo.engine.fuse.edge_rows import EDGE_ORDER, order_call
from popgeo.engine.fuse.join_chains import describe_joined, join_chains
from popgeo.engine.fuse.plan_interactions import describe_interactions, plan_interactions
from popgeo.engine.fuse.reassociate import reassociate
from popgeo.engine.fuse.sums_by_graph import sums_by_graph
from popgeo.engine.fuse.sums_in_order import sums_in_order
from popgeo.engine.memory_plan import is_planned, new_buffer, place_values, storage_bytes, view_of
from popgeo.engine.optimizer.joined_memory import copier
from popgeo.engine.program.bound_program import BoundProgram
from popgeo.engine.program.torch_call import OWN_CALLS, Call
from popgeo.engine.weights_first import weights_first
from popgeo.native import library


class GraphRunner:
    """A graph as a program on memory that is allocated once.

    Args:
        graph: The graph to run.
        state: Tensors of the graph's parameters and buffers; buffers change in place.
        places: Tensors to write certain outputs to, by position. Other outputs are valid until the next run.
        floating_point_exceptions: Whether to check each operation's result; operations are then not fused.
        weights_stay: Whether values that depend on weights alone are kept until a weight changes.
        joins: Whether operations may be fused, and then run in another order than the graph's.
        follows_inputs: Whether an input may be read where the caller has it, instead of copied.
        pauses: Whether an interrupt can stop a run; without this, it waits for the end.
        in_order: Whether sums over a batch are in the order of rows; see `sums_in_order`.
        is_padded: Whether the last node of a batch is padding, if sums are in order; see `sums_by_graph`.
        held: Addresses of the storages of tensors that the model holds, and that the user may change in place.
            Default: none.

    Attributes:
        graph: The given graph, with constants computed.
        runs: The graph that runs: the given one with fused operations.
        program: The calls that run.
        buffer_bytes: Memory that is allocated for values and inputs.
        copied_bytes: The most memory that torch allocates for results during a run.
        peak_bytes: `buffer_bytes` and `copied_bytes`.
        constant_bytes: Memory of constants, and of values and copies that are kept until a weight changes.
    """

    constant_bytes = 0
    copied_bytes: int
    _first: "GraphRunner | None" = None
    _weights_changed: Callable[[], bool]

    def __init__(
        self,
        graph: OpGraph,
        state: Mapping[Input, Tensor],
        places: Mapping[int, Tensor] | None = None,
        floating_point_exceptions: bool = False,
        weights_stay: bool = False,
        joins: bool = True,
        follows_inputs: bool = False,
        pauses: bool = True,
        in_order: bool = False,
        is_padded: bool = False,
        held: Set[int] = frozenset(),
    ) -> None:
        changeable = {v for v, tensor in graph.constants.items() if tensor.untyped_storage()._cdata in held}
        self.graph = fold_constants(graph, changeable)
        self.draws_random_numbers = any(is_random(op) for op in self.graph.ops)
        given = {v: state[one].detach() for one, v in graph.inputs.items() if one in state}
        keeps = weights_stay and not floating_point_exceptions and library.is_available()
        late = self._begin_with_weights(given, state, changeable) if keeps else self.graph
        fuses = joins and not floating_point_exceptions
        self.runs = late if fuses else expand(late)
        self.runs = sums_by_graph(sums_in_order(self.runs), places or (), is_padded) if in_order else self.runs
        self.runs = fuse(self.runs) if fuses else self.runs
        values = self.graph.values
        given |= {v: tensor.detach() for v, tensor in self.runs.constants.items()}
        new = [v for one, v in graph.inputs.items() if one not in state]
        self._inputs = [view_of(new_buffer(values[v].end), 0, values[v]) for v in new]
        given |= dict(zip(new, self._inputs, strict=True))
        self.runs = self._with_copies(self._place_outputs(places or {}, given), given)
        # The check reads the operands after the operation, so no result may overwrite them.
        tensors, buffer = place_values(self.runs, given, overwrites_operands=not floating_point_exceptions)
        self.buffer_bytes = sum(tensor.nbytes for tensor in (buffer, *self._inputs))
        check = _check if floating_point_exceptions else None
        self.program = BoundProgram(self.runs, tensors, new if follows_inputs else (), check, pauses)
        self._follows = self.program.follows or [False] * len(new)
        self._outputs = [None if v is None else tensors[v] for v in self.runs.outputs]
        self.copied_bytes = max(self.program.copied_bytes, 0 if self._first is None else self._first.copied_bytes)
        self.peak_bytes = self.buffer_bytes + self.copied_bytes
        self.constant_bytes += storage_bytes((*graph.constants.values(), *self.runs.constants.values()))
        # Torch records no gradients of these tensors, but it needs longer to find that out.
        self._around = torch._C._AutoDispatchBelowAutograd if self.program.in_torch else contextlib.nullcontext

    def run(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the graph's outputs for inputs in the graph's order; state is not among the inputs.

        An input that is None keeps its value of the last run.
        """
        with self._around():
            if self._first is not None and self._weights_changed():
                self._first.run(())
            for number, (place, tensor) in enumerate(zip(self._inputs, inputs, strict=True)):
                if tensor is None:
                    continue
                if self._follows[number]:
                    address = tensor.data_ptr()  # a tensor over the bytes of a file may begin at any byte
                    is_alike = type(tensor) is Tensor and tensor.is_contiguous() and not tensor.is_neg()
                    is_alike = is_alike and not address % tensor.itemsize
                    self.program.move(number, address if is_alike else place.data_ptr())
                    if is_alike:
                        continue
                place.copy_(tensor.detach())
            self.program.run()
        return list(self._outputs)

    def _begin_with_weights(
        self, given: Mapping[int, Tensor], state: Mapping[Input, Tensor], changeable: Set[int]
    ) -> OpGraph:
        """Compute the values that depend on weights alone, and return the rest of the graph."""
        split = weights_first(self.graph, given, changeable)
        if split is None:
            return self.graph
        first, rest, made = split
        self._first = GraphRunner(first, state, dict(enumerate(made)))
        weights = [given[v] for v in first.inputs.values()]
        self._weights_changed = copier(weights, [weight.detach().clone() for weight in weights])
        self.constant_bytes = storage_bytes(weights)
        if not is_planned():
            self._first.run(())
        return rest

    def describe(self) -> tuple[str, str]:
        """Return two texts: how many interactions use a grid of filters, and how many operations run in chains."""
        return describe_interactions(self.runs), describe_joined(self.runs)

    def listing(self) -> str:
        """Return a text: how many native calls a run has, and the operations that run in torch."""
        return self.program.describe()

    def set_numbers(self, values: Sequence[float]) -> None:
        """Set the values of the graph's `Number` arguments, by slot, for later runs."""
        self.program.set_numbers(values)

    def _place_outputs(self, places: Mapping[int, Tensor], given: dict[int, Tensor]) -> dict[int, Tensor]:
        """Add to `given` the places that operations can write outputs to; return the places that need a copy."""
        copied = {}
        live = {v for op in self.runs.ops for v in (*op.reads(), *op.makes())}
        views = Counter(self.runs.values[v].storage for v in live)
        for position, place in places.items():
            v = self.runs.outputs[position]
            if v is None:
                continue
            value = self.runs.values[v]
            alone = views[value.storage] == 1 and self.runs.outputs.count(v) == 1
            plain = value.producer is not None and not self.runs.ops[value.producer].writes
            form = place.stride(), place.dtype, marks_of(place)
            if alone and plain and (value.stride, value.dtype, value.marks) == form:
                given[v] = place
            else:
                copied[position] = place
        return copied

    def _with_copies(self, copied: Mapping[int, Tensor], given: dict[int, Tensor]) -> OpGraph:
        """Return the graph with copies of some outputs to their places, which are added to `given`."""
        graph = self.runs
        values, ops, outputs = ValueList(graph.values), list(graph.ops), list(graph.outputs)
        for position, place in copied.items():
            made, layout = outputs[position], {**layout_of(place), "offset": 0}
            assert made is not None
            outputs[position] = v = values.add(Value(**layout, storage=values.new_storage(), producer=None))
            given[v] = place
            ops.append(Op(target="aten._to_copy.default", args=(Ref(made),), outputs=(v,)))
        return with_ops(graph, ops, outputs, values=values) if copied else graph


def fuse(graph: OpGraph) -> OpGraph:
    """Return the graph with fused operations; without the compiled library, with composite operations expanded.

    The passes go from the largest pattern to the smallest, and a pass leaves fused operations of earlier passes alone.
    """
    if not library.is_available():
        return expand(graph)
    graph = plan_interactions(graph)  # working memory for each interaction
    graph = reassociate(graph)  # products in the cheaper order
    return join_chains(graph)  # element-wise operations as chains


def call_for_loop(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> Call:
    """Return a call that runs a loop."""
    count, carried, outside = op.args
    runner, own = _bound_body(op.bodies[0], [*carried, *outside], tensors)
    places = [tensors[v] for v in op.makes()]

    def run() -> None:
        made: Sequence[Any] = own
        for _ in range(count):
            made = runner.run(made)
        _copy(made, places)

    return run


def call_cond(graph: OpGraph, op: Op, tensors: Mapping[int, Tensor]) -> Call:
    """Return a call that runs one of two branches."""
    condition, *given = op.args
    bodies = [_bound_body(body, operands, tensors) for body, operands in zip(op.bodies, given, strict=True)]
    places = [tensors[v] for v in op.makes()]

    def run() -> None:
        runner, own = bodies[0 if bool(tensors[condition.value]) else 1]
        _copy(runner.run(own), places)

    return run


def _copy(made: Sequence[Any], places: Sequence[Tensor]) -> None:
    for place, tensor in zip(places, made, strict=True):
        place.copy_(tensor)


def _bound_body(
    graph: OpGraph, operands: Sequence[Ref], tensors: Mapping[int, Tensor]
) -> tuple[GraphRunner, list[Tensor]]:
    """Return the runner of a loop's or branch's body, and the operands to copy into it; it shares other operands."""
    given = dict(zip(graph.inputs, (tensors[ref.value] for ref in operands), strict=True))
    own = [one for one in given if one.name.startswith("given.")]
    return GraphRunner(graph, {one: given[one] for one in given if one not in own}), [given[one] for one in own]


OWN_CALLS |= {FOR_LOOP: call_for_loop, COND: call_cond, EDGE_ORDER: order_call}


def _check(op: Op, operands: Sequence[Tensor], results: Sequence[Tensor | None]) -> None:
    """Raise a FloatingPointError if finite operands gave NaN or infinity."""
    if operation_of(op.target).out is Out.NOTHING:
        return
    made = [tensor for tensor in results if tensor is not None]  # an unwanted gradient is None
    broken = [tensor for tensor in made if tensor.is_floating_point() and not tensor.isfinite().all()]
    numbers = [arg for arg in (*op.args, *op.kwargs.values()) if isinstance(arg, float)]
    from_finite = all(t.isfinite().all() for t in operands if t.is_floating_point() and not any(t is b for b in broken))
    if broken and from_finite and all(map(math.isfinite, numbers)):
        kind = "NaN" if broken[0].isnan().any() else "infinity"
        place = f"{op.source} (in submodule {op.module})" if op.module else op.source
        raise FloatingPointError(f"{op.target} in the {op.phase} pass gave {kind} from finite operands: {place}")
