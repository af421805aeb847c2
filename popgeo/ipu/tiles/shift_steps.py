"""Steps made for the tiles of one IPU, moved to those of another in a larger machine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Region, Repeat, Step
from popgeo.ipu.tiles.tile_mapping import TileMapping


def shifted_mapping(mapping: TileMapping, tiles: int) -> TileMapping:
    """A mapping moved to the tiles of another IPU: each tile's number grows by `tiles`.

    Example:
        >>> import numpy as np
        >>> shifted_mapping(TileMapping(starts=np.array([0]), tiles=np.array([1]), numel=4), 8).tiles
        array([9])
    """
    return mapping if mapping.replicated else replace(mapping, tiles=mapping.tiles + tiles)


def shifted_steps(steps: Sequence[Step], renamed: Mapping[str, tuple[str, int]], tiles: int) -> list[Step]:
    """Steps moved to the tiles of another IPU: each tile's number grows by `tiles`.

    Args:
        steps: Without any for the host.
        renamed: For each of their variables that of the larger program, and where in it the former begins.
        tiles: How much larger the numbers of the tiles become.
    """

    def region(one: Region) -> Region:
        name, start = renamed[one.variable]
        return Region(variable=name, elements=one.elements + start if start else one.elements)

    moved: list[Step] = []
    for step in steps:
        if isinstance(step, ComputeSet):
            vertices = [
                replace(
                    vertex,
                    tile=vertex.tile + tiles,
                    reads=tuple(map(region, vertex.reads)),
                    writes=tuple(None if one is None else region(one) for one in vertex.writes),
                )
                for vertex in step.vertices
            ]
            moved.append(replace(step, vertices=tuple(vertices)))
        elif isinstance(step, Exchange):
            transfers = []
            for transfer in step.transfers:
                there = region(Region(variable=transfer.variable, elements=transfer.elements))
                source, destination = transfer.source + tiles, transfer.destination + tiles
                transfers.append(
                    replace(
                        transfer,
                        variable=there.variable,
                        elements=there.elements,
                        source=source,
                        destination=destination,
                    )
                )
            moved.append(replace(step, transfers=tuple(transfers)))
        elif isinstance(step, Repeat):
            moved.append(replace(step, body=tuple(shifted_steps(step.body, renamed, tiles))))
        else:
            moved.append(step)
    return moved
