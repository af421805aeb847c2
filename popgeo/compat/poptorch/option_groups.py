"""The groups of options inside `poptorch.Options`, setter by setter: what each becomes, and why."""

import os
from operator import attrgetter
from typing import Any, ClassVar

import torch

from popgeo.compat.account import honoured, ignored, recorded
from popgeo.compat.poptorch.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from popgeo.compat.poptorch.errors import check, said
from popgeo.compat.poptorch.option_group import OptionGroup, setter, whole_number, zero_or_one

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

    @setter("popart:partialsTypeMatMuls", "ignored", "matrix products are added up as PyTorch adds them up here")
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

    @setter("accumulation_and_replication_reduction_type", "honoured")
    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Any:
        """Whether gradients of micro-batches and replicas are averaged (`Mean`) or summed (`Sum`)."""
        known = isinstance(reduction_type, ReductionType) and reduction_type is not ReductionType.NoReduction
        check(known, said("accumulationAndReplicationReductionType"))

    accumulationReductionType = accumulationAndReplicationReductionType  # its name before PopTorch 2.1

    @setter("meanAccumulationAndReplicationReductionStrategy", "ignored", "sums are divided at the end")
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


_WHERE = "tensors lie in this computer's memory; the modelled machine keeps them in its tiles"
_PARTS = "the modelled replicas keep a part each of the optimizer's state, and so do processes; results are the same"


class TensorLocationSettings(OptionGroup):
    """Where tensors of one kind lie.

    Example:
        >>> TensorLocationSettings().useOnChipStorage(False).toDict()
        {'onChip': 0}
    """

    def useOnChipStorage(self, use: bool | None = True) -> "TensorLocationSettings":
        """On the chip or in the machine's outer memory; None leaves it open."""
        if use is None:
            self.deleteIfExists("onChip")
        else:
            self.createOrSet(onChip=zero_or_one("useOnChipStorage", use))
        return self


def _location(name: str, location: Any) -> dict[str, Any]:
    """What settings say, once the account has said what becomes of them."""
    known = isinstance(location, TensorLocationSettings)
    check(known, f"The location is {location!r}; it must be poptorch.TensorLocationSettings().")
    told: dict[str, Any] = location.toDict()
    if name == "setOptimizerLocation" and told.get("useReplicatedTensorSharding"):
        recorded(f"Options.TensorLocations.{name}(useReplicatedTensorSharding)", _PARTS)
    else:
        ignored(f"Options.TensorLocations.{name}", _WHERE)
    return told


class TensorLocationOptions(OptionGroup):
    """Where activations, weights, optimizer state and accumulators lie."""

    _asked = "Options.TensorLocations"
    _kinds: ClassVar = {"location": (TensorLocationSettings, _location)}

    @setter("numIOTiles", "recorded", "the modelled machine computes with that many tiles less")
    def numIOTiles(self, num_tiles: int) -> Any:
        """Tiles kept for transfers."""
        is_taken = isinstance(num_tiles, int) and 32 <= num_tiles <= 192 and num_tiles % 2 == 0
        check(is_taken, "numIOTiles must be an even number between 32 and 192.")
