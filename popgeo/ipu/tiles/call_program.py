"""The program of one call of a compiled model, and what it is told of training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import Region


@dataclass(frozen=True, kw_only=True)
class Training:
    """What happens to gradients.

    Attributes:
        members: For each joined weight tensor the names of its parameters, in order.
        trained: Names of the parameters in the order of the step's gradients.
        updates: The update of each device iteration, in order.
        scaling: What is done to sums of gradients before each update; None leaves them.
    """

    members: Sequence[Sequence[str]]
    trained: Sequence[str]
    updates: Sequence[UpdateGraph]
    scaling: OpGraph | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CallProgram:
    """The program of a call, and where the host finds what it gives to it and takes from it.

    Attributes:
        program: What the machine runs.
        places: The elements of each input of the step, in its shape, and of each piece of the optimizer's state, in the
            order in which they lie in memory.
        results: The stream of each of the step's results, and which of the stream's elements it is, in its shape.
    """

    program: Program
    places: Mapping[Input, Region]
    results: tuple[tuple[str, np.ndarray], ...]

    def arguments(self) -> dict[str, Region]:
        """The stream of each argument, in order, and its elements."""
        return {str(given): region for given, region in self.places.items() if given.role is Role.ARGUMENT}
