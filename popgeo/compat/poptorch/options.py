"""`poptorch.Options`: everything that a program chooses about how a model is compiled and run."""

import copy
import os
from typing import Any

import torch

from popgeo.compat.poptorch import enums
from popgeo.compat.poptorch.errors import check
from popgeo.compat.poptorch.option_group import OptionGroup, at_least_one, honoured, ignored, recorded
from popgeo.compat.poptorch.option_groups import (
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TrainingOptions,
)
from popgeo.compat.poptorch.options_text import ConfigFileError as ConfigFileError
from popgeo.compat.poptorch.options_text import apply_file, apply_json
from popgeo.compat.poptorch.tensor_locations import TensorLocationSettings as TensorLocationSettings
from popgeo.compat.poptorch.tensor_locations import _TensorLocationOptions

_NO_MACHINE = "no IPU is taken hold of"


class Options(OptionGroup):
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
            log_dir=".",
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=enums.OutputMode.Default.value,
            output_return_period=1,
            connection_type=enums.ConnectionType.Always.value,
            sync_pattern=enums.SyncPattern.Full.value,
            available_memory_proportion={},
            updatable_named_buffers=[],
        )
        self._popart = _PopartOptions()
        self._jit, self._distributed = _JitOptions(), _DistributedOptions()
        self._precision, self._training = _PrecisionOptions(self._popart), _TrainingOptions(self._popart)
        self._tensor_locations = _TensorLocationOptions()
        self._execution_strategy: Any = None
        self._show_compilation_progress_bar = True
        self._relax_optimizer_checks = False
        self._module_namescope_enabled = True
        self._source_location_excludes: list[str] = []
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
        groups = (self._popart, self._training, self._distributed, self._tensor_locations)
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

    def setExecutionStrategy(self, strategy: Any) -> "Options":
        """How the model's blocks are divided over IPUs.

        Raises:
            AssertionError: no execution strategy of PopTorch; it is a ValueError too.
        """
        kinds = [kind.__name__ for kind in type(strategy).__mro__]
        check(
            any(kind.endswith("Execution") for kind in kinds),
            f"The execution strategy is {strategy!r}; pass one of PopTorch's, such as poptorch.PipelinedExecution().",
        )
        self.checkIsFrozen()
        self._execution_strategy = strategy
        ignored("Options.setExecutionStrategy", "the model runs as one piece, and is modelled on one IPU a replica")
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> "Options":
        """The part of an IPU's memory that its operations may take for themselves, by IPU."""
        for key in available_memory_proportion:
            check(
                key.startswith("IPU") and key[3:].isdigit(),
                'Available memory proportions are expected to be in a dictionary of {"IPU0": 0.5} where the 0 in IPU '
                f"is the index of the IPU. Invalid key: {key}",
            )
        proportions = {int(key[3:]): part for key, part in available_memory_proportion.items()}
        self.set(available_memory_proportion=proportions)
        ignored("Options.setAvailableMemoryProportion", "plans of the modelled machine are chosen by their cycles")
        return self

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: enums.OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> None:
        """Marks a tensor inside the graph to be read after a call."""
        self.checkIsFrozen()
        period = output_return_period if output_mode is enums.OutputMode.EveryN else 1
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]
        ignored("Options.anchorTensor", "names of PopART's tensors are not known here; return the tensor instead")

    def enableSyntheticData(self, enabled: bool) -> "Options":
        """Lets the machine make up its inputs."""
        self._popart.keep("syntheticDataMode", 2 if enabled else 0)
        ignored("Options.enableSyntheticData", "a call computes with the data that it is given")
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> "Options":
        """Writes a report of Graphcore's tools."""
        engine = dict(self._popart.options.get("engineOptions", {}))
        engine |= {"autoReport.directory": profile_dir or ".", "autoReport.all": "true"}
        self._popart.keep("engineOptions", engine | {"debug.allowOutOfMemory": "true"})
        ignored("Options.enableProfiling", "the account of the modelled machine is executor.report")
        return self

    def useIpuModel(self, use_model: bool) -> "Options":
        """Graphcore's own simulator instead of a machine."""
        self.createOrSet(use_model=use_model)
        ignored("Options.useIpuModel", "models always run on this computer")
        return self

    def useIpuId(self, ipu_id: int) -> "Options":
        """One of the machines by its number."""
        check(isinstance(ipu_id, int), f"The id of an IPU is {ipu_id!r}; it must be an integer.")
        self.createOrSet(ipu_id=ipu_id)
        ignored("Options.useIpuId", _NO_MACHINE)
        return self

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> "Options":
        """Takes a power of two of IPUs."""
        self.set(auto_round_num_ipus=auto_round_num_ipus)
        ignored("Options.autoRoundNumIPUs", _NO_MACHINE)
        return self

    def syncPattern(self, sync_pattern: enums.SyncPattern) -> "Options":
        """Which IPUs wait for each other."""
        check(isinstance(sync_pattern, enums.SyncPattern), f"The sync pattern is {sync_pattern!r}.")
        self.set(sync_pattern=sync_pattern.value)
        ignored("Options.syncPattern", _NO_MACHINE)
        return self

    def enableStableNorm(self, enabled: bool) -> "Options":
        """The slower and more exact form of norms."""
        self._popart.keep("enableStableNorm", enabled)
        ignored("Options.enableStableNorm", "norms are PyTorch's own")
        return self

    def modelName(self, name: str) -> "Options":
        """A name for reports of Graphcore's tools."""
        self.createOrSet(model_name=name)
        ignored("Options.modelName", "nothing is written under that name")
        return self

    def logDir(self, log_dir: str) -> "Options":
        """A folder for log files."""
        self.set(log_dir=log_dir)
        ignored("Options.logDir", "no log file is written")
        return self

    def maxRepeatLogs(self, max_lines: int | None) -> "Options":
        """How often a line of the log may be repeated."""
        self.createOrSet(max_repeat_logs=max_lines)
        ignored("Options.maxRepeatLogs", "lines are not repeated")
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> "Options":
        """Says nothing about attributes of optimizers that PopTorch does not know."""
        self._relax_optimizer_checks = relax
        ignored("Options.relaxOptimizerAttributesChecks", "attributes of optimizers are not checked")
        return self

    def disableModuleNamescope(self) -> "Options":
        """Operations without the names of their modules."""
        self._module_namescope_enabled = False
        ignored("Options.disableModuleNamescope", "reports name operations by the model's lines")
        return self

    def sourceLocationExcludes(self, excludes: list[str]) -> "Options":
        """Files that lines of PopART's graph are not traced to."""
        self._source_location_excludes = list(excludes)
        ignored("Options.sourceLocationExcludes", "reports name the model's own lines")
        return self

    def appendToLocationExcludes(self, *excludes: str) -> "Options":
        """Further such files."""
        return self.sourceLocationExcludes([*self._source_location_excludes, *excludes])
