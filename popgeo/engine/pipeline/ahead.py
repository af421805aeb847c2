"""Random numbers of a pipeline: each micro-batch draws what it would draw if it went through all stages alone."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph, overload, substitute
from popgeo.engine.pipeline.parts import StagePart


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
    with drawing_from(_copy(generator)):
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


def _copy(generator: torch.Generator) -> torch.Generator:
    copied = torch.Generator()
    copied.set_state(generator.get_state())
    return copied


def _draw(graph: OpGraph, op: Op) -> None:
    """Draws as an operation does, on zeros of the same shapes."""

    def nothing(v: int) -> Tensor:
        value = graph.values[v]
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype).zero_()

    with torch.no_grad():
        overload(op.target)(*substitute(op.args, nothing), **substitute(op.kwargs, nothing))
