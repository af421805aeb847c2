"""Which operations draw random numbers, and what each micro-batch of a pipeline draws.

That is what it would draw if it went through all stages alone.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from popgeo.capture.marks import empty_like
from popgeo.capture.op_graph import Op, OpGraph, overload, substitute
from popgeo.capture.operations import Draws, operation_of
from popgeo.capture.passes import is_random
from popgeo.engine.pipeline.parts import StagePart


def draws(op: Op) -> bool:
    """Whether an operation draws random numbers.

    Example:
        >>> draws(Op(target="aten.bernoulli.default", args=(), outputs=()))
        True
    """
    return is_random(op) and (bool(op.bodies) or operation_of(op.target).draws is not Draws.NEVER)


def uncounted(op: Op) -> bool:
    """Whether it depends on data how many random numbers an operation draws.

    Example:
        >>> uncounted(Op(target="aten.poisson.default", args=(), outputs=()))
        True
    """
    return draws(op) and (bool(op.bodies) or operation_of(op.target).draws is not Draws.SHAPE)


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """Where random numbers are in a round.

    Attributes:
        before: The generator's state before each part that draws, by micro-batch, stage and direction.
        after: Its state after the round.
    """

    before: dict[tuple[int, int, bool], Tensor]
    after: Tensor


def draws_ahead(graph: OpGraph, parts: Sequence[StagePart], generator: torch.Generator, micro_batches: int) -> Ahead:
    """The state of a generator before each part of a round, as if one micro-batch came after the other.

    In a pipeline a stage takes the next micro-batch before the last stage has seen this one. The draws of a whole
    micro-batch are made once, and thrown away, to know where those of the next begin.
    """
    before = {}
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        for micro_batch in range(micro_batches):
            for part in parts:
                if part.draws:
                    before[micro_batch, part.stage, part.backward] = torch.get_rng_state()
                for index in part.draws:
                    _draw(graph, graph.ops[index])
        after = torch.get_rng_state()
    return Ahead(before=before, after=after)


@contextlib.contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Lets what draws from torch's own generator draw from another, which not every operation takes."""
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


def _draw(graph: OpGraph, op: Op) -> None:
    """Draws as an operation does, on zeros of the same shapes."""

    def nothing(v: int) -> Tensor:
        return empty_like(graph.values[v]).zero_()

    with torch.no_grad():
        overload(op.target)(*substitute(op.args, nothing), **substitute(op.kwargs, nothing))
