"""What the machine runs: steps in order, on variables spread over tiles, and a call's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.ipu.tiles.steps import Region, Repeat, Step, Variable


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """Steps in order, and the variables that they read and write.

    Attributes:
        num_tiles: Tiles that it is made for.
        variables: By name.
        steps: In order.
        constants: What variables hold before the first step, flat, by name.
        fallbacks: Operations that no lowering knows; they run on one tile.

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
        return "\n".join(map(str, self.steps))

    def walk(self) -> Iterator[Step]:
        """Every step once, in order; bodies of repeats after the repeat itself."""
        return walk(self.steps)


def walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Every one of these steps once, in order; bodies of repeats after the repeat itself."""
    for step in steps:
        yield step
        if isinstance(step, Repeat):
            yield from walk(step.body)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What happens to gradients.

    Attributes:
        members: For each joined weight tensor the names of its parameters, in order.
        trained: Names of the parameters in the order of the step's gradients.
        updates: The update of each device iteration, in order.
        scaling: Applied to sums of gradients before each update; None leaves them.
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
