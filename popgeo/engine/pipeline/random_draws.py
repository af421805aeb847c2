"""Which operations draw random numbers, and what each micro-batch of a pipeline draws.

That is what it would draw if it went through all stages alone.
"""

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
    """The states of a generator before each part, by micro-batch, stage and direction, and after a round."""

    before: dict[tuple[int, int, bool], Tensor]
    after: Tensor


def draws(op: Op) -> bool:
    """Whether an operation draws random numbers.

    Example:
        >>> draws(Op(target="aten.bernoulli.default", args=(), outputs=()))
        True
    """
    return is_random(op) and (bool(op.bodies) or operation_of(op.target).draws is not DrawCount.NEVER)


def uncounted(op: Op) -> bool:
    """Whether it depends on data how many random numbers an operation draws.

    Example:
        >>> uncounted(Op(target="aten.poisson.default", args=(), outputs=()))
        True
    """
    return draws(op) and (bool(op.bodies) or operation_of(op.target).draws is not DrawCount.SHAPE)


def draws_ahead(
    graph: OpGraph, parts: Sequence[StagePart], generator: torch.Generator, micro_batches: int
) -> DrawsAhead:
    """The states of a generator in a round, as if one micro-batch came after the other; the generator stays as it is.

    In a pipeline a stage takes the next micro-batch before the last stage has seen this one. The draws of a whole
    micro-batch are made once, and thrown away, to know where the numbers of the next one begin.
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
    """Runs what draws from torch's own generator, or lets it draw from another, which not every operation takes.

    Torch's own generator is left where eager code leaves it, also by what fails: `as_eager` then runs the same again in
    the order of eager code, up to the operation that fails.

    If it is another, torch's own is as before afterwards, also if this is interrupted: each of its moves is a single
    call, and Python looks for interrupts between calls. What fails draws the same numbers when it is run again.
    """
    own = torch.default_generator
    with ONE_AT_A_TIME:
        before = own.get_state()
        if generator is own:
            try:
                return run(*given)
            except Exception:
                if as_eager is not None:
                    _fail_again(as_eager, given, before)
                raise
        try:
            own.set_state(generator.get_state())
            made = run(*given)
            generator.set_state(own.get_state())
            return made
        finally:
            own.set_state(before)


def _fail_again(as_eager: Callable[..., object], given: Sequence[Any], before: Tensor) -> None:
    """Put torch's generator to where a run in the order of eager code fails; leave it if that run does not fail."""
    own = torch.default_generator
    after = own.get_state()
    own.set_state(before)
    with contextlib.suppress(Exception):
        as_eager(*given)
        own.set_state(after)
