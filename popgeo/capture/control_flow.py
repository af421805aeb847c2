"""Loops and branches as operations of the graph: their bodies are graphs of their own, written down once."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.op_graph import Input, Op, OpGraph, Ref, Role, shape_text
from popgeo.capture.page import Page
from popgeo.capture.passes import simplified, with_producers
from popgeo.capture.recorder import Recorder, active_recorder

FOR_LOOP, COND = "popgeo.for_loop.default", "popgeo.cond.default"
_AS_STRIDED = "aten.as_strided.default"


def for_loop(count: int, body: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Calls a body over and over, each time with what it returned before.

    In a captured step this is one operation, whose body is counted `count` times and never joined with another loop.

    Args:
        count: How often.
        body: Takes as many tensors as it returns, of the same shapes and types. What it changes in place is its own.
        inputs: What the first call is given.

    Returns:
        What the last call returns.

    Raises:
        ValueError: the count is negative, the body returns other shapes or types than it takes, or, in a captured
            step, it changes what is not its input, or a gradient would have to pass the loop.

    Example:
        >>> for_loop(3, lambda x: 2 * x, [torch.ones(2)])
        [tensor([8., 8.])]
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"for_loop got count {count!r}; it must be an integer of at least 0.")
    recorder = active_recorder()
    if recorder is None or count == 0:
        made = [tensor.clone() for tensor in inputs]
        for _ in range(count):
            made = _tensors("for_loop", body(*made))
            _require_alike("for_loop", "takes", inputs, "returns", made)
        return made
    graph, outside, results = _body(recorder, "for_loop", body, inputs)
    _require_alike("for_loop", "takes", inputs, "returns", results)
    recorder.add(FOR_LOOP, (count, list(inputs), outside), results, (graph,))
    return results


def cond(
    condition: Tensor,
    then_body: Callable[..., Any],
    then_inputs: Sequence[Tensor],
    else_body: Callable[..., Any],
    else_inputs: Sequence[Tensor],
) -> list[Tensor]:
    """Calls one of two bodies, as a tensor tells at each run.

    Args:
        condition: Whether it is the first. [] or [1]
        then_body: Takes `then_inputs`. What it changes in place is its own.
        then_inputs: Tensors.
        else_body: Takes `else_inputs`; returns as many tensors as the other, of the same shapes and types.
        else_inputs: Tensors.

    Raises:
        ValueError: the condition has several elements, the bodies return different things, or, in a captured step,
            one changes what is not its input, or a gradient would have to pass the branch.

    Example:
        >>> x = torch.tensor([-2.0])
        >>> cond(x.sum() > 0, lambda x: x, [x], lambda x: -x, [x])
        [tensor([2.])]
    """
    if condition.numel() != 1:
        raise ValueError(f"cond got a condition of shape {list(condition.shape)}; it must have a single element.")
    recorder = active_recorder()
    branches = (then_body, then_inputs), (else_body, else_inputs)
    if recorder is None:
        body, inputs = branches[0 if bool(condition) else 1]
        return _tensors("cond", body(*(tensor.clone() for tensor in inputs)))
    bodies, outside, results = zip(*(_body(recorder, "cond", *branch) for branch in branches), strict=True)
    _require_alike("cond", "returns in one branch", results[0], "returns in the other", results[1])
    given = [*then_inputs, *outside[0]], [*else_inputs, *outside[1]]
    recorder.add(COND, (condition.to(torch.bool), *given), results[0], bodies)
    return results[0]


def _body(
    recorder: Recorder, who: str, body: Callable[..., Any], inputs: Sequence[Tensor]
) -> tuple[OpGraph, list[Tensor], list[Tensor]]:
    """The graph of a body, the tensors from outside that it uses, and stand-ins for its results."""
    with recorder.paused():
        own = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in inputs]
    with recorder.apart():
        recorder.page.add_inputs({Input(Role.ARGUMENT, f"given.{n}"): tensor for n, tensor in enumerate(own)})
        made = _tensors(who, body(*own))
        sources = [tensor for tensor in (*inputs, *made) if tensor.requires_grad]
        made = [tensor if recorder.page.is_fresh(tensor) else tensor.clone() for tensor in made]
        graph, seen = _graph_of_body(recorder.page, made)
    wholes = [tensor.as_strided((numel,), (1,), 0) if numel else tensor for tensor, numel in seen]
    with recorder.paused():
        results = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in made]
        results = [_RefusedGradient.apply(who, result, *sources) for result in results] if sources else results
    return simplified(graph), wholes, results


class _RefusedGradient(torch.autograd.Function):
    """A result through which no gradient passes: one that would have to is refused when it arrives."""

    @staticmethod
    def forward(ctx: Any, who: str, result: Tensor, *sources: Tensor) -> Tensor:
        ctx.who = who
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise ValueError(
            f"poptorch.{ctx.who}() is only supported in inference models, because no gradient passes it. Write a "
            "Python loop, or torch.where, where a gradient is needed, or call it under torch.no_grad()."
        )


def _graph_of_body(page: Page, made: Sequence[Tensor]) -> tuple[OpGraph, list[tuple[Tensor, int]]]:
    """What was written down, with an input for each memory that it uses from outside, and those tensors.

    Memory that it looks at in several ways, or not from its start on, is given as a whole, and then looked at: such
    tensors stand with the elements of the whole.
    """
    outputs, outside = tuple(map(page.number, made)), dict(page.constants)
    values, inputs = list(page.values), dict(page.inputs)
    looks, tensors = list[Op](), list[tuple[Tensor, int]]()
    by_memory: dict[Any, list[int]] = {}
    for v in outside:
        by_memory.setdefault((values[v].storage, values[v].marks), []).append(v)
    for number, seen in enumerate(by_memory.values()):
        base, first = seen[0], values[seen[0]]
        tensor, numel = outside[base], 0
        if len(seen) > 1 or first.offset or not tensor.is_contiguous():
            numel = max(values[v].end for v in seen) // first.dtype.itemsize
            base = len(values)
            values.append(dataclasses.replace(first, shape=(numel,), stride=(1,), offset=0))
            for v in seen:
                args = (Ref(base), list(values[v].shape), list(values[v].stride), values[v].offset)
                looks.append(Op(target=_AS_STRIDED, args=args, outputs=(v,)))
        inputs[Input(Role.ARGUMENT, f"outside.{number}")] = base
        tensors.append((tensor, numel))
    ops = *looks, *page.ops
    made_by = with_producers(values, ops, {*inputs.values()})
    return OpGraph(ops=ops, values=made_by, inputs=inputs, outputs=outputs), tensors


def _tensors(who: str, made: Any) -> list[Tensor]:
    """What a body returns, as a list."""
    tensors = list(made) if isinstance(made, list | tuple) else [made]
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ValueError(f"The body of {who} returned {type(tensor).__name__}; it must return tensors.")
    return tensors


def _require_alike(who: str, what: str, some: Sequence[Tensor], does: str, others: Sequence[Tensor]) -> None:
    forms = [[(tuple(tensor.shape), tensor.dtype) for tensor in tensors] for tensors in (some, others)]
    if forms[0] != forms[1]:
        shown = [", ".join(map(shape_text, tensors)) for tensors in (some, others)]
        raise ValueError(f"The body of {who} {what} {shown[0]}, but {does} {shown[1]}; the two must be the same.")
