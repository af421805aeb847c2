"""What a report is about: the fields that a step fills in, and the numbers that follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from popgeo.ipu.cost.plan import Activity, OpCost, Profile
from popgeo.ipu.report.cost_rows import CostRows, activity_cycles
from popgeo.ipu.step_cost import Cost
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.memory_use import MemoryUse

IDLE = ("view", "host")  # families that cost the machine nothing


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a step costs on the machine, and what this computer did for it.

    A step is what one update needs: `micro_batches` times forward and backward, and the update once. Of a function or
    an inference model it is one run. Cycles count on one IPU that computes; transfers from and to the host run
    next to them, as prefetching lets them, and are given apart.

    Attributes:
        target: The machine it was compiled for.
        costs: Every operation of a step with its plan, in order; transfers of the host come with the phase `host`.
        profile: Which cycles count: fitted to published measurements, or by the formulas alone.
        micro_batches: How many a replica takes in a step.
        replicas: How many run the step side by side, each on an IPU (or several) of its own.
        shards: Over how many IPUs one replica's cut weights are spread. They compute side by side, and all figures,
            memory included, are for one of them.
        memory: What lies in the tiles' memory, if it was worked out.
        update_captured: Whether the optimizer's update runs as a captured graph; None if there is no optimizer, or
            no update has run yet.
        graphs_per_micro_batch: Real graphs of a micro-batch, as given to `for_batch`.
        real_of_slots: How many of that many slots are real, as given to `for_batch`.
        captured_ops: Operations that the model asked for; the passes leave fewer.
        state_bytes: Parameters, gradients, optimizer state and buffers.
        buffer_bytes: Memory of this computer for all values in between, allocated once.
        how_it_runs: What this computer joins into single calls, and with how many threads it runs, in words.
        compile_seconds: How long compiling took.
        calls: How often the model was called.
        steps: Micro-batches that ran.
        run_seconds: Wall time of all calls on this computer; it says nothing about an IPU.
    """

    target: IpuTarget
    costs: tuple[OpCost, ...] = ()
    profile: Profile = Profile.CALIBRATED
    micro_batches: int = 1
    replicas: int = 1
    shards: int = 1
    memory: MemoryUse | tuple[float, ...] | None = None
    update_captured: bool | None = None
    graphs_per_micro_batch: float | None = None
    real_of_slots: Mapping[int, float] = field(default_factory=dict)
    captured_ops: int
    state_bytes: int
    buffer_bytes: int
    compile_seconds: float
    calls: int = 0
    steps: int = 0
    run_seconds: float = 0.0
    how_it_runs: str = ""

    @cached_property
    def rows(self) -> CostRows:
        """The rows behind each table, worked out once and read only; `to_frame` gives tables of one's own."""
        return CostRows(costs=self.costs, target=self.target, profile=self.profile)

    def __getstate__(self) -> dict[str, Any]:
        """The fields, which a copy or a file gets, without rows that follow from them."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @property
    def total_cycles(self) -> int:
        """Cycles of one step on one IPU: compute, exchange and sync, without the host."""
        return round(sum(n for activity, n in self.cycles_by_activity.items() if activity is not Activity.HOST))

    @property
    def microseconds(self) -> float:
        """Time of one step at the target's clock."""
        return 1e6 * self.total_cycles / self.target.clock

    @property
    def cycles_by_activity(self) -> dict[Activity, float]:
        """Cycles of one step by what the slowest tile spends them on."""
        return activity_cycles(self.costs, self.profile)

    @property
    def graphs_per_second(self) -> float | None:
        """Real graphs that all replicas work through per second; None until `for_batch` is given how many there are."""
        if self.graphs_per_micro_batch is None or not self.total_cycles:
            return None
        return self.graphs_per_micro_batch * self.micro_batches * self.replicas * 1e6 / self.microseconds

    @property
    def families(self) -> dict[str, Cost]:
        """What a step costs, by kind of work, in the order in which they first occur; without views and the host."""
        families: dict[str, Cost] = {}
        for cost in self.costs:
            if cost.family not in IDLE:
                families[cost.family] = families.get(cost.family, Cost()) + Cost.of(cost, self.profile)
        return families

    @property
    def total(self) -> Cost:
        """All families together."""
        return sum(self.families.values(), Cost())

    @property
    def tile_memory(self) -> MemoryUse | None:
        """`memory` of one IPU, tile by tile; None of several."""
        return self.memory if isinstance(self.memory, MemoryUse) else None

    @property
    def seconds_per_call(self) -> float:
        """Mean wall time of a call on this computer; 0 before the first one."""
        return self.run_seconds / self.calls if self.calls else 0.0

    @property
    def machines(self) -> str:
        """How many IPUs work side by side, and of what kind.

        Example:
            >>> from popgeo.ipu.target import IpuTarget
            >>> known = dict(captured_ops=0, state_bytes=0, buffer_bytes=0, compile_seconds=0.0)
            >>> Figures(target=IpuTarget.bow(), replicas=2, shards=4, **known).machines
            '2 x 4 x Bow'
        """
        counts = [f"{count:,} x " for count in (self.replicas, self.shards) if count > 1]
        return f"{''.join(counts)}{self.target.name}"
