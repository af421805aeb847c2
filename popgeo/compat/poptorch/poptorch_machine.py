"""The IPUs as PopTorch compiles for them: pipelines that must be filled, and types that meet in a product."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import dropwhile
from typing import Any

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.one_type import OneType
from popgeo.compat.poptorch.compiling import compiling, isRunningOnIpu
from popgeo.compat.poptorch.errors import Error
from popgeo.ipu.ipu_machine import IpuMachine, IpuPlan
from popgeo.ipu.options import Options
from popgeo.ipu.stage_choices import EACH_BLOCK, Schedule
from popgeo.ipu.systems.stage_plan import TooFewMicroBatchesError, num_pipeline_stages


class PoptorchMachine(IpuMachine):
    """The IPUs that options describe, with PopTorch's rules.

    Args:
        options: See `IpuMachine`.
        upcasts: Whether a product of float16 and float32 is one of float32.
    """

    def __init__(self, options: Options, upcasts: bool) -> None:
        super().__init__(options)
        self._upcasts = upcasts

    def what_decides(self, optimizer: Any) -> list[object]:
        """That it is compiled by PopTorch's rules, too."""
        return [*super().what_decides(optimizer), "PopTorch", self._upcasts]

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """The model's code is the machine's, also where it has changed and is compiled anew."""
        with nullcontext() if isRunningOnIpu() else compiling(), OneType(self._upcasts):
            yield

    def plan(self, *of_a_step: Any) -> IpuPlan:
        """How the IPUs would run a captured step.

        Raises:
            Error: there are too few micro-batches for its pipeline, or something runs in no block.
        """
        must = "must be greater than or equal to the number of pipeline stages"
        try:
            planned = super().plan(*of_a_step)
        except TooFewMicroBatchesError as error:
            raise Error(
                f"poptorch.Options().Training.gradientAccumulation {must} ({2 * error.stages - 1}) when using "
                f"poptorch.PipelinedExecution. Please note that a model with {error.stages} pipeline stages in "
                f"PopTorch will have an additional {error.stages - 1} stages when training. {error}"
            ) from error
        runs = None if planned.stages is None or planned.update is not None else planned.pipeline
        if runs and runs.schedule is Schedule.LOCK_STEP and num_pipeline_stages(runs) > runs.micro_batches:
            must += f" ({num_pipeline_stages(runs)}) when using PopTorch.PipelinedExecution."
            raise Error(f"poptorch.Options().deviceIterations {must}")
        if planned.options.stages == EACH_BLOCK:
            _require_blocks(planned.step)
        return planned


def _require_blocks(step: CapturedStep) -> None:
    """Refuses what runs between blocks or after them, where each is to be a stage by its own number."""
    forward = (op for op in step.graph.ops if op.phase == "forward" and op.source)
    lost = next((op for op in dropwhile(lambda op: op.block is None, forward) if op.block is None), None)
    if lost is not None:
        raise Error(f"No active Block: {lost.source} runs outside of every block, which AutoStage.AutoIncrement needs.")
