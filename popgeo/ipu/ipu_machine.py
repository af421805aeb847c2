"""The simulated machine behind a compiled step: it checks memory, cuts a step into stages, and accounts for it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

from torch.optim import Optimizer

from popgeo.capture.arguments import Arguments
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.fingerprint import hash_sources
from popgeo.capture.held_state import in_modes
from popgeo.capture.op_graph import OpGraph
from popgeo.engine.optimizer.update import Update
from popgeo.engine.pipeline.staging import Staging
from popgeo.engine.step_recipe import Recipe
from popgeo.filter_choice import filters_at_each_edge
from popgeo.ipu.fits_in_memory import require_fit, require_stages_fit, suggest_stages
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Pipeline, Report
from popgeo.ipu.step_cost import BESIDE
from popgeo.ipu.systems.ipu_share import IpuShare, is_shared, share_of
from popgeo.ipu.systems.stage_planner import StagePlan, stage_plan

# Source files that decide whether a step fits the tiles. A kept step is valid only while these stay the same.
DECIDES = (
    "engine/optimizer/**/*.py", "ipu/cost/*.*", "ipu/systems/**/*.py", "ipu/tiles/**/*.py", "ipu/step_cost.py",
    "ipu/target.py", "ipu/fits_in_memory.py", "ipu/report/pipeline_figures.py", "ipu/report/stage_cost.py",
    "ipu/report/timeline.py",
)  # fmt: skip
# Options that change neither the cost nor the memory of a step.
_DECIDE_NOTHING = (
    "device_iterations", "output_mode", "output_period", "random_seed", "num_threads", "floating_point_exceptions",
    "cache_dir", "show_progress",
)  # fmt: skip


class IpuMachine:
    """The simulated IPUs of some options; a `StepMachine`.

    Args:
        options: The target, strictness, stages and shares of memory.

    Raises:
        ValueError: the options are a `StepOptions`, which names no machine.
    """

    def __init__(self, options: Options) -> None:
        if not isinstance(options, Options):
            remedy = "pass it by its name, optimizer=" if isinstance(options, Optimizer) else "pass a popgeo.Options"
            raise ValueError(
                f"options is a {type(options).__name__}, which names no machine; {remedy}, or use popgeo.compile_step."
            )
        self._options = options

    def capturing(self) -> AbstractContextManager[None]:
        """Return the context of a capture; with stages, the model computes filters at each edge, as on the IPUs."""
        return nullcontext() if self._options.stages is None else filters_at_each_edge()

    def what_decides(self, optimizer: Optimizer | None) -> list[object]:
        """Return the values that decide whether a step fits in memory; they are part of the key of kept steps."""
        options = self._options
        if not options.strict:
            return [hash_sources(*DECIDES)]
        chosen = [getattr(options, one.name) for one in fields(options) if one.name not in _DECIDE_NOTHING]
        decides = [hash_sources(*DECIDES), astuple(options.target), *chosen, getattr(optimizer, "accum_type", None)]
        if optimizer is not None:  # settings that are on, such as momentum, add memory
            groups = [group.items() for group in optimizer.param_groups]
            settings = [sorted(k for k, on in one if k != "params" and on is not None and bool(on)) for one in groups]
            decides += [type(optimizer), *settings]
        return decides

    def plan(self, recipe: Recipe, arguments: Arguments, step: CapturedStep, update: Update | None) -> "IpuPlan":
        """Plan how the IPUs run a captured step.

        Raises:
            ValueError: the step cannot be cut into the given stages, or has too few micro-batches.
        """
        options = self._options
        stages = stage_plan(step, partial(_captured, update), options)
        share = partial(IpuShare, step=step, update=update, target=options.target, shards=1)
        if is_shared(recipe.function, options.target):
            share = partial(_share_of, recipe, arguments, options)
        return IpuPlan(step=step, update=update, options=options, stages=stages, make_share=share)


@dataclass(frozen=True, kw_only=True, eq=False)
class IpuPlan:
    """The plan of a captured step on IPUs, with its cost; a `StepPlan`.

    Attributes:
        step: The captured step.
        update: The update that applies gradients; None for a forward pass.
        options: The machine, replicas and stages.
        stages: The stages with their cost; None if the step runs as a whole.
        make_share: A function that returns the part of the step that one IPU runs: the whole step, unless several IPUs
            share the weights.
    """

    step: CapturedStep
    update: Update | None
    options: Options
    stages: StagePlan | None
    make_share: Callable[[], IpuShare]

    @property
    def staging(self) -> Staging | None:
        """The stages of the step, which this computer runs in the same way; None if the step runs as a whole."""
        return None if self.stages is None else self.stages.staging

    @property
    def pipeline(self) -> Pipeline:
        """The cost of the stages over several IPUs, as `popgeo.ipu.pipeline` returns it.

        Raises:
            ValueError: the options ask for no stages.
        """
        if self.stages is None:
            raise ValueError("The step runs as a whole; set Options.stages, for example to 2, for a pipeline.")
        return self.stages.pipeline

    def require_fit(self) -> None:
        """Raise if the options are strict and the step does not fit in memory.

        Raises:
            OutOfTileMemory: a tile needs more memory than it has.
        """
        if not self.options.strict:
            return
        advice = partial(suggest_stages, self.step, _captured(self.update), self.options)
        if self.stages is not None:
            require_stages_fit(self.stages.pipeline, advice)
            return
        use, costs = self.account.tile_memory, [one for one in self.account.costs if one.phase not in BESIDE]
        assert use is not None
        # Stages and operations over several IPUs exclude each other.
        require_fit(use, costs, str if self.options.target.num_ipus > 1 else advice)

    @cached_property
    def account(self) -> Report:
        """Cycles and memory on the target, computed at the first access; nothing runs."""
        return self.make_share().report(self.options, frozenset() if self.update is None else self.update.sharded())

    def report(self, run: Mapping[str, Any]) -> Report | Pipeline:
        """Return the account of a step: cycles, memory and plans on the target, and counts and times of this computer.

        The account is of one IPU, of one IPU's share of shards, or of the stages that the step runs in.
        """
        account: Report | Pipeline = self.account if self.stages is None else self.stages.pipeline
        captured = None if self.update is None else self.update.is_captured
        steps = run["calls"] * self.options.batch_factor
        return replace(account, steps=steps, update_captured=captured, captured_ops=self.step.captured_ops, **run)


def _share_of(recipe: Recipe, arguments: Arguments, options: Options) -> IpuShare:
    with in_modes(recipe.module, recipe.modes):
        return share_of(recipe.function, arguments, options, recipe.optimizer)


def _captured(update: Update | None) -> OpGraph | None:
    return None if update is None else update.capture()
