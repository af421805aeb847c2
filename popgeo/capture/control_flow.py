"""Loops and branches as single operations, each with the graphs of its bodies."""

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
    """Call a body repeatedly, each time with the results of the previous call.

    In a captured step this is one operation. Its body is recorded once and is never joined with another loop.

    Args:
        count: Number of calls.
        body: Function that returns as many tensors as it takes, with the same shapes and types. It may change its
            arguments in place; the caller does not see that.
        inputs: Arguments of the first call.

    Returns:
        The results of the last call.

    Raises:
        ValueError: the count is negative, the body returns other shapes or types than it takes, or, in a captured
            step, it changes a tensor that is not its input, or a gradient has to pass the loop.

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
    graph, outside, results = _capture_body(recorder, "for_loop", body, inputs)
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
    """Call one of two bodies; a tensor decides at each run.

    Args:
        condition: True for the first body. [] or [1]
        then_body: Function of `then_inputs`. It may change its arguments in place; the caller does not see that.
        then_inputs: Tensors.
        else_body: Function of `else_inputs`; returns as many tensors as `then_body`, of the same shapes and types.
        else_inputs: Tensors.

    Returns:
        The results of the body.

    Raises:
        ValueError: the condition has several elements, the results of the bodies differ in number, shape or type, or,
            in a captured step, a body changes a tensor that is not its input, or a gradient has to pass the branch.

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
    bodies, outside, results = zip(*(_capture_body(recorder, "cond", *branch) for branch in branches), strict=True)
    _require_alike("cond", "returns in one branch", results[0], "returns in the other", results[1])
    given = [*then_inputs, *outside[0]], [*else_inputs, *outside[1]]
    recorder.add(COND, (condition.to(torch.bool), *given), results[0], bodies)
    return results[0]


def _capture_body(
    recorder: Recorder, caller: str, body: Callable[..., Any], inputs: Sequence[Tensor]
) -> tuple[OpGraph, list[Tensor], list[Tensor]]:
    """Return the graph of a body, the outside tensors that it uses, and stand-ins for its results."""
    with recorder.paused():
        own = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in inputs]
    with recorder.separate_graph():
        recorder.page.add_inputs({Input(Role.ARGUMENT, f"given.{n}"): tensor for n, tensor in enumerate(own)})
        made = _tensors(caller, body(*own))
        sources = [tensor for tensor in (*inputs, *made) if tensor.requires_grad]
        made = [tensor if recorder.page.is_fresh(tensor) else tensor.clone() for tensor in made]
        graph, seen = _graph_of_body(recorder.page, made)
    wholes = [tensor.as_strided((numel,), (1,), 0) if numel else tensor for tensor, numel in seen]
    with recorder.paused():
        results = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in made]
        results = [_RefusedGradient.apply(caller, result, *sources) for result in results] if sources else results
    return simplified(graph), wholes, results


class _RefusedGradient(torch.autograd.Function):
    """A result that raises an error when a gradient arrives at it."""

    @staticmethod
    def forward(ctx: Any, caller: str, result: Tensor, *sources: Tensor) -> Tensor:
        ctx.caller = caller
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise ValueError(
            f"poptorch.{ctx.caller}() is only supported in inference models, because gradients cannot pass through "
            "it. Write a Python loop, or torch.where, where a gradient is needed, or call it under torch.no_grad()."
        )


def _graph_of_body(page: Page, made: Sequence[Tensor]) -> tuple[OpGraph, list[tuple[Tensor, int]]]:
    """Return the recorded graph with one input per outside memory, and the tensors of these inputs.

    If the body uses several views of an outside memory, or a view with an offset, then the input is the whole memory,
    and the graph begins with its views. Each tensor comes with the number of elements of the whole memory, or 0.
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


def _tensors(caller: str, made: Any) -> list[Tensor]:
    """Return the results of a body as a list; raise if one is not a tensor."""
    tensors = list(made) if isinstance(made, list | tuple) else [made]
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise ValueError(f"The body of {caller} returned {type(tensor).__name__}; it must return tensors.")
    return tensors


def _require_alike(caller: str, first: str, some: Sequence[Tensor], second: str, others: Sequence[Tensor]) -> None:
    forms = [[(tuple(tensor.shape), tensor.dtype) for tensor in tensors] for tensors in (some, others)]
    if forms[0] != forms[1]:
        shown = [", ".join(map(shape_text, tensors)) for tensors in (some, others)]
        raise ValueError(f"The body of {caller} {first} {shown[0]}, but {second} {shown[1]}; the two must be the same.")
