"""The account of a compiled step: what it costs on the machine, and what this computer did for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from popgeo.ipu.memory_use import MemoryUse
from popgeo.ipu.plan import Activity, OpCost, Profile
from popgeo.ipu.target import IpuTarget


@dataclass(frozen=True, kw_only=True)
class Family:
    """Operations of one kind.

    Attributes:
        ops: How many one step runs.
        flops: Floating-point operations, a multiply-accumulate counted as two.
        bytes: Bytes that they read and write, had each its own memory.
    """

    ops: int = 0
    flops: int = 0
    bytes: int = 0

    def __add__(self, other: "Family") -> "Family":
        return Family(ops=self.ops + other.ops, flops=self.flops + other.flops, bytes=self.bytes + other.bytes)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The account of one compiled step; `print` it.

    A step is what one update needs: `micro_batches` times forward and backward, and the update once. Of a function or
    an inference model it is one run. Cycles are those of one IPU that computes; transfers from and to the host run
    beside them, as prefetching lets them, and are given apart.

    Attributes:
        target: The machine it was compiled for.
        costs: Every operation of a step with its plan, in order; transfers of the host come with the phase `host`.
        profile: Which cycles count: those fitted to published measurements, or those of the formulas alone.
        micro_batches: How many a step takes.
        memory: What lies in the tiles' memory, where it was worked out.
        update_captured: Whether the optimizer's update runs as a captured graph; None where there is no optimizer, or
            no update has run yet.
        families: Operations of one micro-batch, forward and backward, by family, and `optimizer` for one update.
        captured_ops: Operations that the model asked for; the passes leave fewer.
        state_bytes: Parameters, gradients, optimizer state and buffers.
        buffer_bytes: Memory for all values in between, allocated once.
        compile_seconds: How long compiling took.
        calls: How often the model was called.
        steps: Micro-batches that ran.
        run_seconds: Wall time of all calls on this computer; it says nothing about an IPU.
    """

    target: IpuTarget
    costs: tuple[OpCost, ...] = ()
    profile: Profile = Profile.CALIBRATED
    micro_batches: int = 1
    memory: MemoryUse | None = None
    update_captured: bool | None = None
    families: Mapping[str, Family]
    captured_ops: int
    state_bytes: int
    buffer_bytes: int
    compile_seconds: float
    calls: int = 0
    steps: int = 0
    run_seconds: float = 0.0

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
        cycles = dict.fromkeys(Activity, 0.0)
        for cost in self.costs:
            for superstep in cost.plan.supersteps:
                cycles[superstep.activity] += cost.count * superstep.cycles(self.profile)
        return cycles

    def graphs_per_second(self, graphs_per_micro_batch: float) -> float:
        """Graphs that one IPU works through per second, when each micro-batch holds so many.

        Args:
            graphs_per_micro_batch: Real graphs, on average; padding does not count.
        """
        return graphs_per_micro_batch * self.micro_batches * 1e6 / self.microseconds

    @property
    def total(self) -> Family:
        """All families together."""
        return sum(self.families.values(), Family())

    @property
    def seconds_per_call(self) -> float:
        """Mean wall time of a call on this computer; 0 before the first one."""
        return self.run_seconds / self.calls if self.calls else 0.0

    def __str__(self) -> str:
        total = self.total
        lines = [
            f"Step for {self.target.name} ({self.target.num_tiles:,} tiles): {total.ops} operations "
            f"({self.captured_ops} captured), {_quantity(total.flops)}FLOP, {_quantity(total.bytes)}B read and written",
            f"Memory: {_quantity(self.state_bytes)}B of weights and optimizer, "
            f"{_quantity(self.buffer_bytes)}B of buffers",
        ]
        for name, family in sorted(self.families.items(), key=lambda item: -item[1].bytes):
            lines.append(
                f"  {name:<12}{family.ops:>6} ops {_quantity(family.flops):>9}FLOP {_quantity(family.bytes):>9}B"
            )
        lines.append(f"Compiled in {self.compile_seconds:.2f} s")
        if self.calls:
            lines[-1] += (
                f"; {self.calls} calls, {self.steps} micro-batches, {1e3 * self.seconds_per_call:.2f} ms per call "
                "on this computer"
            )
        return "\n".join(lines)


def _quantity(number: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000 or unit == "T":
            return f"{number:.0f} {unit}" if not unit else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError
