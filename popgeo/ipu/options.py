"""The options of a compiled model: how it runs, and the simulated machine that it is compiled for."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum

import pandas as pd

from popgeo.did_you_mean import names_arguments
from popgeo.engine.step_options import StepOptions
from popgeo.ipu.stage_choices import Stages, checked_recompute, checked_schedule, checked_stages
from popgeo.ipu.target import IpuTarget


@names_arguments
@dataclass(frozen=True, kw_only=True)
class Options(StepOptions):
    """How a compiled model runs, and on which machine; change one option with `dataclasses.replace`.

    The options of a run, from `device_iterations` to `show_progress`, come from `popgeo.StepOptions`.

    Attributes:
        target: The machine that the step is compiled for.
        matmul_proportion: Share of a tile's memory that a dense product may take while it runs, on every IPU or on each
            in turn; PopTorch's `setAvailableMemoryProportion`. With less a product is cut into more parts, one after
            the other. It changes the account and no result.
        strict: Refuse to compile what needs more memory than a tile of the target has. False lets it run, since this
            computer has the memory, and leaves it to the report to tell.
        stages: Run each micro-batch stage by stage, over several IPUs like the target: that many stages, cut where they
            are even in cycles and memory, as `4`; or the number of the model's alike layers on each IPU, as
            `[0, 3, 3]`; or which layers begin a stage on which IPU, as `{"layers.3": 1}`; or `"blocks"` for those that
            the model names with `Block` or `BeginBlock`, a stage wherever the IPU changes, `"each block"` for a stage
            for every one of them, or a list of `Stage`. None takes the blocks of a model that names several IPUs, and
            runs any other as a whole on one. Each stage is on one IPU, so `target.num_ipus` stays 1. Results are those
            of the step as a whole, bit by bit; only a sum that the whole step takes in one pass with operations before
            it, of which some are in another stage, may differ in the last bit of float32.
        schedule: In which order stages take micro-batches, as `popgeo.ipu.Schedule` names them; None leaves it to
            `popgeo.ipu.pipeline`.
        recompute: Keep of each micro-batch only what a stage receives, and repeat its forward pass before its backward
            pass. Names of layers keep the results of these too. It needs stages, if only one. What lies between the
            last result that is kept and the loss is not repeated, as in PopART and TensorFlow.
        recompute_last_stage: Repeat that as well: less is kept while the last stage works.

    Raises:
        ValueError: `StepOptions` refuses a choice, or stages, a schedule or a share of memory are impossible.

    Example:
        >>> options = Options(device_iterations=4, gradient_accumulation=2, output_mode="all")
        >>> options
        Options(device_iterations=4, gradient_accumulation=2, output_mode='all')
        >>> options.batch_factor, options.output_mode
        (8, <OutputMode.ALL: 'all'>)
    """

    target: IpuTarget = field(default_factory=IpuTarget.bow)
    matmul_proportion: float | tuple[float, ...] = 0.6
    strict: bool = True
    stages: Stages | None = field(default=None, hash=False)
    schedule: str | None = None
    recompute: bool | Sequence[str] = False
    recompute_last_stage: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.target, IpuTarget):
            self._refuse("target", "pass an IpuTarget, for example IpuTarget.bow()")
        given = self.matmul_proportion
        shares = (given,) if isinstance(given, int | float) else tuple(given)
        self._settle("matmul_proportion", given if isinstance(given, int | float) else shares)
        if not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
            self._refuse("matmul_proportion", "it is a share of a tile's memory, 0 to 1, or one for each IPU")
        self._settle("stages", checked_stages(self.stages))
        self._settle("recompute", checked_recompute(self.recompute))
        self._settle("schedule", checked_schedule(self.schedule))

    def proportion_of(self, ipu: int) -> float:
        """Share of a tile's memory that a dense product may take on an IPU of a replica.

        Raises:
            ValueError: there is a share for each IPU, and none for this one.

        Example:
            >>> Options(matmul_proportion=0.25).proportion_of(7)
            0.25
        """
        if not isinstance(self.matmul_proportion, tuple):
            return self.matmul_proportion
        if ipu >= len(self.matmul_proportion):
            raise ValueError(
                f"Options.matmul_proportion has shares for {len(self.matmul_proportion)} IPUs, but IPU {ipu} is in "
                "use. Give one for each, or one number for all."
            )
        return self.matmul_proportion[ipu]

    def __repr__(self) -> str:
        """What differs from the default, as it would be typed."""
        values = {
            f.name: getattr(self, f.name) for f in fields(self) if f.default not in (MISSING, getattr(self, f.name))
        }
        shown = {name: repr(value.value if isinstance(value, Enum) else value) for name, value in values.items()}
        shown |= {} if self.target == IpuTarget.bow() else {"target": repr(self.target)}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def _repr_html_(self) -> str:
        shown = {f.name: str(getattr(self, f.name)) for f in fields(self)}
        with pd.option_context("display.max_colwidth", None):
            return pd.Series(shown, name=type(self).__name__).to_frame().to_html()
