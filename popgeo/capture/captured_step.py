"""What compiling leaves: all that is needed to run a step, and to keep it for the next start."""

from dataclasses import dataclass, replace
from functools import cached_property

from popgeo.capture.expand import expand
from popgeo.capture.op_graph import Input, OpGraph
from popgeo.capture.pytree import Structure


@dataclass(frozen=True, kw_only=True)
class CapturedStep:
    """A captured step, before or after the passes.

    Attributes:
        graph: Forward and, when training, backward; returns the model's tensors, then the arguments that the model
            changes in place, then a gradient per trained parameter.
        result: How the model's tensors nest.
        written: The arguments that the model changes in place.
        trained: Names of the parameters that have a gradient, in the order of the gradients.
        row_indices: Inputs of the graph that it takes for row numbers, which must not be negative.
        captured_ops: How many operations the model asked for.
        files: Source files that took part in the capture.
        loss: Which of the returned tensors is the loss, where a step was captured for training and returns it.
        reads: The attributes of submodules, by path and name, that the capture looked at; None if unknown.
    """

    graph: OpGraph
    result: Structure
    trained: tuple[str, ...]
    captured_ops: int
    row_indices: frozenset[Input] = frozenset()
    written: tuple[Input, ...] = ()
    files: frozenset[str] = frozenset()
    loss: int | None = None
    reads: frozenset[tuple[str, str]] | None = None

    @cached_property
    def expanded(self) -> "CapturedStep":
        """The same step without operations that represent several; what a machine without them runs."""
        graph = expand(self.graph)
        return self if graph is self.graph else replace(self, graph=graph)

    @property
    def num_results(self) -> int:
        """Tensors that the host receives: those that the model returns, and the arguments that it changes in place."""
        return len(self.graph.outputs) - len(self.trained)

    @property
    def num_returned(self) -> int:
        """Tensors that the model returns."""
        return self.num_results - len(self.written)
