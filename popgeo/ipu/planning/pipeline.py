"""The account of a step over several IPUs: how long it takes, who waits for whom, and what would make it faster."""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from popgeo.ipu.planning.schedule import Schedule, Task, most_in_flight
from popgeo.ipu.planning.stage import Stage
from popgeo.ipu.report.text import quantity
from popgeo.ipu.target import IpuTarget

GOOD_BUBBLE = 0.05  # share of the time that IPUs may wait before a remedy is named
UNEVEN = 1.2  # how much longer than the mean the slowest stage may take before it is named


@dataclass(frozen=True, kw_only=True, repr=False)
class Pipeline:
    """A step over several IPUs, as modelled. A step is all micro-batches between two updates, and the update.

    Attributes:
        target: One IPU.
        schedule: In which order stages take micro-batches.
        stages: What each computes, receives and keeps.
        tasks: Every pass of every micro-batch, in the order of the starts.
        micro_batches: How many there are between two updates.
        replicas: How many such pipelines run side by side.
        update: Cycles of the update on each IPU, with the sum of gradients over replicas before it.
        extra_bytes: Bytes of gradients and optimizer state on each IPU.
        shared: Parameters that several IPUs need, such as tied embeddings; each holds a copy, and gradients are added.
        seconds_to_plan: How long working this out took.
    """

    target: IpuTarget
    schedule: Schedule
    stages: tuple[Stage, ...]
    tasks: tuple[Task, ...]
    micro_batches: int
    replicas: int
    update: tuple[float, ...]
    extra_bytes: tuple[int, ...]
    shared: tuple[str, ...]
    seconds_to_plan: float

    @property
    def num_ipus(self) -> int:
        """IPUs of one replica."""
        return len(self.update)

    @property
    def trains(self) -> bool:
        return any(stage.backward for stage in self.stages)

    @property
    def cycles(self) -> float:
        """Cycles of a step: from the first micro-batch to the end of the slowest update."""
        return max(task.end for task in self.tasks) + max(self.update)

    @property
    def seconds(self) -> float:
        return self.cycles / self.target.clock

    @property
    def micro_batches_per_second(self) -> float:
        """Of all replicas together; times the samples of a micro-batch, the throughput."""
        return self.micro_batches * self.replicas / self.seconds

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """The cycles of a step in which each IPU works, transfers included."""
        working = list(self.update)
        for task in self.tasks:
            working[task.ipu] += task.end - task.start
        return tuple(working)

    @property
    def bubble(self) -> float:
        """The share of a step in which IPUs wait for each other, over all of them."""
        return 1.0 - sum(self.busy) / (self.num_ipus * self.cycles)

    @property
    def bottleneck(self) -> int:
        """The IPU that works longest."""
        return int(np.argmax(self.busy))

    @cached_property
    def memory(self) -> tuple[float, ...]:
        """Bytes of the fullest tile of each IPU, as a share of what a tile has."""
        need = [np.zeros(self.target.num_tiles) for _ in range(self.num_ipus)]
        for number, stage in enumerate(self.stages):
            if self.schedule is Schedule.PHASED:  # one phase at a time has its weights and values in the tiles
                need[stage.ipu] = np.maximum(need[stage.ipu], stage.memory.peak)
                continue
            waiting = most_in_flight(self.tasks, number, self.trains) - 1
            need[stage.ipu] = np.maximum(need[stage.ipu], 0) + stage.memory.peak
            need[stage.ipu] = need[stage.ipu] + waiting * stage.stash_bytes / self.target.num_tiles
        extra = [bytes_ / self.target.num_tiles for bytes_ in self.extra_bytes]
        limit = self.target.memory_per_tile
        return tuple(float((tiles + more).max() / limit) for tiles, more in zip(need, extra, strict=True))

    @property
    def fits(self) -> bool:
        """Whether no tile of any IPU needs more than it has."""
        return max(self.memory) <= 1.0

    def to_frame(self) -> pd.DataFrame:
        """One row for each stage; cycles of one micro-batch, bytes."""
        rows = []
        for number, stage in enumerate(self.stages):
            rows.append(
                {
                    "stage": number,
                    "ipu": stage.ipu,
                    "layers": stage.layers,
                    "forward": stage.forward,
                    "backward": stage.backward,
                    "receive": stage.receive_forward + stage.receive_backward,
                    "received_bytes": stage.received_bytes,
                    "weight_bytes": stage.weight_bytes,
                    "stash_bytes": stage.stash_bytes,
                    "in_flight": most_in_flight(self.tasks, number, self.trains),
                    "memory": self.memory[stage.ipu],
                    "busy": self.busy[stage.ipu] / self.cycles,
                }
            )
        return pd.DataFrame(rows)

    def timeline(self) -> pd.DataFrame:
        """One row for each pass of a micro-batch through a stage; times in cycles."""
        return pd.DataFrame([vars(task) for task in self.tasks])

    def to_chrome_trace(self) -> str:
        """The timeline as JSON for chrome://tracing and ui.perfetto.dev; times in microseconds."""
        to_us = 1e6 / self.target.clock
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": ipu, "tid": 0, "args": {"name": f"IPU {ipu}"}}
            for ipu in range(self.num_ipus)
        ]
        for task in self.tasks:
            kind = "backward" if task.backward else "forward"
            name = f"{kind} {task.micro_batch}"
            times = {"ts": task.start * to_us, "dur": (task.end - task.start) * to_us}
            events.append({"ph": "X", "name": name, "cat": kind, "pid": task.ipu, "tid": task.stage, **times})
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})

    @property
    def insights(self) -> list[str]:
        """What stands out, each with what would help."""
        found = []
        if not self.fits:
            over = int(np.argmax(self.memory))
            keeps_more = any(stage.stash_bytes > stage.received_bytes for stage in self.stages)
            recompute = "recompute=True, " if self.trains and keeps_more else ""
            found.append(
                f"IPU {over} needs {self.memory[over]:.1f} times the memory that it has: use more stages (at least "
                f"{math.ceil(sum(self.memory))} IPUs for this much), {recompute}or smaller micro-batches."
            )
        work = [sum(t.end - t.start for t in self.tasks if t.ipu == ipu) for ipu in range(self.num_ipus)]
        mean = sum(work) / len(work)
        if mean and max(work) > UNEVEN * mean:
            slowest = int(np.argmax(work))
            found.append(f"IPU {slowest} works {max(work) / mean:.1f} times as long as the mean: move a layer off it.")
        if self.bubble > GOOD_BUBBLE and self.num_ipus > 1:
            if self.schedule is Schedule.SHARDED:
                found.append(f"IPUs wait {self.bubble:.0%} of the time: only one works at a time; pipeline them.")
            else:
                enough = math.ceil((len(self.stages) - 1) * (1 - GOOD_BUBBLE) / GOOD_BUBBLE)
                how = f"accumulate {enough} micro-batches" if self.trains else f"set device_iterations={enough}"
                if self.micro_batches < enough:
                    found.append(
                        f"IPUs wait {self.bubble:.0%} of the time: {how} for a bubble below {GOOD_BUBBLE:.0%} of even "
                        "stages."
                    )
        if self.shared:
            found.append(
                f"{', '.join(self.shared[:3])} stands on several IPUs, each with a copy whose gradients are added: put "
                "the layers that use it on one IPU."
            )
        return found

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.stages)} stages on {self.num_ipus} x {self.target.name}, "
            f"{self.micro_batches:,} micro-batches in {self.cycles:,.0f} cycles, bubble {self.bubble:.1%})"
        )

    def __str__(self) -> str:
        frame = self.to_frame()
        several = "es" if self.micro_batches > 1 else ""
        beside = f" x {self.replicas} replicas" if self.replicas > 1 else ""
        lines = [
            f"One step of {self.micro_batches} micro-batch{several}, {self.schedule.value}, on {self.num_ipus} x "
            f"{self.target.name}{beside}",
            f"  {self.cycles:,.0f} cycles = {1e3 * self.seconds:,.3f} ms, {self.micro_batches_per_second:,.1f} "
            "micro-batches/s",
            f"  IPUs wait {self.bubble:.1%} of the time; IPU {self.bottleneck} works longest",
            f"{'stage':>5} {'IPU':>3} {'layers':<31}{'forward':>13}{'backward':>13}{'receive':>11}{'busy':>6}"
            f"{'memory':>8}",
        ]
        for row in frame.to_dict("records"):
            name = row["layers"] if len(row["layers"]) <= 30 else "…" + row["layers"][-29:]
            lines.append(
                f"{row['stage']:>5} {row['ipu']:>3} {name:<31}{row['forward']:>13,.0f}{row['backward']:>13,.0f}"
                f"{row['receive']:>11,.0f}{row['busy']:>6.0%}{row['memory']:>8.0%}"
            )
        lines.append(
            f"  {quantity(sum(s.weight_bytes for s in self.stages))}B of weights, {quantity(sum(self.extra_bytes))}B "
            "of gradients and optimizer state; update and sum over replicas "
            f"{max(self.update):,.0f} cycles; planned in {self.seconds_to_plan:.1f} s"
        )
        return "\n".join([*lines, *(f"  - {insight}" for insight in self.insights)])
