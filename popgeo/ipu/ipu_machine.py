"""The simulated machine as a compiled step sees it: what it refuses, how it cuts a step, and what it accounts for."""

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
from popgeo.ipu.fits_in_memory import require_fit, require_stages_fit, what_would_fit
from popgeo.ipu.options import Options
from popgeo.ipu.report.report import Pipeline, Report
from popgeo.ipu.step_cost import BESIDE
from popgeo.ipu.systems.ipu_share import IpuShare, is_shared, share_of
from popgeo.ipu.systems.stage_planner import StagePlan, stage_plan

# What a kept step depends on next to its capture: whether it fits the tiles.
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
    """The IPUs that options describe; a `StepMachine`.

    Args:
        options: The target, whether what does not fit is refused, stages, and shares of memory.

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
        """Filters are made at each edge if the step runs in stages, since what is accounted for runs here then."""
        return nullcontext() if self._options.stages is None else filters_at_each_edge()

    def what_decides(self, optimizer: Optimizer | None) -> list[object]:
        """What decides whether a step fits, if that is asked for."""
        options = self._options
        if not options.strict:
            return [hash_sources(*DECIDES)]
        chosen = [getattr(options, one.name) for one in fields(options) if one.name not in _DECIDE_NOTHING]
        decides = [hash_sources(*DECIDES), astuple(options.target), *chosen, getattr(optimizer, "accum_type", None)]
        if optimizer is not None:  # its settings that are on, such as momentum, decide how much memory it takes
            groups = [group.items() for group in optimizer.param_groups]
            settings = [sorted(k for k, on in one if k != "params" and on is not None and bool(on)) for one in groups]
            decides += [type(optimizer), *settings]
        return decides

    def plan(self, recipe: Recipe, arguments: Arguments, step: CapturedStep, update: Update | None) -> "IpuPlan":
        """How the IPUs would run a captured step.

        Raises:
            ValueError: the step cannot be cut so, or has too few micro-batches.
        """
        shared = is_shared(recipe.function, self._options.target)
        stages = stage_plan(step, partial(_captured, update), self._options)
        share = partial(_share_of, recipe, arguments, self._options) if shared else None
        return IpuPlan(step=step, update=update, options=self._options, stages=stages, capture_share=share)


@dataclass(frozen=True, kw_only=True, eq=False)
class IpuPlan:
    """How IPUs would run a captured step, and what that costs there; a `StepPlan`.

    Attributes:
        step: What runs.
        update: Applies gradients; None for a forward pass.
        options: The machine, replicas and stages.
        stages: How it runs in stages, and what that costs; None if it runs as a whole.
        capture_share: Captures what one IPU runs of the step; None if no weights lie in shards on several.
    """

    step: CapturedStep
    update: Update | None
    options: Options
    stages: StagePlan | None
    capture_share: Callable[[], IpuShare] | None

    @property
    def staging(self) -> Staging | None:
        """The stages in which the step runs, here too; None if it runs as a whole."""
        return None if self.stages is None else self.stages.staging

    @property
    def pipeline(self) -> Pipeline:
        """What the stages of the step cost over several IPUs, as `popgeo.ipu.pipeline` has it; what runs is cut alike.

        Raises:
            ValueError: the options ask for no stages.
        """
        if self.stages is None:
            raise ValueError("The step runs as a whole; set Options.stages, for example to 2, for a pipeline.")
        return self.stages.pipeline

    def require_fit(self) -> None:
        """Refuses, where the options are strict, what no tile can hold.

        Raises:
            OutOfTileMemory: a tile needs more memory than it has.
        """
        if not self.options.strict:
            return
        advice = partial(what_would_fit, self.step, _captured(self.update), self.options)
        if self.stages is not None:
            require_stages_fit(self.stages.pipeline, advice)
            return
        use, costs = self.account.tile_memory, [one for one in self.account.costs if one.phase not in BESIDE]
        assert use is not None
        # Stages and operations over several IPUs exclude each other.
        require_fit(use, costs, str if self.options.target.num_ipus > 1 else advice)

    @cached_property
    def share(self) -> IpuShare:
        """What one IPU runs of the step: all of it, unless several share the weights."""
        if self.capture_share is not None:
            return self.capture_share()
        return IpuShare(step=self.step, update=self.update, target=self.options.target, shards=1)

    @cached_property
    def account(self) -> Report:
        """Cycles and memory on the target, worked out when first asked for; nothing runs."""
        return self.share.report(self.options, frozenset() if self.update is None else self.update.sharded())

    def report(self, run: Mapping[str, Any]) -> Report | Pipeline:
        """The account of a step: cycles, memory and plans on the target, and what this computer did for it.

        It is that of one IPU, or of one IPU's share of shards, or that of the stages in which the step runs.
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
