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
    """The choices for a compiled model: how it runs and on which machine. Change one with `dataclasses.replace`.

    The options of a run, from `device_iterations` to `show_progress`, come from `popgeo.StepOptions`.

    Attributes:
        target: The machine that the step is compiled for.
        matmul_proportion: Share of a tile's memory that a dense product may take while it runs, one number for all IPUs
            or one for each; PopTorch's `setAvailableMemoryProportion`. A smaller share cuts a product into more parts,
            which run one after the other. It changes the account and no result.
        strict: Whether to raise if the step needs more memory than a tile of the target has. With False the step runs,
            and the report shows the excess.
        stages: The stages that each micro-batch runs in, over several IPUs like the target. A number such as `4` asks
            for four stages, cut where cycles and memory are even. `[0, 3, 3]` are the numbers of repeated layers on
            each IPU. `{"layers.3": 1}` maps each layer that begins a stage to its IPU. `"blocks"` takes the blocks that
            the model names with `Block` or `BeginBlock`, and begins a stage wherever the IPU changes; `"each block"`
            makes a stage of every block; a list of `Stage` groups blocks. With None, a model whose blocks name several
            IPUs is cut by them, and any other model runs as a whole on one IPU. Each stage is on one IPU, so
            `target.num_ipus` stays 1. Results equal the results of the whole step bit by bit, with one exception: the
            whole step may compute a sum in one pass with earlier operations. If some of these are in another stage, the
            last bit of float32 may differ.
        schedule: The order in which stages take micro-batches, a name of `popgeo.ipu.Schedule`. None leaves the choice
            to `popgeo.ipu.pipeline`.
        recompute: Whether to keep only the inputs of a stage for each micro-batch, and to repeat its forward pass
            before its backward pass. A list of layers keeps the results of these layers, too. It needs stages, at least
            one. The operations between the last kept result and the loss are not repeated, as in PopART and TensorFlow.
        recompute_last_stage: Whether to repeat these operations as well, so that the last stage keeps less.

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
        """Return the share of a tile's memory that a dense product may take on an IPU of a replica.

        Raises:
            ValueError: the options have a share for each IPU, and none for this IPU.

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
        """Return the options that differ from their defaults, as Python code."""
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
