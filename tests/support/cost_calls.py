"""A call of a part of the machine model, and the machines to call it for."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import Machine

BOW = IpuTarget.bow()
# No figure is that of another, so that none can stand for another.
ODD = replace(
    BOW, name="odd", num_tiles=7, workers_per_tile=5, memory_per_tile=60_000, vector_bytes=16, float32_macs=300,
    float16_macs=12, matrix_load_bytes=27, exchange_bytes=3, exchange_pair_bytes=11, copy_bytes=6, copy_cycles=251,
    sync_cycles=199, launch_cycles=77,
)  # fmt: skip
ONE, TWO, EIGHT = (replace(BOW, name=f"{tiles} tiles", num_tiles=tiles) for tiles in (1, 2, 8))
PAIR = replace(BOW, name="two of 6 tiles", num_tiles=6, num_ipus=2)
TIGHT = replace(BOW, name="8 tiles of 2000 bytes", num_tiles=8, memory_per_tile=2000)


def machine(target: IpuTarget, **others: Any) -> Machine:
    return Machine(target=target, **others)


@dataclass(frozen=True, kw_only=True)
class Call:
    """What to call, and with what."""

    name: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def call(function: Callable[..., Any], *args: Any) -> Call:
    return Call(name=function.__name__.removeprefix("_"), function=function, args=args)


def grid(function: Callable[..., Any], *choices: Sequence[Any]) -> list[Call]:
    """A call with each combination of arguments."""
    return [call(function, *args) for args in itertools.product(*choices)]
