"""Two steps that run one after the other, as one report."""

from dataclasses import replace
from typing import TypeVar

from popgeo.ipu.report.figures import Figures
from popgeo.ipu.tiles.memory_use import MemoryUse

F = TypeVar("F", bound=Figures)


def add(first: F, second: Figures) -> F:
    """What both cost together. Memory is that of the one whose fullest tile holds more.

    Raises:
        ValueError: they are for different targets or numbers of replicas, or count cycles by different profiles.
    """
    machines = [(r.target, r.profile, r.replicas, r.shards) for r in (first, second)]
    if machines[0] != machines[1]:
        named = [f"{r.machines} ({r.profile.value}, {r.replicas} replicas)" for r in (first, second)]
        raise ValueError(
            f"Reports add up on one target and profile, not {named[0]} and {named[1]}; compile both for the same."
        )
    return replace(
        first,
        costs=first.costs + second.costs,
        micro_batches=first.micro_batches + second.micro_batches,
        memory=_fuller(first.memory, second.memory),
        update_captured=_both(first.update_captured, second.update_captured),
        graphs_per_micro_batch=_graphs(first, second),
        real_of_slots={**first.real_of_slots, **second.real_of_slots},
        captured_ops=first.captured_ops + second.captured_ops,
        state_bytes=first.state_bytes + second.state_bytes,
        buffer_bytes=first.buffer_bytes + second.buffer_bytes,
        compile_seconds=first.compile_seconds + second.compile_seconds,
        calls=first.calls + second.calls,
        steps=first.steps + second.steps,
        run_seconds=first.run_seconds + second.run_seconds,
    )


def _fuller(first: MemoryUse | None, second: MemoryUse | None) -> MemoryUse | None:
    known = [use for use in (first, second) if use is not None]
    return max(known, key=lambda use: int(use.peak.max(initial=0))) if known else None


def _both(first: bool | None, second: bool | None) -> bool | None:
    known = [captured for captured in (first, second) if captured is not None]
    return all(known) if known else None


def _graphs(first: Figures, second: Figures) -> float | None:
    """The mean over the micro-batches of both."""
    a, b = first.graphs_per_micro_batch, second.graphs_per_micro_batch
    if a is None or b is None:
        return None
    return (a * first.micro_batches + b * second.micro_batches) / (first.micro_batches + second.micro_batches)
