"""The groups of options inside `poptorch.Options`: training, precision, processes, PopART and PyTorch's tracer."""

import os
from typing import Any

import torch

from popgeo.compat.poptorch import enums
from popgeo.compat.poptorch.errors import check
from popgeo.compat.poptorch.option_group import OptionGroup, at_least_one, honoured, ignored

_COMPILER = "it sets Graphcore's own compiler, which is not used here"


class _PopartOptions(OptionGroup):
    """Settings of PopART by their own names, most of which mean nothing here.

    Example:
        >>> _PopartOptions().set("autoRecomputation", 3).options["autoRecomputation"]
        3
    """

    def __init__(self) -> None:
        super().__init__(instrumentWithHardwareCycleCounter=False, rearrangeAnchorsOnHost=False)

    @property
    def options(self) -> dict[str, Any]:
        """All settings, by name."""
        return self._values

    def set(self, key: str, value: Any) -> "_PopartOptions":  # type: ignore[override]  # PopTorch's own way round
        """Changes one setting, whether or not PopART has it."""
        ignored(f"Options._Popart.set({key!r})", _COMPILER)
        return self.keep(key, value)

    def keep(self, key: str, value: Any) -> "_PopartOptions":
        """Changes one setting of which another option takes account."""
        self.checkIsFrozen()
        self._values[key] = value
        return self

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> "_PopartOptions":
        """Chooses the rewritings of PopART's compiler."""
        check(isinstance(level, int), f"The level of patterns is {level!r}; it must be an integer.")
        check(isinstance(patterns, dict), f"Patterns are {patterns!r}; they must be a dictionary.")
        ignored("Options._Popart.setPatterns", _COMPILER)
        return self.keep("patterns_level", level).keep("patterns", patterns)

    def setEngineOptions(self, engine_options: dict[str, str]) -> "_PopartOptions":
        """Settings of Poplar's engine."""
        return self.set("engineOptions", engine_options)


class _JitOptions(OptionGroup):
    """How PyTorch's tracer is used; models are captured here in one way only."""

    def __init__(self) -> None:
        super().__init__(trace_model=True)

    def traceModel(self, trace_model: bool) -> "_JitOptions":
        """Chooses between tracing and PyTorch's dispatcher."""
        ignored("Options.Jit.traceModel", "models are captured through PyTorch's dispatcher in any case")
        self.set(trace_model=trace_model)
        return self


class _PrecisionOptions(OptionGroup):
    """The types that are computed in, and whether NaN stops the program."""

    def __init__(self, popart: _PopartOptions) -> None:
        super().__init__(
            autocast_enabled=True,
            half_float_casting=enums.HalfFloatCastingBehavior.Default,
            running_statistics_always_float=True,
        )
        self._popart_options = popart

    def enableFloatingPointExceptions(self, enabled: bool) -> "_PrecisionOptions":
        """Stops at the first operation whose result holds NaN or infinity."""
        check(isinstance(enabled, bool), "enableFloatingPointExceptions needs to be set to a bool")
        honoured("Options.Precision.enableFloatingPointExceptions", "the operation and the model's line are named")
        self._popart_options.keep("enableFloatingPointChecks", enabled)
        return self

    def enableStochasticRounding(self, enabled: bool) -> "_PrecisionOptions":
        """Rounds updated float16 weights at random; all other results are rounded to the nearest number."""
        honoured("Options.Precision.enableStochasticRounding", "of updated float16 weights; all else rounds to nearest")
        self._popart_options.keep("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> "_PrecisionOptions":
        """The type in which matrix products are added up.

        Raises:
            ValueError: neither float32 nor float16.
        """
        if dtype not in (torch.float32, torch.float16):
            raise ValueError(f"setPartialsType got {dtype}; it must be torch.float or torch.half.")
        ignored("Options.Precision.setPartialsType", "matrix products are added up as PyTorch adds them up here")
        name = "float" if dtype == torch.float32 else "half"
        self._popart_options.keep("partialsTypeMatMuls", name).keep("convolutionOptions", {"partialsType": name})
        return self

    def halfFloatCasting(self, half_float_casting: enums.HalfFloatCastingBehavior) -> "_PrecisionOptions":
        """What an operation of float16 and float32 computes in.

        Raises:
            ValueError: no member of `poptorch.HalfFloatCastingBehavior`.
        """
        if not isinstance(half_float_casting, enums.HalfFloatCastingBehavior):
            raise ValueError("halfFloatCasting must be set to a member of poptorch.HalfFloatCastingBehavior")
        if half_float_casting is enums.HalfFloatCastingBehavior.HalfUpcastToFloat:
            honoured("Options.Precision.halfFloatCasting(HalfUpcastToFloat)", "as in PyTorch")
        else:
            ignored("Options.Precision.halfFloatCasting", "float16 and float32 give float32, as in PyTorch")
        self.set(half_float_casting=half_float_casting)
        return self

    def autocastEnabled(self, autocast_enabled: bool) -> "_PrecisionOptions":
        """Whether `poptorch.autocast` may change types.

        Raises:
            ValueError: no bool.
        """
        if not isinstance(autocast_enabled, bool):
            raise ValueError("autocastEnabled must be set to either True or False")
        ignored("Options.Precision.autocastEnabled", "types stay as the model has them")
        self.set(autocast_enabled=autocast_enabled)
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> "_PrecisionOptions":
        """Keeps the statistics of batch normalisation in float32.

        Raises:
            ValueError: no bool.
        """
        if not isinstance(value, bool):
            raise ValueError("runningStatisticsAlwaysFloat needs to be set to a bool")
        ignored("Options.Precision.runningStatisticsAlwaysFloat", "buffers keep the type that the module gives them")
        self.set(running_statistics_always_float=value)
        return self

    runningVarianceAlwaysFloat = runningStatisticsAlwaysFloat  # its name before PopTorch 2.1


class _TrainingOptions(OptionGroup):
    """How gradients become an update.

    Example:
        >>> _TrainingOptions(_PopartOptions()).gradientAccumulation(4).gradient_accumulation
        4
    """

    def __init__(self, popart: _PopartOptions) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=enums.ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=enums.MeanReductionStrategy.Post,
        )
        self._strategy_is_chosen = False
        self._popart_options = popart

    def gradientAccumulation(self, gradient_accumulation: int) -> "_TrainingOptions":
        """The micro-batches whose gradients one update joins."""
        self.set(gradient_accumulation=at_least_one("gradientAccumulation", gradient_accumulation))
        honoured("Options.Training.gradientAccumulation")
        return self

    def accumulationAndReplicationReductionType(self, reduction_type: enums.ReductionType) -> "_TrainingOptions":
        """Whether gradients of micro-batches and replicas are averaged or summed.

        Raises:
            ValueError: neither `Mean` nor `Sum`.
        """
        if reduction_type not in (enums.ReductionType.Mean, enums.ReductionType.Sum) or not isinstance(
            reduction_type, enums.ReductionType
        ):
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to poptorch.ReductionType.Mean or "
                "poptorch.ReductionType.Sum"
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        honoured("Options.Training.accumulationAndReplicationReductionType")
        return self

    accumulationReductionType = accumulationAndReplicationReductionType  # its name before PopTorch 2.1

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: enums.MeanReductionStrategy
    ) -> "_TrainingOptions":
        """When gradients are divided by their number."""
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        self._strategy_is_chosen = True
        ignored("Options.Training.setMeanAccumulationAndReplicationReductionStrategy", "sums are divided at the end")
        return self

    def setAutomaticLossScaling(self, enabled: bool) -> "_TrainingOptions":
        """Lets the scale of the loss follow the gradients, from the optimizer's own scale or else from 65,536."""
        because = "by the rule of torch.amp.GradScaler: updates that overflow are left out"
        honoured("Options.Training.setAutomaticLossScaling", because)
        self._popart_options.keep("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> "_TrainingOptions":
        """Lays convolutions out from different tiles."""
        ignored("Options.Training.setConvolutionDithering", _COMPILER)
        self._popart_options.keep("convolutionOptions", {"enableConvDithering": enabled})
        return self


class _DistributedOptions(OptionGroup):
    """Which of several processes this one is: each loads its own part of the data."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> "_DistributedOptions":
        """One process, whatever the environment says."""
        self.set(num_distributed_processes=1, distributed_process_id=0)
        return self

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> "_DistributedOptions":
        """Reads both numbers from environment variables."""
        number, process = os.environ.get(var_num_processes, "1"), os.environ.get(var_process_id, "0")
        return self.configureProcessId(int(process), int(number))

    def configureProcessId(self, process_id: int, num_processes: int) -> "_DistributedOptions":
        """This process's number and how many there are."""
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        if num_processes > 1:
            honoured("Options.Distributed", "poptorch.DataLoader loads this process's part of the data")
        return self

    @property
    def processId(self) -> int:
        """This process's number."""
        return self.distributed_process_id

    @property
    def numProcesses(self) -> int:
        """How many processes there are."""
        return self.num_distributed_processes
