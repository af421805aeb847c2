"""The result of a capture: the data needed to run a step, or to store it for the next start."""

from dataclasses import dataclass, replace
from functools import cached_property

from popgeo.capture.expand import expand
from popgeo.capture.op_graph import Input, OpGraph
from popgeo.capture.pytree import Structure


@dataclass(frozen=True, kw_only=True)
class CapturedStep:
    """A captured step, before or after the passes.

    Attributes:
        graph: Forward and, when training, backward pass. It returns the model's tensors, then the arguments that the
            model changes in place, then one gradient per trained parameter.
        result: Nesting of the model's tensors.
        trained: Names of the parameters that have a gradient, in the order of the gradients.
        captured_ops: Number of operations before the passes.
        row_indices: Inputs that the graph uses as row numbers, which must not be negative.
        written: Arguments that the model changes in place.
        files: Source files that took part in the capture.
        loss: Position of the loss among the returned tensors; None if the model returns no loss or is not trained.
        reads: Path of each submodule and name of its attribute that the capture read; None if unknown.
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
        """The same step with decompositions in place of popgeo's own operations, for machines that lack them."""
        graph = expand(self.graph)
        return self if graph is self.graph else replace(self, graph=graph)

    @property
    def num_results(self) -> int:
        """Number of tensors that the host receives: results of the model, and arguments that it changes in place."""
        return len(self.graph.outputs) - len(self.trained)

    @property
    def num_returned(self) -> int:
        """Number of tensors that the model returns."""
        return self.num_results - len(self.written)
