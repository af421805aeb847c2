"""How full each IPU of a pipeline is, with the activations of all micro-batches in flight."""

from collections.abc import Sequence

import numpy as np

from popgeo.ipu.stage_choices import Schedule
from popgeo.ipu.systems.schedule import TimedPass, most_in_flight
from popgeo.ipu.systems.stage_cost import StageCost
from popgeo.ipu.target import IpuTarget


def fullest_tiles(
    stages: Sequence[StageCost],
    tasks: Sequence[TimedPass],
    schedule: Schedule,
    extra_bytes: Sequence[int],
    target: IpuTarget,
) -> tuple[float, ...]:
    """Bytes of the fullest tile of each IPU, as a share of what a tile has.

    Args:
        stages: What each keeps and needs.
        tasks: Every pass of every micro-batch.
        schedule: In which order they run.
        extra_bytes: Bytes of gradients and optimizer state on each IPU.
        target: One IPU.
    """
    tiles = target.num_tiles
    flying = [most_in_flight(tasks, number, any(one.backward for one in stages)) for number in range(len(stages))]
    found = []
    for ipu, extra in enumerate(extra_bytes):
        own = [(stage, most) for stage, most in zip(stages, flying, strict=True) if stage.ipu == ipu]
        need = _phases(own, tiles) if schedule is Schedule.PHASED else _stages(own, tiles)
        found.append(float((need + extra / tiles).max() / target.memory_per_tile))
    return tuple(found)


def _phases(own: Sequence[tuple[StageCost, int]], tiles: int) -> np.ndarray:
    """Bytes of each tile where stages follow each other and what others keep is in streaming memory. [num_tiles]"""
    most: np.ndarray = np.max([s.memory.peak + (flying - 1) * s.stash_bytes / tiles for s, flying in own], axis=0)
    return most


def _stages(own: Sequence[tuple[StageCost, int]], tiles: int) -> np.ndarray:
    """Bytes of each tile of an IPU whose stages work one at a time, while all that they keep is there. [num_tiles]"""
    always, works = np.zeros(tiles), [np.zeros(tiles)]
    kept = sum(stage.stash_bytes for stage, _ in own)
    for stage, flying in own:
        stack = stage.memory.categories["stack"]
        always += stage.memory.always_live - stack + ((flying - 1) * stage.stash_bytes - stage.held_before) / tiles
        works.append(stage.memory.peak - stage.memory.always_live + stack + (kept - stage.stash_bytes) / tiles)
    most: np.ndarray = always + np.max(works, axis=0)
    return most
