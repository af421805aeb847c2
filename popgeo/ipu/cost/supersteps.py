"""Compute sets and exchanges as supersteps, how long a transfer takes, and plans that run one after the other."""

import dataclasses
from typing import Any

import numpy as np

from popgeo.ipu.cost.plan import Activity, Plan, Superstep, Validity
from popgeo.ipu.target import IpuTarget


def compute_step(
    name: str,
    target: IpuTarget,
    *,
    vertex: float,
    calibrated: float | None = None,
    tiles: int,
    workers: float | None = None,
    evenness: float = 1.0,
) -> Superstep:
    """What the vertices of one compute set cost.

    Args:
        name: What they do.
        target: The machine.
        vertex: Cycles of the busiest tile's vertices.
        calibrated: Cycles by the fitted constants; by the formulas alone if no constant was fitted.
        tiles: Tiles that have a vertex.
        workers: Workers that have work on such a tile, were there enough of them; all by default.
        evenness: Mean work of the tiles at work, as a share of the busiest one's.

    Example:
        >>> compute_step("add", IpuTarget.bow(), vertex=100, tiles=1472).ideal
        182.0
    """
    ideal = float(target.launch_cycles + vertex)
    busy = min(1.0, tiles / (target.all_tiles))
    return Superstep(
        name=name,
        activity=Activity.COMPUTE,
        ideal=ideal,
        calibrated=ideal if calibrated is None else calibrated,
        mean=target.launch_cycles + vertex * evenness * busy,
        tiles=tiles,
        workers=float(target.workers_per_tile if workers is None else min(target.workers_per_tile, workers)),
    )


def overhead_step(name: str, *, calibrated: float, tiles: int, is_sync: bool = True) -> Superstep:
    """Cycles that measurements show and no formula predicts: 0 in the ideal profile."""
    activity = Activity.SYNC if is_sync else Activity.EXCHANGE
    return Superstep(name=name, activity=activity, ideal=0.0, calibrated=calibrated, tiles=tiles)


# Control instructions of a tile: per piece received it selects the sender, resets it and moves the pointer; per piece
# sent it needs one instruction, and one more for each 64 words.
_CONTROL_IN, _CONTROL_OUT, _BYTES_PER_SEND = 3, 1, 256
# The compiler packs irregular traffic less tightly (median efficiency of published schedules: 0.83).
_IRREGULAR = 1.2


def transfer_cycles(
    target: IpuTarget,
    *,
    bytes_in: Any,
    bytes_out: Any = 0,
    fragments_in: Any = 1,
    fragments_out: Any = 1,
    is_paired: Any = False,
    is_irregular: bool = False,
) -> Any:
    """Cycles from the first to the last word of an exchange, for the busiest tile.

    Senders to one tile are served one after the other and distance costs nothing (arXiv:1912.03413, section 4), so the
    longest of receiving, sending and issuing instructions decides. Numbers or arrays of numbers.

    Args:
        target: The machine.
        bytes_in: Most bytes that a tile receives.
        bytes_out: Most bytes that a tile sends; a multicast counts once, however many receive it.
        fragments_in: Most separate pieces that a tile receives.
        fragments_out: Most separate pieces that a tile sends.
        is_paired: Both tiles of each pair receive the same data, so they use both lanes.
        is_irregular: The pieces have no common pattern.

    Example:
        >>> bow = IpuTarget.bow()
        >>> transfer_cycles(bow, bytes_in=4000), transfer_cycles(bow, bytes_in=4000, is_paired=True)
        (1000.0, 500.0)
    """
    receive = bytes_in / np.where(is_paired, target.exchange_pair_bytes, target.exchange_bytes)
    send = bytes_out / target.exchange_bytes
    control = _CONTROL_IN * fragments_in + _CONTROL_OUT * fragments_out + bytes_out / _BYTES_PER_SEND
    # A tile that receives nothing needs no control either.
    busiest = np.where(np.maximum(bytes_in, bytes_out) > 0, np.maximum(np.maximum(receive, send), control), 0.0)
    cycles = busiest * (_IRREGULAR if is_irregular else 1.0)
    return float(cycles) if np.ndim(cycles) == 0 else cycles


def exchange_step(
    name: str,
    target: IpuTarget,
    *,
    transfer: float,
    calibrated: float | None = None,
    bytes_in: float,
    bytes_out: float = 0,
    fragments: int = 1,
    tiles: int,
) -> Superstep:
    """An exchange as a superstep: synchronisation, the first word's way and the transfer.

    Args:
        name: What it does.
        target: The machine.
        transfer: Cycles of the busiest tile, from `transfer_cycles`.
        calibrated: Cycles by the fitted constants; by the formulas alone if no constant was fitted.
        bytes_in: Most bytes that a tile receives.
        bytes_out: Most bytes that a tile sends.
        fragments: Most pieces that a tile receives.
        tiles: Tiles that take part; all of them are taken to receive the most.
    """
    ideal = target.sync_cycles + transfer
    return Superstep(
        name=name,
        activity=Activity.EXCHANGE,
        ideal=ideal,
        calibrated=ideal if calibrated is None else calibrated,
        mean=target.sync_cycles + transfer * tiles / max(tiles, target.all_tiles),
        tiles=tiles,
        bytes_in=round(bytes_in),
        bytes_out=round(bytes_out),
        bytes_total=round(bytes_in * tiles),
        fragments=fragments,
    )


def swap_step(
    name: str, target: IpuTarget, *, nbytes: int, tiles: int, fragments: int = 1, is_irregular: bool = False
) -> Superstep:
    """An exchange in which each tile that takes part sends as much as it receives.

    Args:
        name: What it does.
        target: The machine.
        nbytes: What each tile receives, and sends.
        tiles: Tiles that take part.
        fragments: Separate pieces that a tile receives.
        is_irregular: The pieces have no common pattern.

    Example:
        >>> swap_step("move", IpuTarget.bow(), nbytes=4000, tiles=1472).ideal
        1240.0
    """
    transfer = transfer_cycles(
        target, bytes_in=nbytes, bytes_out=nbytes, fragments_in=fragments, is_irregular=is_irregular
    )
    return exchange_step(
        name, target, transfer=transfer, bytes_in=nbytes, bytes_out=nbytes, fragments=fragments, tiles=tiles
    )


def in_sequence(family: str, *plans: Plan, main: int = 0) -> Plan:
    """One plan out of several, no more trustworthy than the weakest of them.

    Args:
        family: What to call it.
        plans: In the order in which they run.
        main: Which of them gives the split.

    Example:
        >>> first, second = Plan(family="gather", flops=1), Plan(family="multiply", flops=2)
        >>> both = in_sequence("both", first, second)
        >>> both.flops, len(both.parts)
        (3, 2)
    """
    reasons = dict.fromkeys(f"{plan.family}: {plan.why}" for plan in plans if plan.why)
    return Plan(
        family=family,
        split=plans[main].split,
        supersteps=tuple(step for plan in plans for step in plan.supersteps),
        temporary_bytes=max(plan.temporary_bytes for plan in plans),
        flops=sum(plan.flops for plan in plans),
        considered=sum(plan.considered for plan in plans),
        validity=max((plan.validity for plan in plans), key=list(Validity).index),
        why="; ".join(reasons),
        parts=plans,
    )


def repeated(step: Superstep, count: int) -> Superstep:
    """A superstep that runs `count` times, one after the other, as one superstep.

    Example:
        >>> repeated(compute_step("add", IpuTarget.bow(), vertex=100, tiles=1472), 3).ideal
        546.0
    """
    grows = ("ideal", "calibrated", "mean", "bytes_in", "bytes_out", "bytes_total")
    return dataclasses.replace(step, **{name: count * getattr(step, name) for name in grows})
