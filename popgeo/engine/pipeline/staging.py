"""How a step is cut into stages and in which order they run, and the parts: what one pass of one stage runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from popgeo.capture.op_graph import Input, Op, OpGraph


class Pass(NamedTuple):
    """One pass of one micro-batch through one stage.

    Attributes:
        stage: Its number; forward passes go up, backward passes go down.
        micro_batch: Counted from 0 in each round.
        backward: Whether it is the backward pass.
    """

    stage: int
    micro_batch: int
    backward: bool


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """What of a forward pass is worked out again before the backward pass, instead of being kept until then.

    Attributes:
        layers: Dotted names of layers whose results are kept all the same.
        last_stage: Whether the last stage repeats what lies between the last result that is kept and the loss, too. Its
            backward pass follows at once, so that would run twice in a row.

    Example:
        >>> again = Recompute(layers=("layers.3",))
        >>> again.keeps("layers.3.linear"), again.keeps("layers.30")
        ('layers.3', '')
    """

    layers: tuple[str, ...] = ()
    last_stage: bool = False

    def keeps(self, module: str) -> str:
        """The named layer that a submodule belongs to; empty if it belongs to none."""
        return next((name for name in self.layers if f"{module}.".startswith(f"{name}.")), "")


@dataclass(frozen=True, kw_only=True)
class Staging:
    """How a step runs in stages.

    A round is as many micro-batches as share an update, or all of a call if nothing is trained.

    Attributes:
        stage_of: The stage of each operation of the step, once constants are folded.
        order: Every pass of a round. None comes before one that it needs something of.
        recompute: The activations to compute twice; None keeps all that a backward pass reads.
        names: What each stage is, for messages.
    """

    stage_of: tuple[int, ...]
    order: tuple[Pass, ...]
    recompute: Recompute | None = None
    names: tuple[str, ...] = ()

    @property
    def micro_batches(self) -> int:
        """How many take part in a round."""
        return max(one.micro_batch for one in self.order) + 1

    @property
    def one_at_a_time(self) -> bool:
        """Whether each micro-batch is through before the next one starts."""
        started = [one.micro_batch for one in self.order]
        return started == sorted(started)

    def name(self, stage: int) -> str:
        """A stage in words."""
        return f"stage {stage}" + (f" ({self.names[stage]})" if stage < len(self.names) else "")


def phase_of(ops: Sequence[Op], writes_state: Callable[[Op], bool]) -> list[bool]:
    """Whether each operation belongs to the backward pass.

    What a model puts in the place of a buffer is copied there after everything else. Nothing of that depends on a
    gradient, so it belongs to the forward pass: the next micro-batch's may come before this one's backward pass.
    """
    differentiates: set[int] = set()
    maker = {v: index for index, op in enumerate(ops) for v in op.makes() if v not in op.reads()}
    backward = [op.phase == "backward" for op in ops]
    for op in ops:
        is_seed = op.target == "aten.full_like.default"
        if op.phase == "backward" and (is_seed or any(v in differentiates for v in op.reads())):
            differentiates |= {*op.makes(), *op.writes}
    waiting = [index for index, op in enumerate(ops) if backward[index] and writes_state(op)]
    while waiting:
        index = waiting.pop()
        if backward[index] and not differentiates & {*ops[index].makes(), *ops[index].writes}:
            backward[index] = False
            waiting += [maker[v] for v in ops[index].reads() if v in maker]
    return backward


@dataclass(frozen=True)
class StashedValue:
    """Something that one part leaves for later parts of the same micro-batch.

    Attributes:
        value: Its number in the whole step; what owns its memory, never a view.
        before: Whether it is a buffer as it was before this micro-batch changed it.
    """

    value: int
    before: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class StagePart:
    """The operations of one pass of one stage.

    Attributes:
        stage: The stage.
        backward: Whether it is the backward pass.
        graph: Its inputs are parameters and buffers by name, then what it receives, by number; it returns what it
            sends, then the gradients.
        receives: What other parts, or the call, have left for it, in the order of the inputs.
        sends: What it leaves for others.
        saves: Buffers that it changes and that others need as they were: copied before it runs.
        gradients: Names of the parameters whose gradients it finishes.
        draws: Its operations in the whole step that draw random numbers.
    """

    stage: int
    backward: bool
    graph: OpGraph
    receives: tuple[StashedValue, ...]
    sends: tuple[int, ...]
    saves: Mapping[StashedValue, Input]
    gradients: tuple[str, ...]
    draws: tuple[int, ...]


def owner_of(graph: OpGraph, v: int) -> int:
    """The value whose memory a value looks at; itself, if it is not a view."""
    while (producer := graph.values[v].producer) is not None and graph.is_view(graph.ops[producer]):
        storage = graph.values[v].storage
        v = next(w for w in graph.ops[producer].reads() if graph.values[w].storage == storage)
    return v
