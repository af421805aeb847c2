"""Groups of options inside `poptorch.Options`."""

import os
from operator import attrgetter
from typing import Any, ClassVar

import torch

from popgeo.compat.account import honoured, ignored, recorded
from popgeo.compat.poptorch.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from popgeo.compat.poptorch.errors import check, said
from popgeo.compat.poptorch.option_group import OptionGroup, require_kind, setter, zero_or_one

_COMPILER = "it configures Graphcore's compiler, which is not used here"


class PopartOptions(OptionGroup):
    """Settings of PopART by PopART's names. Most of them have no effect here.

    Example:
        >>> PopartOptions().set("autoRecomputation", 3).options["autoRecomputation"]
        3
    """

    def __init__(self) -> None:
        super().__init__(instrumentWithHardwareCycleCounter=False, rearrangeAnchorsOnHost=False)

    options = property(attrgetter("_values"), doc="All settings, by name.")

    def set(self, key: str, value: Any) -> "PopartOptions":  # type: ignore[override]  # PopTorch's signature
        """Set one setting, whether or not PopART has it, and add it to the account."""
        ignored(f"Options._Popart.set({key!r})", _COMPILER)
        return self.keep(key, value)

    def keep(self, key: str, value: Any) -> "PopartOptions":
        """Set one setting without an entry in the account, because another option has set it."""
        self.checkIsFrozen()
        self._values[key] = value
        return self

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> "PopartOptions":
        """Choose the rewrite patterns of PopART's compiler."""
        check(isinstance(patterns, dict), f"Patterns are {patterns!r}; they must be a dictionary.")
        ignored("Options._Popart.setPatterns", _COMPILER)
        return self.keep("patterns_level", require_kind(int, "level", level)).keep("patterns", patterns)

    def setEngineOptions(self, engine_options: dict[str, str]) -> "PopartOptions":
        """Set the settings of Poplar's engine."""
        return self.set("engineOptions", engine_options)


class JitOptions(OptionGroup):
    """Options of PyTorch's tracer. Models are captured in one way only, so they have no effect."""

    _asked = "Options.Jit"


class PrecisionOptions(OptionGroup):
    """Types of computations, and errors for NaN."""

    _asked = "Options.Precision"

    def __init__(self, popart: PopartOptions) -> None:
        super().__init__(half_float_casting=HalfFloatCastingBehavior.Default)
        self._popart = popart

    @setter("popart:partialsTypeMatMuls", "ignored", "matrix products add up as in PyTorch")
    def setPartialsType(self, dtype: torch.dtype) -> Any:
        """Set the type of sums in matrix products: `torch.float` or `torch.half`."""
        names = {torch.float32: "float", torch.float16: "half"}
        check(dtype in names, f"setPartialsType got {dtype}; it must be torch.float or torch.half.")
        self._keep("popart:convolutionOptions", {"partialsType": names[dtype]})
        return names[dtype]


class TrainingOptions(OptionGroup):
    """Options of the update: accumulation and reduction of gradients.

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
        """Choose whether gradients of micro-batches and replicas are averaged (`Mean`) or summed (`Sum`)."""
        known = isinstance(reduction_type, ReductionType) and reduction_type is not ReductionType.NoReduction
        check(known, said("accumulationAndReplicationReductionType"))

    accumulationReductionType = accumulationAndReplicationReductionType  # name before PopTorch 2.1

    @setter("meanAccumulationAndReplicationReductionStrategy", "ignored", "sums are divided at the end")
    def setMeanAccumulationAndReplicationReductionStrategy(self, mean_reduction_strategy: MeanReductionStrategy) -> Any:
        """Choose when to divide gradients by their number. `Running` is the default for sums in float16."""


class DistributedOptions(OptionGroup):
    """Number of this process among several processes. Each process loads its part of the data."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> "DistributedOptions":
        """Use one process, whatever the environment variables say."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> "DistributedOptions":
        """Read both numbers from environment variables."""
        number, process = os.environ.get(var_num_processes, "1"), os.environ.get(var_process_id, "0")
        return self.configureProcessId(int(process), int(number))

    def configureProcessId(self, process_id: int, num_processes: int) -> "DistributedOptions":
        """Set the number of this process and the number of processes."""
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        if num_processes > 1:
            honoured("Options.Distributed", "poptorch.DataLoader loads the part of the data for this process")
        return self

    processId = property(attrgetter("distributed_process_id"), doc="Number of this process.")
    numProcesses = property(attrgetter("num_distributed_processes"), doc="Number of processes.")


_WHERE = "tensors are in this computer's memory; the modelled machine keeps them in its tiles"
_PARTS = "each modelled replica and each process keeps a part of the optimizer's state; results are the same"


class TensorLocationSettings(OptionGroup):
    """Location of one kind of tensors on the machine.

    Example:
        >>> TensorLocationSettings().useOnChipStorage(False).toDict()
        {'onChip': 0}
    """

    def useOnChipStorage(self, use: bool | None = True) -> "TensorLocationSettings":
        """Choose the chip's memory or the external memory. None: no choice."""
        if use is None:
            self.deleteIfExists("onChip")
        else:
            self.createOrSet(onChip=zero_or_one("useOnChipStorage", use))
        return self


def _location(name: str, location: Any) -> dict[str, Any]:
    """Return the settings of a location, and add them to the account."""
    known = isinstance(location, TensorLocationSettings)
    check(known, f"The location is {location!r}; it must be poptorch.TensorLocationSettings().")
    settings: dict[str, Any] = location.toDict()
    if name == "setOptimizerLocation" and settings.get("useReplicatedTensorSharding"):
        recorded(f"Options.TensorLocations.{name}(useReplicatedTensorSharding)", _PARTS)
    else:
        ignored(f"Options.TensorLocations.{name}", _WHERE)
    return settings


class TensorLocationOptions(OptionGroup):
    """Locations of activations, weights, optimizer state and accumulators."""

    _asked = "Options.TensorLocations"
    _kinds: ClassVar = {"location": (TensorLocationSettings, _location)}

    @setter("numIOTiles", "recorded", "the modelled machine computes with fewer tiles by this number")
    def numIOTiles(self, num_tiles: int) -> Any:
        """Reserve tiles for transfers."""
        is_taken = isinstance(num_tiles, int) and 32 <= num_tiles <= 192 and num_tiles % 2 == 0
        check(is_taken, "numIOTiles must be an even number between 32 and 192.")
