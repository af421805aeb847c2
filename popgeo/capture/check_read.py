"""Makes sure that a graph can run, and that a step out of a file is one that a capture could have written."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.control_flow import COND, FOR_LOOP
from popgeo.capture.marks import layout_of, marked
from popgeo.capture.op_graph import LOSS_SCALE, Input, Op, OpGraph, Ref, Role, Value, substitute
from popgeo.capture.pytree import Leaf
from popgeo.capture.safe_operations import require_fitting, require_forward, require_types, safe_operation
from popgeo.capture.schemas import written_by
from popgeo.capture.structures import leaves

_META = torch.device("meta")
_ROOM = 2**60  # bytes of a memory that is only thought of; where a view ends is checked by `check_graph`

SearchKind = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype, tuple[bool, bool]]
# Results, each the number of an operand or a form with the number of the memory it looks at; and what is changed.
Made = tuple[tuple[Any, ...], frozenset[int]]


def check_graph(graph: OpGraph) -> None:
    """Makes sure that a graph, and the bodies of its loops and branches, can run as they stand.

    Each value has one shape and one maker, which runs before all that read it; an operation changes only what it
    takes; and what looks at the memory of another value stays within it.

    Raises:
        ValueError: it breaks one of these rules; the message names the operation and the value.
    """
    values = graph.values
    known = set[int]()  # the values that are there so far
    ends = dict[int, int]()  # bytes of the memory that inputs, constants and results own, by storage
    for v, value in enumerate(values):
        if len(value.shape) != len(value.stride) or min((*value.shape, *value.stride, value.offset, 0)) < 0:
            _refuse("the graph", v, f"has shape {value.shape}, stride {value.stride}, offset {value.offset}")
    given: list[tuple[Input | str, int]] = [*graph.inputs.items(), *(("a constant", v) for v in graph.constants)]
    for who, v in given:
        if v in known or not 0 <= v < len(values):
            _refuse(who, v, "is not a value, or given twice")
        if values[v].producer is not None:
            _refuse(who, v, "is also made by an operation")
        ends[values[v].storage] = max(values[v].end, ends.get(values[v].storage, 0))
        known.add(v)
    for v, tensor in graph.constants.items():
        if (tuple(tensor.shape), tensor.dtype) != (values[v].shape, values[v].dtype):
            _refuse("a constant", v, f"is given a tensor of {tensor.dtype} {list(tensor.shape)}")
    for index, op in enumerate(graph.ops):
        _take_op(values, index, op, known, ends)
    for result in {*graph.outputs} - known - {None}:
        _refuse("the results", result, "is made by nothing")
    for v in {v for v, value in enumerate(values) if value.producer is not None} - known:
        _refuse("the graph", v, f"is not made by operation {values[v].producer}")


def _take_op(values: Sequence[Value], index: int, op: Op, known: set[int], ends: dict[int, int]) -> None:
    """Checks one operation, given what is known when it runs, and adds what it makes."""
    who, reads = f"operation {index} ({op.target})", {*op.reads()}
    for body in op.bodies:
        check_graph(body)
    for v in reads - known:
        _refuse(who, v, "is read before it is made")
    for v in {*op.writes} - reads:
        _refuse(who, v, "is changed without being taken")
    seen, fresh = {values[v].storage for v in reads}, set[int]()
    for v in op.makes():
        if v in reads:  # what it changes, it may also return
            continue
        if v in known or not 0 <= v < len(values):
            _refuse(who, v, "is not a value, or made twice")
        value = values[v]
        if value.producer != index:
            _refuse(who, v, f"names operation {value.producer} as its producer")
        known.add(v)
        if value.storage not in seen:
            if value.storage in ends and value.storage not in fresh:
                _refuse(who, v, "lies in memory that is not read")
            fresh.add(value.storage)
            ends[value.storage] = max(value.end, ends.get(value.storage, 0))
        elif value.end > ends[value.storage]:
            _refuse(who, v, f"goes beyond the {ends[value.storage]} bytes there")


def _refuse(who: Input | str, v: int | None, broken: str) -> NoReturn:
    raise ValueError(f"The graph cannot run: in {who}, %{v} {broken}.")


def require_operations(graph: OpGraph) -> None:
    """Makes sure that each operation is an allowed one, takes what its schema says, and makes what the graph says.

    Torch works out the shapes on tensors without memory: nothing is computed.

    Raises:
        ValueError: one is not, the graph cannot run as it stands, or its memory is not what the operations look at.
    """
    check_graph(graph)
    require_forward(graph)
    _require(not any(any(value.marks) for value in graph.values), "conjugates and negatives are not written down")
    known: dict[Any, Made] = {}  # layers of a model ask alike
    for op in graph.ops:
        if op.target in (FOR_LOOP, COND):
            _require_bodies(graph, op)
        else:
            _require_op(graph.values, op, known)


def require_fit(
    step: CapturedStep, state: Mapping[Input, Tensor], arguments: Mapping[Input, Leaf], trained: Sequence[str]
) -> None:
    """Makes sure that a step takes these weights and arguments, trains these weights and returns what it says.

    Raises:
        ValueError: it does not fit; the message names the difference.
    """
    values, inputs = step.graph.values, step.graph.inputs
    known = {one: (tuple(tensor.shape), tensor.stride(), tensor.dtype) for one, tensor in state.items()}
    for one, leaf in arguments.items():
        known[one] = leaf.shape, torch.empty(leaf.shape, device=_META).stride(), leaf.dtype
    if LOSS_SCALE in inputs:
        known[LOSS_SCALE] = (), (), torch.float32
    wanted = {one: (values[v].shape, values[v].stride, values[v].dtype) for one, v in inputs.items()}
    for one in (*wanted, *known):
        _require(known.get(one) == wanted.get(one), f"{one} is {known.get(one)} here, {wanted.get(one)} in the file")
    foreign = {*step.written, *step.row_indices} - {*arguments}
    _require(not foreign, "it changes, or indexes with, a tensor that is not an argument")
    _require({*step.trained} <= {*trained} and len({*step.trained}) == len(step.trained), "it trains other weights")
    made = [(leaf.shape, leaf.dtype) for _, leaf in leaves(step.result)]
    made += [known[one][::2] for one in (*step.written, *(Input(Role.PARAMETER, name) for name in step.trained))]
    outputs = [None if v is None else (values[v].shape, values[v].dtype) for v in step.graph.outputs]
    _require(outputs == made and type(step.captured_ops) is int, "its results are not the results of its operations")


def _require_op(values: Sequence[Value], op: Op, known: dict[Any, Made]) -> None:
    """Compares what an operation makes and changes with what torch says."""
    reads = list(dict.fromkeys(op.reads()))
    memory = list(dict.fromkeys(values[v].storage for v in reads))
    args, kwargs = (substitute(part, lambda v: Ref(reads.index(v))) for part in (op.args, dict(op.kwargs)))
    forms = tuple((values[v].layout, memory.index(values[v].storage)) for v in reads)
    ends = [max(values[v].end for v in reads if values[v].storage == storage) for storage in memory]

    def is_so(made: tuple[Any, ...]) -> bool:
        return len(made) == len(op.outputs) and all(map(is_one, op.outputs, made))

    def is_one(v: int | None, made: Any) -> bool:
        if v is None or v in reads or not isinstance(made, tuple):
            return v is None or (v in reads and reads.index(v) == made)
        form, place = made
        own = values[v].storage not in memory  # as views of constants are, which a capture takes for new memory
        within = own and (place is None or values[v].end <= ends[place])
        return form == values[v].layout and (within or (not own and memory.index(values[v].storage) == place))

    asked = op.target, repr(args), repr(kwargs), forms
    if asked not in known:
        known[asked] = _made_by_torch(op.target, args, kwargs, forms, on=_META)
        if not is_so(known[asked][0]):  # some shapes on a processor differ from those without memory
            known[asked] = _made_by_torch(op.target, args, kwargs, forms, on=torch.device("cpu"))
    made, written = known[asked]
    _require(is_so(made), f"{op.target} makes {made}")
    _require({reads[position] for position in written} == {*op.writes}, f"{op.target} changes other values")
    fresh = [values[v].storage for v in op.makes() if v not in reads and values[v].storage not in memory]
    _require(len({*fresh}) == len(fresh), f"the results of {op.target} lie in one memory")


def _made_by_torch(
    target: str, args: Any, kwargs: Any, forms: tuple[tuple[SearchKind, int], ...], on: torch.device
) -> Made:
    """What torch says that an operation makes of operands of these forms, each in one of several memories."""
    func = safe_operation(target)
    require_types(func, args, kwargs, Ref)
    takes_device = any(argument.name == "device" for argument in func._schema.arguments)
    try:
        mode = contextlib.nullcontext() if on is _META else FakeTensorMode()
        with mode, torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            memory = {place: torch.empty(_ROOM, dtype=torch.uint8, device=on) for _, place in forms}
            tensors = [
                marked(memory[place].view(dtype).as_strided(shape, stride, offset), marks)
                for (shape, stride, offset, dtype, marks), place in forms
            ]
            given, named = (substitute(part, tensors.__getitem__) for part in (args, kwargs))
            _require(named.get("device") in (None, torch.device("cpu")), "no file says where else a result lies")
            require_fitting(func, given, named)
            if "index_put" in target:
                _require_fitting_values(*given[:3])
            made = func(*given, **(named | {"device": on} if takes_device else named))
        written = written_by(func, given, named)
    except Exception as error:  # torch has as many kinds of errors as operations
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{target} does not take what the file gives it: {reason:.200}") from error
    where = {tensor.untyped_storage()._cdata: place for (_, place), tensor in zip(forms, tensors, strict=True)}
    kept = [form for form, _ in forms] == [*map(_form_of, tensors)] and len({*where.values()}) == len(where)
    _require(kept, f"{target} gives an operand another shape or memory")
    same = {id(tensor): position for position, tensor in enumerate(tensors)}
    results = tuple(
        None if tensor is None else same.get(id(tensor), (_form_of(tensor), where.get(tensor.untyped_storage()._cdata)))
        for tensor in (made if isinstance(made, list | tuple) else () if made is None else [made])
    )
    return results, frozenset(same[id(tensor)] for tensor in written)


def _require_fitting_values(x: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> None:
    """What torch makes sure of when it runs only: that values have the shape of the places that indices name."""
    if all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in indices):
        values.broadcast_to(x[tuple(slice(None) if index is None else index for index in indices)].shape)


def _form_of(tensor: Tensor) -> SearchKind:
    return Value(storage=0, producer=None, **layout_of(tensor)).layout


def _require_bodies(graph: OpGraph, op: Op) -> None:
    """Makes sure that a loop, or the branches of a condition, take and make what represents them outside."""
    first, *given = op.args
    if op.target == FOR_LOOP:
        fits, given = type(first) is int and first > 0 and len(given) == 2, [[ref for part in given for ref in part]]
    else:
        fits = isinstance(first, Ref) and graph.values[first.value].numel == 1
    _require(fits and not op.kwargs and not op.writes, f"{op.target} takes something else")
    for body, operands in zip(op.bodies, given, strict=True):
        require_operations(body)
        for (one, v), operand in zip(body.inputs.items(), operands, strict=True):
            inside, outside = body.values[v], graph.values[operand.value]
            own = one.name.startswith("given.") or inside.stride == outside.stride
            _require(own and _shape(inside) == _shape(outside), f"{op.target} gives its body another shape for {one}")
        both = (body, body.outputs), (graph, op.outputs)
        made = [[v is None or _shape(one.values[v]) for v in numbers] for one, numbers in both]
        _require(made[0] == made[1], f"{op.target} makes what its body does not")


def _shape(value: Value) -> tuple[Any, ...]:
    return value.shape, value.dtype


def _require(holds: object, broken: str) -> None:
    if not holds:
        raise ValueError(broken)
