"""The program of tiles: steps in order, variables on tiles, and the program of a call with its inputs and results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.ipu.tiles.steps import Region, Repeat, Step, Variable


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """The steps of a program in order, and the variables that they read and write.

    Attributes:
        num_tiles: Number of tiles of the machine.
        variables: Variables by name.
        steps: Steps in order.
        constants: Content of variables before the first step, flat, by name.
        fallbacks: Operations without a lowering, which run on one tile.

    Example:
        >>> from popgeo.ipu.tiles.steps import HostCopy
        >>> from popgeo.ipu.tiles.tile_mapping import TileMapping
        >>> mapping = TileMapping(starts=np.array([0]), tiles=np.array([1]), numel=2)
        >>> program = Program(
        ...     num_tiles=2,
        ...     variables={"x": Variable(name="x", dtype=torch.float32, mapping=mapping)},
        ...     steps=(Repeat(count=3, name="steps", body=(HostCopy(to_host=False, streams={"x": "input:x"}),)),),
        ... )
        >>> print(program)
        repeat 3 (steps):
          host in: input:x
    """

    num_tiles: int
    variables: Mapping[str, Variable]
    steps: tuple[Step, ...]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line per step."""
        return "\n".join(map(str, self.steps))

    def walk(self) -> Iterator[Step]:
        """Yield every step once, in order; the body of a repeat follows the repeat."""
        return walk(self.steps)


def walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Yield every one of these steps once, in order; the body of a repeat follows the repeat."""
    for step in steps:
        yield step
        if isinstance(step, Repeat):
            yield from walk(step.body)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The weights and updates of a training step; empty for inference.

    Attributes:
        members: Names of the parameters of each joined weight tensor, in order.
        trained: Names of the parameters in the order of the step's gradients.
        updates: Update of each device iteration, in order.
        scaling: Graph that scales sums of gradients before each update. Default: no scaling.
    """

    members: Sequence[Sequence[str]] = ()
    trained: Sequence[str] = ()
    updates: Sequence[UpdateGraph] = ()
    scaling: OpGraph | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CallProgram:
    """The program of a call, with the places of its inputs and results for the host.

    Attributes:
        program: The program of the machine.
        places: The elements of each input of the step, in its shape, and of each tensor of the optimizer's state, in
            the order of memory.
        results: The stream of each result of the step, with the result's elements in it, in its shape.
    """

    program: Program
    places: Mapping[Input, Region]
    results: tuple[tuple[str, np.ndarray], ...]

    def arguments(self) -> dict[str, Region]:
        """Return the stream of each argument, in order, and its elements."""
        return {str(given): region for given, region in self.places.items() if given.role is Role.ARGUMENT}
