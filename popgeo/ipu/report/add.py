"""Two steps that run one after the other, as one report."""

from dataclasses import replace
from typing import TypeVar

from popgeo.ipu.report.figures import Figures

F = TypeVar("F", bound=Figures)
T = TypeVar("T")

_SUMS = (
    "costs", "micro_batches", "captured_ops", "state_bytes", "buffer_bytes", "compile_seconds", "calls", "steps",
    "run_seconds",
)  # fmt: skip


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
    uses = _known(first.tile_memory, second.tile_memory)
    captured = _known(first.update_captured, second.update_captured)
    return replace(
        first,
        **{name: getattr(first, name) + getattr(second, name) for name in _SUMS},
        memory=max(uses, key=lambda use: int(use.peak.max(initial=0)), default=None),
        update_captured=all(captured) if captured else None,
        graphs_per_micro_batch=_graphs(first, second),
        real_of_slots={**first.real_of_slots, **second.real_of_slots},
    )


def _known(*of_both: T | None) -> list[T]:
    return [one for one in of_both if one is not None]


def _graphs(first: Figures, second: Figures) -> float | None:
    """The mean over the micro-batches of both."""
    a, b = first.graphs_per_micro_batch, second.graphs_per_micro_batch
    if a is None or b is None:
        return None
    return (a * first.micro_batches + b * second.micro_batches) / (first.micro_batches + second.micro_batches)
