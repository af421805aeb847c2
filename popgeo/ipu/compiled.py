"""A captured step ready to be called: what compiling leaves behind each of the doors."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.op_graph import OpGraph
from popgeo.engine.bound_call import BoundCall
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_runner import StepRunner
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Report
from popgeo.ipu.step_cost import Assessment, assess
from popgeo.ipu.systems.share import Share
from popgeo.ipu.systems.stage_plan import StagePlan, require_stages_fit, stage_plan, what_would_fit
from popgeo.ipu.tiles.measure_memory import OutOfTileMemory


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


@dataclass(kw_only=True, eq=False)
class Compiled:
    """A captured step with all that running it and accounting for it need.

    Attributes:
        call: How it is called.
        step: What runs.
        module: Owns parameters and buffers.
        options: How often a call repeats the step, and the machine it is compiled for.
        update: Applies gradients; None for inference.
        replicas: Which of the replicas run in this process.
        share: What one IPU runs of it, where several share the weights; all of them run here.
        usage: What it has cost this computer so far.
    """

    call: BoundCall
    step: CapturedStep
    module: nn.Module
    options: Options
    update: Update | None
    replicas: Replicas
    share: Share | None = None
    usage: Usage = field(default_factory=Usage)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs a call.

        Raises:
            ValueError: an argument differs from what the step was compiled for; the message names it.
        """
        tensors, graph_data = self.call.flatten(args, kwargs)
        with self.usage.of_a_call():
            results = self.runner.run(tensors)
        return self.call.unflatten(results, graph_data)

    @cached_property
    def runner(self) -> StepRunner:
        """Runs it here. Made when it is needed: from then on weights lie where the step wants them."""
        staging = None if self.stage_plan is None else self.stage_plan.staging
        return StepRunner(self.step, self.module, self.options, self.update, self.replicas, staging=staging)

    @cached_property
    def stage_plan(self) -> StagePlan | None:
        """How it runs in stages, and what that costs; None where it runs as a whole."""
        return stage_plan(self.step, lambda: self._captured_update, self.options)

    @property
    def _captured_update(self) -> OpGraph | None:
        return None if self.update is None else self.update.capture()

    @property
    def how_it_runs(self) -> str:
        """What the executor has joined, and with how many threads it runs; empty before the first call."""
        if "runner" not in self.__dict__:
            return ""
        picked = self.runner.threads.picked
        threads = "" if picked is None else f"{picked} thread{'s' if picked > 1 else ''}"
        scale = self.runner.loss_scale
        parts = ("" if scale is None else str(scale), *self.runner.joined, threads)
        return ", ".join(part for part in parts if part)

    @cached_property
    def assessment(self) -> Assessment:
        """Cycles and memory on the target, worked out when first asked for; nothing runs."""
        step, update, target, shards = self.step, self.update, self.options.target, 1
        if self.share is not None:
            step, update = self.share.step, self.share.update
            target, shards = self.share.target, self.share.shards
        divides = update is not None and self.options.shard_optimizer_state and self.options.replication_factor > 1
        return assess(
            step,
            target,
            None if update is None else update.capture(),
            part_of_update=update.capture(self.options.replication_factor) if update and divides else None,
            micro_batches=self.options.gradient_accumulation,
            replicas=self.options.replication_factor,
            sharded=frozenset() if self.update is None else self.update.sharded(),
            shards=shards,
            matmul_proportion=self.options.proportion_of(0),
        )

    def require_fit(self) -> None:
        """Refuses, where the options are strict, what no tile can hold.

        Raises:
            OutOfTileMemory: a tile needs more memory than it has.
        """
        if not self.options.strict:
            return
        if self.stage_plan is not None:
            require_stages_fit(self.stage_plan.pipeline, self.step, self._captured_update, self.options)
        elif not self.assessment.memory.fits:
            try:
                self.assessment.require_fit()
            except OutOfTileMemory as error:
                if self.options.target.num_ipus > 1:  # stages and operations over several IPUs exclude each other
                    raise
                advice = what_would_fit(self.step, self._captured_update, self.options)
                raise OutOfTileMemory(f"{error} {advice}") from None

    def report(self) -> Report:
        """The account of a step: cycles, memory and plans on the target, and what this computer did for it."""
        return Report(
            target=self.options.target if self.share is None else self.share.target,
            costs=self.assessment.costs,
            memory=self.assessment.memory,
            micro_batches=self.options.gradient_accumulation,
            replicas=self.options.replication_factor,
            shards=1 if self.share is None else self.share.shards,
            update_captured=None if self.update is None else self.update.is_captured,
            captured_ops=self.step.captured_ops,
            state_bytes=self.runner.state_bytes,
            buffer_bytes=self.runner.graph_runner.buffer_bytes,
            how_it_runs=self.how_it_runs,
            compile_seconds=self.usage.compile_seconds,
            calls=self.usage.calls,
            steps=self.usage.calls * self.options.batch_factor,
            run_seconds=self.usage.run_seconds,
        )
