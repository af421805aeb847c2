"""Runs a program step by step on the tile memories of one or several replicas."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from popgeo.ipu.tiles.program import Program, walk
from popgeo.ipu.tiles.steps import AllReduce, ComputeSet, Exchange, HostCopy, Repeat, Step
from popgeo.ipu.tiles.tile_memory import TileMemory

HostIn = Callable[[str, int], Tensor]
HostOut = Callable[[str, int, Tensor], None]


def run_program(program: Program, replicas: Sequence[TileMemory], host_in: HostIn, host_out: HostOut) -> None:
    """Run a program on all replicas together, step by step.

    Args:
        program: The program. Its lasting variables keep the content and must have the mapping of earlier programs.
        replicas: Memory of the tiles of each replica.
        host_in: Function that gives the next tensor of a stream to a replica, flat.
        host_out: Function that takes the next tensor of a stream from a replica, flat.

    Raises:
        ValueError: a vertex reads elements that its tile does not hold or never wrote, or writes to another tile.

    Example:
        >>> import numpy as np
        >>> from popgeo.ipu.tiles.tile_mapping import linear
        >>> from popgeo.ipu.tiles.steps import Variable
        >>> x = Variable(name="x", dtype=torch.float32, mapping=linear(4, num_tiles=2, grain=2))
        >>> steps = HostCopy(to_host=False, streams={"x": "in"}), HostCopy(to_host=True, streams={"x": "out"})
        >>> program = Program(num_tiles=2, variables={"x": x}, steps=steps)
        >>> given = lambda stream, replica: torch.arange(4.0)
        >>> run_program(program, [TileMemory()], given, lambda stream, replica, values: print(stream, values))
        out tensor([0., 1., 2., 3.])
    """
    for memory in replicas:
        memory.use(program)
    for step in program.steps:
        _run(step, replicas, host_in, host_out)


def _run(step: Step, replicas: Sequence[TileMemory], host_in: HostIn, host_out: HostOut) -> None:
    """Run one step on all replicas."""
    if isinstance(step, Repeat):
        names = _written(step)
        for _ in range(step.count):
            for memory in replicas:
                memory.forget(names)
            for inner in step.body:
                _run(inner, replicas, host_in, host_out)
    elif isinstance(step, HostCopy):
        for number, memory in enumerate(replicas):
            for name, stream in step.streams.items():
                if step.to_host:
                    host_out(stream, number, memory.read(name))
                else:
                    memory.write(name, host_in(stream, number))
    elif isinstance(step, AllReduce):
        for name in step.variables:
            total = torch.stack([memory.read(name) for memory in replicas]).sum(0)
            for memory in replicas:
                memory.write(name, total)
    else:
        for memory in replicas:
            if isinstance(step, Exchange):
                memory.exchange(step)
            elif isinstance(step, ComputeSet):
                memory.compute(step)


def _written(repeat: Repeat) -> set[str]:
    """Return the variables that a body writes; each pass finds them unwritten."""
    names: set[str] = set()
    for step in walk(repeat.body):
        if isinstance(step, HostCopy) and not step.to_host:
            names |= set(step.streams)
        elif isinstance(step, ComputeSet):
            names |= {region.variable for vertex in step.vertices for region in vertex.writes if region is not None}
    return names
