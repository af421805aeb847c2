"""What a compiled step has cost this computer so far, and the report that says so beside the costs on the target."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from popgeo.engine.optimizer.update import Update
from popgeo.engine.step_runner import StepRunner
from popgeo.ipu.cost.account import account
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Family, Report
from popgeo.ipu.step_cost import Assessment


@dataclass(kw_only=True)
class Usage:
    """Wall time and calls of one compiled step.

    Attributes:
        compile_seconds: How long compiling took.
        run_seconds: How long all calls took together.
        calls: How many there were.
    """

    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    calls: int = 0

    @contextmanager
    def of_a_call(self) -> Iterator[None]:
        """Counts a call, and its time, unless it fails."""
        start = time.perf_counter()
        yield
        self.run_seconds += time.perf_counter() - start
        self.calls += 1


def report(
    runner: StepRunner, assessment: Assessment, usage: Usage, options: Options, update: Update | None = None
) -> Report:
    """The account of a step: cycles, memory and plans on the target, and what this computer did for it."""
    families = account(runner.graph_runner.graph)
    if update is not None:
        families["optimizer"] = sum(account(update.capture()).values(), Family())
    return Report(
        target=options.target,
        costs=assessment.costs,
        memory=assessment.memory,
        micro_batches=options.gradient_accumulation,
        replicas=options.replication_factor,
        update_captured=None if update is None else update.is_captured,
        families=families,
        captured_ops=runner.step.captured_ops,
        state_bytes=runner.state_bytes,
        buffer_bytes=runner.graph_runner.buffer_bytes,
        compile_seconds=usage.compile_seconds,
        calls=usage.calls,
        steps=usage.calls * options.batch_factor,
        run_seconds=usage.run_seconds,
    )
