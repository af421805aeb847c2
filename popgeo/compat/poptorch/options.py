"""`poptorch.Options`: everything that a program chooses about how a model is compiled and run."""

import copy
import os
from typing import Any

import torch

from popgeo.compat.poptorch import enums
from popgeo.compat.poptorch.errors import check
from popgeo.compat.poptorch.option_group import at_least_one, honoured, recorded
from popgeo.compat.poptorch.option_groups import (
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TrainingOptions,
)
from popgeo.compat.poptorch.options_text import ConfigFileError as ConfigFileError
from popgeo.compat.poptorch.options_text import apply_file, apply_json
from popgeo.compat.poptorch.options_without_meaning import OptionsWithoutMeaning
from popgeo.compat.poptorch.tensor_locations import TensorLocationSettings as TensorLocationSettings
from popgeo.compat.poptorch.tensor_locations import _TensorLocationOptions


class Options(OptionsWithoutMeaning):
    """How a model is compiled and run: setters return the options, so that they chain; a model in use freezes them.

    Example:
        >>> options = Options().deviceIterations(4).replicationFactor(2)
        >>> options.Training.gradientAccumulation(8).gradient_accumulation
        8
        >>> options.device_iterations, options.replication_factor
        (4, 2)
    """

    def __init__(self) -> None:
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            input_group_type=enums.CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            output_mode=enums.OutputMode.Default.value,
            output_return_period=1,
            connection_type=enums.ConnectionType.Always.value,
            updatable_named_buffers=[],
        )
        self._jit, self._distributed = _JitOptions(), _DistributedOptions()
        self._precision, self._training = _PrecisionOptions(self._popart), _TrainingOptions(self._popart)
        self._tensor_locations = _TensorLocationOptions()
        self._show_compilation_progress_bar = True
        if folder := os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(folder)
        if text := os.environ.get("POPTORCH_DEFAULT_OPTIONS"):
            self.from_json(text)

    @property
    def Training(self) -> _TrainingOptions:
        """How gradients become an update."""
        return self._training

    @property
    def Precision(self) -> _PrecisionOptions:
        """Types, and what becomes of NaN."""
        return self._precision

    GraphProcessing = Precision  # its name before PopTorch 2.0

    @property
    def Distributed(self) -> _DistributedOptions:
        """Which of several processes this one is."""
        return self._distributed

    @property
    def Jit(self) -> _JitOptions:
        """How the model is traced."""
        return self._jit

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Where tensors lie on the machine."""
        return self._tensor_locations

    @property
    def _Popart(self) -> _PopartOptions:
        """Settings of PopART by their own names."""
        return self._popart

    Popart = _Popart  # its name before PopTorch 2.0

    def loadFromFile(self, filepath: str) -> "Options":
        """Sets what a file asks for, one call a line without `options.` in front; nothing else in it is run.

        Raises:
            ConfigFileError: a line is no such call; the message names it.
        """
        apply_file(self, filepath)
        return self

    def from_json(self, text: str) -> "Options":
        """Sets what a dictionary in JSON asks for: names of setters, with one argument or a list of them."""
        apply_json(self, text)
        return self

    def clone(self) -> "Options":
        """A copy that nothing freezes yet."""
        return copy.deepcopy(self)

    def toDict(self) -> dict[str, Any]:
        """All options in one dictionary.

        Raises:
            AssertionError: no output mode has been chosen; it is a ValueError too.
        """
        check(not self.defaultOutputMode(), "An output mode must be picked before serialisation")
        groups = (self._popart, self._training, self._precision, self._distributed, self._tensor_locations)
        return {**self._values, **{name: value for group in groups for name, value in group.toDict().items()}}

    def deviceIterations(self, device_iterations: int) -> "Options":
        """The steps that one call runs."""
        self.set(device_iterations=at_least_one("deviceIterations", device_iterations))
        honoured("Options.deviceIterations")
        return self

    def replicationFactor(self, replication_factor: int) -> "Options":
        """Data-parallel copies of the model."""
        self.set(replication_factor=at_least_one("replicationFactor", replication_factor))
        honoured("Options.replicationFactor", "one process runs the replicas one after the other")
        return self

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: enums.CommGroupType) -> "Options":
        """Lets groups of replicas share their inputs.

        Raises:
            AssertionError: a group of all replicas, or of no size; it is a ValueError too.
        """
        check(
            input_group_type in (enums.CommGroupType.Consecutive, enums.CommGroupType.Orthogonal),
            f"The input group type is {input_group_type!r}; it must be Consecutive or Orthogonal.",
        )
        size = at_least_one("inputReplicaGrouping", input_group_size)
        self.set(input_group_size=size, input_group_type=input_group_type)
        honoured("Options.inputReplicaGrouping")
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> "Options":
        """False lets every replica keep buffers of its own, which is needed where the model changes them."""
        self.set(broadcast_buffers=broadcast_buffers)
        honoured("Options.broadcastBuffers")
        return self

    def updatableNamedBuffers(self, buffers: list[str]) -> "Options":
        """The buffers that `copyNamedBuffersToDevice` brings up to date."""
        self.set(updatable_named_buffers=list(buffers))
        honoured("Options.updatableNamedBuffers")
        return self

    def outputMode(self, output_mode: enums.OutputMode, output_return_period: int | None = None) -> "Options":
        """Which of the steps of a call return their results.

        Raises:
            AssertionError: `EveryN` without a positive period, or no member of `poptorch.OutputMode`; a ValueError too.
        """
        check(isinstance(output_mode, enums.OutputMode), f"The output mode is {output_mode!r}, no poptorch.OutputMode.")
        every_n = output_mode is enums.OutputMode.EveryN
        check(
            not every_n or (output_return_period or 0) > 0,
            "EveryN output mode must have output_return_period set to valid positive integer",
        )
        period = output_return_period if every_n else None
        self.set(output_mode=output_mode.value, output_return_period=period or 1)
        honoured("Options.outputMode")
        return self

    def anchorMode(self, anchor_mode: enums.OutputMode, anchor_return_period: int | None = None) -> "Options":
        """`outputMode` by its name before PopTorch 2.4."""
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultOutputMode(self) -> bool:
        """Whether no output mode has been chosen."""
        return self.output_mode == enums.OutputMode.Default

    defaultAnchorMode = defaultOutputMode

    def randomSeed(self, random_seed: int) -> "Options":
        """Where random numbers start, also torch's own."""
        check(isinstance(random_seed, int), f"The random seed is {random_seed!r}; it must be an integer.")
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(random_seed)
        honoured("Options.randomSeed", "the numbers drawn are PyTorch's, not the machine's")
        return self

    def enableExecutableCaching(self, path: str | None) -> "Options":
        """Keeps compiled steps in a folder; None keeps none."""
        if path is not None:
            self._popart.keep("cachePath", path)
        self._popart.keep("enableEngineCaching", path is not None)
        honoured("Options.enableExecutableCaching", "captured steps are kept there")
        return self

    def showCompilationProgressBar(self, show: bool = True) -> "Options":
        """A progress bar while a model is compiled."""
        self._show_compilation_progress_bar = show
        honoured("Options.showCompilationProgressBar")
        return self

    def logCycleCount(self, log_cycle_count: bool) -> "Options":
        """Lets `cycleCount()` tell what a call costs."""
        self._popart.keep("instrumentWithHardwareCycleCounter", log_cycle_count)
        recorded("Options.logCycleCount", "cycles are those of the modelled machine")
        return self

    def connectionType(self, connection_type: enums.ConnectionType) -> "Options":
        """When a machine is taken hold of; with `Never` a model can be compiled but not called."""
        check(
            isinstance(connection_type, enums.ConnectionType),
            f"The connection type is {connection_type!r}, no poptorch.ConnectionType.",
        )
        self.set(connection_type=connection_type.value)
        honoured("Options.connectionType", "with Never a model is compiled and not called")
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> "Options":
        """Compiles for a machine that is not there: 1 is the first generation, 2 the second."""
        self.connectionType(enums.ConnectionType.Never)
        self.createOrSet(ipu_version=ipu_version)
        recorded("Options.useOfflineIpuTarget", "the modelled machine is of that generation")
        return self
