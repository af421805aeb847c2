"""Compute sets and exchanges as supersteps, the cycles of a transfer, and plans in sequence."""

import dataclasses
from typing import Any

import numpy as np

from popgeo.ipu.cost.plan import Activity, Plan, Superstep, Validity
from popgeo.ipu.cost.vertex_cycles import ceil_div
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
    """Return a compute set as a superstep: its launch and its vertices.

    Args:
        name: Name of the compute set.
        target: The machine.
        vertex: Cycles of the vertices on the busiest tile.
        calibrated: Cycles with the fitted constants. Default: cycles by the formulas.
        tiles: Number of tiles with a vertex.
        workers: Number of workers that the work on a tile could occupy. Default: all workers.
        evenness: Mean work of the tiles at work, as a share of the busiest tile's work.

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
    """Return a superstep for measured cycles that no formula predicts; it has 0 cycles in the ideal profile."""
    activity = Activity.SYNC if is_sync else Activity.EXCHANGE
    return Superstep(name=name, activity=activity, ideal=0.0, calibrated=calibrated, tiles=tiles)


# Control instructions of a tile: for each received piece it selects the sender, resets it and moves the pointer. For
# each sent piece it needs one instruction, and a further instruction for each 64 words.
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
    """Return the cycles from the first to the last word of an exchange, for the busiest tile.

    Senders to one tile are served one after the other, and distance costs nothing (arXiv:1912.03413, section 4). So the
    longest of receiving, sending and issuing instructions decides. All arguments are numbers or arrays.

    Args:
        target: The machine.
        bytes_in: Most bytes that a tile receives.
        bytes_out: Most bytes that a tile sends; a multicast counts once.
        fragments_in: Most separate pieces that a tile receives.
        fragments_out: Most separate pieces that a tile sends.
        is_paired: Whether both tiles of each pair receive the same data, so that they use both lanes.
        is_irregular: The pieces have no common pattern.

    Example:
        >>> bow = IpuTarget.bow()
        >>> transfer_cycles(bow, bytes_in=4000), transfer_cycles(bow, bytes_in=4000, is_paired=True)
        (1000.0, 500.0)
    """
    receive = bytes_in / np.where(is_paired, target.exchange_pair_bytes, target.exchange_bytes)
    send = bytes_out / target.exchange_bytes
    control = _CONTROL_IN * fragments_in + _CONTROL_OUT * fragments_out + bytes_out / _BYTES_PER_SEND
    # A tile without data needs no control instructions.
    busiest = np.where(np.maximum(bytes_in, bytes_out) > 0, np.maximum(np.maximum(receive, send), control), 0.0)
    cycles = busiest * (_IRREGULAR if is_irregular else 1.0)
    return float(cycles) if np.ndim(cycles) == 0 else cycles


def exchange_step(
    name: str,
    target: IpuTarget,
    *,
    bytes_in: float,
    bytes_out: float = 0,
    tiles: int,
    fragments: int = 1,
    is_irregular: bool = False,
    transfer: float | None = None,
    calibrated: float | None = None,
) -> Superstep:
    """Return an exchange as a superstep: synchronisation, the latency of the first word, and the transfer.

    Args:
        name: Name of the exchange.
        target: The machine.
        bytes_in: Most bytes that a tile receives.
        bytes_out: Most bytes that a tile sends.
        tiles: Number of tiles that take part; each is assumed to receive `bytes_in`.
        fragments: Most pieces that a tile receives.
        is_irregular: Whether the pieces have no common pattern.
        transfer: Cycles of the busiest tile. Default: the cycles by `transfer_cycles`.
        calibrated: Cycles with the fitted constants. Default: cycles by the formulas.

    Example:
        >>> exchange_step("move", IpuTarget.bow(), bytes_in=4000, bytes_out=4000, tiles=1472).ideal
        1240.0
    """
    if transfer is None:
        transfer = transfer_cycles(
            target, bytes_in=bytes_in, bytes_out=bytes_out, fragments_in=fragments, is_irregular=is_irregular
        )
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


def timed_step(name: str, activity: Activity, cycles: float, *, nbytes: int, tiles: int) -> Superstep:
    """Return a transfer of known cycles outside of an IPU as a superstep; the tiles share its bytes."""
    share = ceil_div(nbytes, tiles)
    sent = share if activity is Activity.EXCHANGE else 0
    return Superstep(
        name=name, activity=activity, ideal=cycles, calibrated=cycles, mean=cycles, tiles=tiles, bytes_in=share,
        bytes_out=sent, bytes_total=nbytes,
    )  # fmt: skip


def in_sequence(family: str, *plans: Plan, main: int = 0) -> Plan:
    """Return several plans as one, with the validity of the weakest of them.

    Args:
        family: Family of the whole.
        plans: Plans in the order in which they run.
        main: Position of the plan that gives the split.

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
    """Return a superstep that runs `count` times, one after the other, as one superstep.

    Example:
        >>> repeated(compute_step("add", IpuTarget.bow(), vertex=100, tiles=1472), 3).ideal
        546.0
    """
    grows = ("ideal", "calibrated", "mean", "bytes_in", "bytes_out", "bytes_total")
    return dataclasses.replace(step, **{name: count * getattr(step, name) for name in grows})
