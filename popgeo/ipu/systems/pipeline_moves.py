"""Which layer to move to another stage so that the slowest one is faster, tried by planning it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from popgeo.ipu.systems.pipeline_figures import PipelineFigures


@dataclass(frozen=True, kw_only=True)
class Move:
    """A layer moved.

    Attributes:
        words: Which layer to which stage.
        stages: The cut after it, as `ipu.pipeline` takes it: which layers begin a stage on which IPU.
        plan: The plan of that cut.
    """

    words: str
    stages: dict[str, int]
    plan: PipelineFigures


def best_move(plan: PipelineFigures, slowest: int) -> Move | None:
    """The move of one layer off a stage after which the step is shortest; None where there is none that fits.

    A layer goes to a stage beside it. Where that is as long already, it hands a layer of its own on, and so forth, up
    to the stage that works least.
    """
    moves = []
    for words, layers in _moves(plan, slowest):
        begins = {names[0]: plan.stages[number].ipu for number, names in enumerate(layers)}
        every = [name for names in layers for name in names]
        if all(every.count(name) == 1 for name in begins):  # else a name would begin two stages
            other = plan.replan(stages=begins)
            if other.fits or not plan.fits:
                moves.append(Move(words=words, stages=begins, plan=other))
    return min(moves, key=lambda move: move.plan.cycles, default=None)


def _moves(plan: PipelineFigures, slowest: int) -> Iterator[tuple[str, list[list[str]]]]:
    """Where one layer of a stage may go, in words, and the layers of all stages then."""
    if len(plan.layers[slowest]) < 2:
        return
    work = [stage.forward_pass + stage.backward_pass for stage in plan.stages]
    sizes = [len(names) for names in plan.layers]
    every = [name for names in plan.layers for name in names]
    before = list(range(slowest))
    after = list(range(slowest + 1, len(work)))
    for side in (before, after):
        if not side:
            continue
        beside = slowest - 1 if side is before else slowest + 1
        lightest = min(side, key=work.__getitem__)
        for to in dict.fromkeys((beside, lightest)):
            changed = list(sizes)
            changed[slowest] -= 1
            changed[to] += 1
            layer = plan.layers[slowest][0 if side is before else -1]
            words = f"{layer} to stage {beside}"
            if to != beside:
                words += f", and one layer of each on to stage {to}"
            yield words, _dealt(every, changed)


def _dealt(names: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
    ends = list(accumulate(sizes))
    return [list(names[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
