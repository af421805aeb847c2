"""The report of a step on one IPU, or on one IPU's share of shards; two that run one after the other add up."""

from dataclasses import dataclass, replace
from inspect import getdoc
from typing import TypeVar

from popgeo.ipu.report.account import Account
from popgeo.ipu.report.chrome_trace import trace_of_step
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.html_page import summary
from popgeo.ipu.report.insights import OF_ONE_IPU, Insight, insights
from popgeo.ipu.report.pages import page
from popgeo.ipu.report.text import text
from popgeo.ipu.tiles.memory_use import MemoryUse

_SUMS = (
    "costs", "micro_batches", "captured_ops", "state_bytes", "buffer_bytes", "compile_seconds", "calls", "steps",
    "run_seconds",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Account):
    # The fields are explained next to their definition, and shown in this class too.
    __doc__ = f"""The account of one compiled step; `print` it. Reports of the same target add up with `+`.

{getdoc(Figures)}
"""
    memory: MemoryUse | None = None

    VERSION = ("popgeo.ipu.report", 1)
    DERIVED = ("families", "total_cycles", "microseconds", "error_budget")

    @property
    def insights(self) -> tuple[Insight, ...]:
        return insights(self, OF_ONE_IPU)

    _page = page
    _trace = trace_of_step
    __str__ = text

    def __repr__(self) -> str:
        return (
            f"Report({self.target.name}: {self.total_cycles:,} cycles, {self.microseconds:,.1f} µs, "
            f"{len(self.costs):,} operations, {self.profile.value})"
        )

    def _repr_html_(self) -> str:
        columns = ["family", "ops", "cycles", "share", "compute", "exchange", "sync", "validated"]
        rows = [row for row in self.rows.families if row["cycles"] and row["family"] != "host"]
        speed = f", {self.graphs_per_second:,.0f} graphs/s" if self.graphs_per_second else ""
        shown = [column for column in self.COLUMNS["families"] if column.name in columns]
        return summary(
            f"{self.target.name}: {self.total_cycles:,} cycles, {self.microseconds:,.1f} µs{speed}",
            f" ({self.profile.value})",
            shown,
            rows,
            self.insights,
        )

    def __add__(self, other: "Report") -> "Report":
        """What both cost together. Memory is that of the one whose fullest tile holds more.

        Raises:
            ValueError: they are for different targets or numbers of replicas, or count cycles by different profiles.
        """
        machines = [(r.target, r.profile, r.replicas, r.shards) for r in (self, other)]
        if machines[0] != machines[1]:
            named = [f"{r.machines} ({r.profile.value}, {r.replicas} replicas)" for r in (self, other)]
            raise ValueError(
                f"Reports add up on one target and profile, not {named[0]} and {named[1]}; compile both for the same."
            )
        uses = _known(self.tile_memory, other.tile_memory)
        captured = _known(self.update_captured, other.update_captured)
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMS},
            memory=max(uses, key=lambda use: int(use.peak.max(initial=0)), default=None),
            update_captured=all(captured) if captured else None,
            graphs_per_micro_batch=_graphs(self, other),
            real_of_slots={**self.real_of_slots, **other.real_of_slots},
        )


T = TypeVar("T")


def _known(*of_both: T | None) -> list[T]:
    return [one for one in of_both if one is not None]


def _graphs(first: Figures, second: Figures) -> float | None:
    """The mean over the micro-batches of both."""
    a, b = first.graphs_per_micro_batch, second.graphs_per_micro_batch
    if a is None or b is None:
        return None
    return (a * first.micro_batches + b * second.micro_batches) / (first.micro_batches + second.micro_batches)
