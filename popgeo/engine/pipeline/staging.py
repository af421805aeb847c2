"""The data structures of a staged step: stages, their order, and the part of each pass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from popgeo.capture.op_graph import Input, Op, OpGraph


class Pass(NamedTuple):
    """One pass of one micro-batch through one stage.

    Attributes:
        stage: Number of the stage; forward passes count up, backward passes count down.
        micro_batch: Number of the micro-batch, from 0 in each round.
        backward: Whether this is the backward pass.
    """

    stage: int
    micro_batch: int
    backward: bool


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """The choice to compute a forward pass again before the backward pass, instead of keeping its values.

    Attributes:
        layers: Dotted names of layers whose results are kept all the same. Default: none.
        last_stage: Whether the last stage also repeats the operations between its last kept result and the loss. Its
            backward pass follows at once, so they run twice in a row. Default: False.

    Example:
        >>> again = Recompute(layers=("layers.3",))
        >>> again.keeps("layers.3.linear"), again.keeps("layers.30")
        ('layers.3', '')
    """

    layers: tuple[str, ...] = ()
    last_stage: bool = False

    def keeps(self, module: str) -> str:
        """Return the layer in `layers` that contains a submodule; empty if no layer does."""
        return next((name for name in self.layers if f"{module}.".startswith(f"{name}.")), "")


@dataclass(frozen=True, kw_only=True)
class Staging:
    """The stages of a step and the order of their passes.

    A round is the micro-batches of one update, or of a whole call of a forward pass.

    Attributes:
        stage_of: The stage of each operation of the step with folded constants.
        order: All passes of a round; each comes after the passes whose values it needs.
        recompute: The activations to compute twice. Default: none; all values that a backward pass reads are kept.
        names: Descriptions of the stages, for messages. Default: none.
    """

    stage_of: tuple[int, ...]
    order: tuple[Pass, ...]
    recompute: Recompute | None = None
    names: tuple[str, ...] = ()

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of a round."""
        return max(one.micro_batch for one in self.order) + 1

    @property
    def one_at_a_time(self) -> bool:
        """Whether each micro-batch finishes before the next one starts."""
        started = [one.micro_batch for one in self.order]
        return started == sorted(started)

    def name(self, stage: int) -> str:
        """Return the number of a stage with its description."""
        return f"stage {stage}" + (f" ({self.names[stage]})" if stage < len(self.names) else "")


def phase_of(ops: Sequence[Op], writes_state: Callable[[Op], bool]) -> list[bool]:
    """Return for each operation whether it belongs to the backward pass.

    A captured step copies new values of buffers at its very end. These copies, and the operations that only they need,
    do not depend on a gradient. They belong to the forward pass, since the forward pass of the next micro-batch may run
    before this backward pass.

    Args:
        ops: The operations of a step.
        writes_state: Whether an operation changes a parameter or buffer.
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
    """A value that one part leaves for later parts of the same micro-batch.

    Attributes:
        value: Number of the value in the whole step; the owner of its memory, never a view.
        before: Whether this is a buffer with its state from before this micro-batch. Default: False.
    """

    value: int
    before: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class StagePart:
    """The operations of one pass of one stage.

    Attributes:
        stage: Number of the stage.
        backward: Whether this is the backward pass.
        graph: The operations. Inputs are parameters and buffers by name, then received values by number. Outputs are
            sent values, then gradients.
        receives: Values from other parts or from the call, in the order of the inputs.
        sends: Values for other parts.
        saves: Buffers to copy before the part changes them, since other parts need their previous state.
        gradients: Names of the parameters whose gradients the part finishes.
        draws: Operations of the whole step that draw random numbers in this part.
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
    """Return the value that owns a view's memory; the value itself if it is not a view."""
    while (producer := graph.values[v].producer) is not None and graph.is_view(graph.ops[producer]):
        storage = graph.values[v].storage
        v = next(w for w in graph.ops[producer].reads() if graph.values[w].storage == storage)
    return v
