"""Gives each micro-batch of a pipeline the random numbers that it would draw if micro-batches ran one by one."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from popgeo.capture.held_state import ONE_AT_A_TIME
from popgeo.capture.marks import empty_like
from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import DrawCount, operation_of
from popgeo.capture.passes import is_random, run_op
from popgeo.engine.pipeline.staging import StagePart

T = TypeVar("T")


class DrawsAhead(NamedTuple):
    """The states of a generator before each part of a round, by (micro-batch, stage, backward), and after it."""

    before: dict[tuple[int, int, bool], Tensor]
    after: Tensor


def draws(op: Op) -> bool:
    """Return whether an operation draws random numbers.

    Example:
        >>> draws(Op(target="aten.bernoulli.default", args=(), outputs=()))
        True
    """
    return is_random(op) and (bool(op.bodies) or operation_of(op.target).draws is not DrawCount.NEVER)


def uncounted(op: Op) -> bool:
    """Return whether the number of random numbers that an operation draws depends on data.

    Example:
        >>> uncounted(Op(target="aten.poisson.default", args=(), outputs=()))
        True
    """
    return draws(op) and (bool(op.bodies) or operation_of(op.target).draws is not DrawCount.SHAPE)


def draws_ahead(
    graph: OpGraph, parts: Sequence[StagePart], generator: torch.Generator, micro_batches: int
) -> DrawsAhead:
    """Return the states of a generator in a round of micro-batches that run one by one.

    In a pipeline, the first stage starts the next micro-batch before the last stage has run this one. So this draws the
    numbers of whole micro-batches once and discards them, to find the state at which each part starts. The given
    generator stays unchanged.
    """
    before = {}

    def draw_all() -> None:
        for micro_batch in range(micro_batches):
            for part in parts:
                before[micro_batch, part.stage, part.backward] = torch.get_rng_state()
                for op in (graph.ops[index] for index in part.draws):
                    run_op(op, {v: empty_like(graph.values[v]).zero_() for v in op.reads()})

    ahead = torch.Generator()
    ahead.set_state(generator.get_state())
    with torch.no_grad():
        drawing_from(ahead, draw_all)
    return DrawsAhead(before, ahead.get_state())


def drawing_from(
    generator: torch.Generator, run: Callable[..., T], *given: Any, as_eager: Callable[..., object] | None = None
) -> T:
    """Call a function with torch's own generator set to the state of another generator during the call.

    Not every operation takes a generator, so the state is exchanged around the call. Afterwards torch's own generator
    has its previous state, even after an interrupt, since each exchange is a single call and Python handles interrupts
    between calls. A call that fails leaves the given generator unchanged, so a second call draws the same numbers.

    If the given generator is torch's own, it ends in the state that eager code leaves, even after an error: `as_eager`
    then runs the same operations in the order of eager code, up to the operation that fails.

    Args:
        generator: The generator to draw from.
        run: The function to call.
        given: Its arguments.
        as_eager: A function that runs the same in the order of eager code. Default: none.
    """
    own = torch.default_generator
    with ONE_AT_A_TIME:
        before = own.get_state()
        if generator is own:
            try:
                return run(*given)
            except Exception:
                if as_eager is not None:
                    after = own.get_state()
                    own.set_state(before)
                    with contextlib.suppress(Exception):  # at the error, the generator has eager code's state
                        as_eager(*given)
                        own.set_state(after)
                raise
        try:
            own.set_state(generator.get_state())
            made = run(*given)
            generator.set_state(own.get_state())
            return made
        finally:
            own.set_state(before)
