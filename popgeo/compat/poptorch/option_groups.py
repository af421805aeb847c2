"""The groups of options inside `poptorch.Options`, setter by setter: what each becomes, and why."""

import os
from operator import attrgetter
from typing import Any

import torch

from popgeo.compat.account import honoured, ignored
from popgeo.compat.poptorch.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from popgeo.compat.poptorch.errors import check
from popgeo.compat.poptorch.option_group import HONOURED, IGNORED, OptionGroup, setter, whole_number

_COMPILER = "it sets Graphcore's own compiler, which is not used here"


class PopartOptions(OptionGroup):
    """Settings of PopART by their own names, most of which mean nothing here.

    Example:
        >>> PopartOptions().set("autoRecomputation", 3).options["autoRecomputation"]
        3
    """

    def __init__(self) -> None:
        super().__init__(instrumentWithHardwareCycleCounter=False, rearrangeAnchorsOnHost=False)

    options = property(attrgetter("_values"), doc="All settings, by name.")

    def set(self, key: str, value: Any) -> "PopartOptions":  # type: ignore[override]  # PopTorch's own way round
        """Changes one setting, whether or not PopART has it."""
        ignored(f"Options._Popart.set({key!r})", _COMPILER)
        return self.keep(key, value)

    def keep(self, key: str, value: Any) -> "PopartOptions":
        """Changes one setting of which another option takes account."""
        self.checkIsFrozen()
        self._values[key] = value
        return self

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> "PopartOptions":
        """Chooses the rewritings of PopART's compiler."""
        check(isinstance(patterns, dict), f"Patterns are {patterns!r}; they must be a dictionary.")
        ignored("Options._Popart.setPatterns", _COMPILER)
        return self.keep("patterns_level", whole_number("level", level)).keep("patterns", patterns)

    def setEngineOptions(self, engine_options: dict[str, str]) -> "PopartOptions":
        """Settings of Poplar's engine."""
        return self.set("engineOptions", engine_options)


class JitOptions(OptionGroup):
    """How PyTorch's tracer is used; models are captured here in one way only."""

    _asked = "Options.Jit"


class PrecisionOptions(OptionGroup):
    """The types that are computed in, and whether NaN stops the program."""

    _asked = "Options.Precision"

    def __init__(self, popart: PopartOptions) -> None:
        super().__init__(half_float_casting=HalfFloatCastingBehavior.Default)
        self._popart = popart

    @setter("popart:partialsTypeMatMuls", IGNORED, "matrix products are added up as PyTorch adds them up here")
    def setPartialsType(self, dtype: torch.dtype) -> Any:
        """The type in which matrix products are added up: `torch.float` or `torch.half`."""
        names = {torch.float32: "float", torch.float16: "half"}
        check(dtype in names, f"setPartialsType got {dtype}; it must be torch.float or torch.half.")
        self._keep("popart:convolutionOptions", {"partialsType": names[dtype]})
        return names[dtype]


class TrainingOptions(OptionGroup):
    """How gradients become an update.

    Example:
        >>> TrainingOptions(PopartOptions()).gradientAccumulation(4).gradient_accumulation
        4
    """

    _asked = "Options.Training"

    def __init__(self, popart: PopartOptions) -> None:
        super().__init__(
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )
        self._popart = popart

    @setter("accumulation_and_replication_reduction_type", HONOURED)
    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Any:
        """Whether gradients of micro-batches and replicas are averaged (`Mean`) or summed (`Sum`)."""
        check(
            isinstance(reduction_type, ReductionType) and reduction_type is not ReductionType.NoReduction,
            "accumulationAndReplicationReductionType must be set to poptorch.ReductionType.Mean or "
            "poptorch.ReductionType.Sum",
        )

    accumulationReductionType = accumulationAndReplicationReductionType  # its name before PopTorch 2.1

    @setter("meanAccumulationAndReplicationReductionStrategy", IGNORED, "sums are divided at the end")
    def setMeanAccumulationAndReplicationReductionStrategy(self, mean_reduction_strategy: MeanReductionStrategy) -> Any:
        """When gradients are divided by their number; `Running` where an optimizer joins them in float16."""


class DistributedOptions(OptionGroup):
    """Which of several processes this one is: each loads its own part of the data."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> "DistributedOptions":
        """One process, whatever the environment says."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> "DistributedOptions":
        """Reads both numbers from environment variables."""
        number, process = os.environ.get(var_num_processes, "1"), os.environ.get(var_process_id, "0")
        return self.configureProcessId(int(process), int(number))

    def configureProcessId(self, process_id: int, num_processes: int) -> "DistributedOptions":
        """This process's number and how many there are."""
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        if num_processes > 1:
            honoured("Options.Distributed", "poptorch.DataLoader loads this process's part of the data")
        return self

    processId = property(attrgetter("distributed_process_id"), doc="This process's number.")
    numProcesses = property(attrgetter("num_distributed_processes"), doc="How many processes there are.")
