"""`poptorch.Options`: a program's options for compiling and running a model."""

import ast
import copy
import json
import os
import sys
from collections.abc import Mapping
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch

from popgeo.compat.account import honoured, ignored
from popgeo.compat.poptorch import enums, option_groups
from popgeo.compat.poptorch.enums import CommGroupType, ConnectionType, OutputMode
from popgeo.compat.poptorch.errors import check, said
from popgeo.compat.poptorch.option_group import OptionGroup, at_least_one, number_of, setter
from popgeo.compat.poptorch.strategies import ExecutionStrategy, PipelinedExecution


class Options(OptionGroup):
    """Options for compiling and running a model. Setters return the options, and a model in use freezes them.

    Example:
        >>> options = Options().deviceIterations(4).replicationFactor(2)
        >>> options.Training.gradientAccumulation(8).gradient_accumulation
        8
        >>> options.device_iterations, options.replication_factor
        (4, 2)
    """

    _asked = "Options"
    Training = property(attrgetter("_training"), doc="Accumulation and reduction of gradients.")
    Precision = property(attrgetter("_precision"), doc="Types of computations, and errors for NaN.")
    GraphProcessing = Precision  # name before PopTorch 2.0
    Distributed = property(attrgetter("_distributed"), doc="Number of this process among several.")
    Jit = property(attrgetter("_jit"), doc="Options of PyTorch's tracer.")
    TensorLocations = property(attrgetter("_tensor_locations"), doc="Locations of tensors on the machine.")
    _Popart = property(attrgetter("_popart"), doc="Settings of PopART by PopART's names.")
    Popart = _Popart  # name before PopTorch 2.0

    def __init__(self) -> None:
        super().__init__(
            input_group_size=1, input_group_type=CommGroupType.Consecutive, output_mode=OutputMode.Default.value,
            output_return_period=1, anchored_tensors={}, available_memory_proportion={},
        )  # fmt: skip
        self._popart, self._jit = option_groups.PopartOptions(), option_groups.JitOptions()
        self._precision = option_groups.PrecisionOptions(self._popart)
        self._training = option_groups.TrainingOptions(self._popart)
        self._distributed = option_groups.DistributedOptions()
        self._tensor_locations = option_groups.TensorLocationOptions()
        self._execution_strategy: ExecutionStrategy = PipelinedExecution()
        self._source_location_excludes: list[str] = []
        self._show_compilation_progress_bar = self._module_namescope_enabled = True
        self._relax_optimizer_checks = False
        if folder := os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(folder)
        if text := os.environ.get("POPTORCH_DEFAULT_OPTIONS"):
            self.from_json(text)

    def loadFromFile(self, filepath: str) -> "Options":
        """Call the setters in a file, one per line without `options.` in front. Nothing else in the file runs.

        Raises:
            ConfigFileError: A line is not such a call. The message names the line.
        """
        apply_file(self, filepath)
        return self

    def from_json(self, text: str) -> "Options":
        """Call the setters in a JSON dictionary: names of setters, each with one argument or a list of arguments.

        Dots in a name lead into groups.

        Raises:
            ValueError: The text is not a dictionary, or a name is not a setter.
        """
        asked = json.loads(text)
        if not isinstance(asked, dict):
            raise ValueError(f"Options in JSON must be a dictionary of setters, not {type(asked).__name__}.")
        for name, arguments in asked.items():
            setter: Any = self
            for part in name.split("."):
                setter = getattr(setter, part, None)
            if not callable(setter):
                raise ValueError(f"Options in JSON name {name!r}, which is not a setter of poptorch.Options.")
            setter(*map(_member_or_same, arguments if isinstance(arguments, list) else [arguments]))
        return self

    def clone(self) -> "Options":
        """Return a copy that is not frozen."""
        return copy.deepcopy(self)

    def toDict(self) -> dict[str, Any]:
        """Return all options in one dictionary.

        Raises:
            AssertionError: No output mode has been chosen. The error is also a ValueError.
        """
        check(not self.defaultOutputMode(), "An output mode must be picked before serialisation")
        groups = (self._popart, self._training, self._precision, self._distributed, self._tensor_locations)
        return {**self._values, **{name: value for group in groups for name, value in group.toDict().items()}}

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> "Options":
        """Let groups of replicas share their inputs.

        Raises:
            AssertionError: The size is not positive, or the type is not a group type. The error is also a ValueError.
        """
        known = input_group_type in (CommGroupType.Consecutive, CommGroupType.Orthogonal)
        check(known, f"The input group type is {input_group_type!r}; it must be Consecutive or Orthogonal.")
        size = at_least_one("inputReplicaGrouping", input_group_size)
        self.set(input_group_size=size, input_group_type=input_group_type)
        honoured("Options.inputReplicaGrouping")
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> "Options":
        """Choose the steps of a call that return their results.

        Raises:
            AssertionError: `EveryN` without a positive period, or an unknown mode. The error is also a ValueError.
        """
        mode, every_n = number_of(OutputMode, "outputMode", output_mode), output_mode is OutputMode.EveryN
        check(not every_n or (output_return_period or 0) > 0, said("outputMode"))
        self.set(output_mode=mode, output_return_period=output_return_period if every_n else 1)
        honoured("Options.outputMode")
        return self

    def anchorMode(self, anchor_mode: OutputMode, anchor_return_period: int | None = None) -> "Options":
        """Call `outputMode`, which had this name before PopTorch 2.4."""
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultOutputMode(self) -> bool:
        """Check whether no output mode has been chosen."""
        return self.output_mode == OutputMode.Default

    defaultAnchorMode = defaultOutputMode

    @setter("random_seed", "honoured", "random numbers are PyTorch's, not the machine's")
    def randomSeed(self, random_seed: int) -> Any:
        """Set the seed of random numbers, including torch's."""
        check(isinstance(random_seed, int), f"The random seed is {random_seed!r}; it must be an integer.")
        self.checkIsFrozen()
        torch.manual_seed(random_seed)

    @setter("popart:enableEngineCaching", "honoured", "the folder keeps captured steps")
    def enableExecutableCaching(self, path: str | None) -> Any:
        """Keep compiled steps in a folder. None: keep none."""
        if path is not None:
            self._popart.keep("cachePath", path)
        return path is not None

    @setter("ipu_version", "recorded", "the modelled machine has that generation")
    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Any:
        """Compile for a machine that is not present: generation 1 or 2."""
        self.connectionType(ConnectionType.Never)

    @setter("_execution_strategy", None)  # the strategy adds itself to the account
    def setExecutionStrategy(self, strategy: Any) -> Any:
        """Choose how the model's blocks are divided over IPUs."""
        check(isinstance(strategy, ExecutionStrategy), said("setExecutionStrategy", strategy=strategy))
        strategy.enter()

    @setter("available_memory_proportion", "recorded", "the modelled machine computes products in parts of that size")
    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> Any:
        """Set the part of each IPU's memory that products may use. This changes the report, not the results."""
        for key in available_memory_proportion:
            check(key.startswith("IPU") and key[3:].isdigit(), said("setAvailableMemoryProportion", key=key))
        proportions = {int(key[3:]): part for key, part in available_memory_proportion.items()}
        fit, given = all(0 <= part <= 1 for part in proportions.values()), available_memory_proportion
        check(fit, f"Available memory proportions must be from 0 to 1; found {given}.")
        return proportions

    def anchorTensor(
        self, short_name: str, long_name: str, output_mode: OutputMode | None = None, output_return_period: int = 1
    ) -> None:
        """Mark a tensor inside the graph to read after a call."""
        self.checkIsFrozen()
        period = output_return_period if output_mode is OutputMode.EveryN else 1
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]
        ignored("Options.anchorTensor", "popgeo does not know the names of PopART's tensors; return the tensor instead")

    @setter("popart:engineOptions", "ignored", "executor.report is the report of the modelled machine")
    def enableProfiling(self, profile_dir: str | None = None) -> Any:
        """Write a report of Graphcore's tools."""
        engine = {"autoReport.directory": profile_dir or ".", "autoReport.all": "true"}
        return self._popart.options.get("engineOptions", {}) | engine | {"debug.allowOutOfMemory": "true"}

    @setter("_module_namescope_enabled", "ignored", "reports name operations by the model's lines")
    def disableModuleNamescope(self) -> Any:
        """Omit the names of modules from operations."""
        return False

    def appendToLocationExcludes(self, *excludes: str) -> Any:
        """Add files to the excluded source locations."""
        return self.sourceLocationExcludes([*self._source_location_excludes, *excludes])


class ConfigFileError(Exception):
    """Error for a line of a configuration file that is not a call of a setter."""


# Syntax in a configuration file, apart from names and attributes.
_SYNTAX = (
    ast.Expression | ast.Call | ast.keyword | ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.UnaryOp | ast.USub
)


def apply_file(options: Any, path: str | os.PathLike[str]) -> None:
    """Call the setters that a file names, one per line, such as `deviceIterations(4)`. `#` starts a comment.

    Raises:
        ConfigFileError: A line is not such a call. The message has its number and its text.
    """
    calls = []
    with open(path) as file:
        for number, line in enumerate(map(str.strip, file), start=1):
            text = f"options.{line}"
            try:
                if line and not line.startswith("#"):
                    calls.append((number, text, ast.parse(text, mode="eval")))
            except SyntaxError as error:
                raise _refusal(f"SyntaxError at line {number}", path, error.msg, text) from error
    poptorch = vars(sys.modules[__package__ or ""])
    classes = {name: value for name, value in poptorch.items() if isinstance(value, type)}
    names = {"options": options, "poptorch": SimpleNamespace(**classes), "__builtins__": {}}
    for number, text, call in calls:
        for part in ast.walk(call):
            if not _is_allowed(part, classes):
                detail = f"`{ast.unparse(part)}` is neither a setter of poptorch.Options nor an argument"
                raise _refusal(f"Line {number}", path, detail, text)
        eval(compile(call, os.fspath(path), "eval"), names)


def _is_allowed(part: ast.AST, classes: Mapping[str, type]) -> bool:
    """Check that a part of a line only calls setters, with literals and PopTorch's classes as arguments."""
    match part:
        case ast.Name(id=name):
            return name in ("options", "poptorch")
        case ast.Attribute(value=ast.Name(id="poptorch"), attr=name):
            return name in classes
        case ast.Attribute(attr=name):
            return not name.startswith("__")
    return isinstance(part, _SYNTAX | ast.expr_context)


def _refusal(where: str, path: str | os.PathLike[str], detail: str, text: str) -> ConfigFileError:
    return ConfigFileError(f"{where} of {os.path.basename(path)}: {detail}\n> {text}")


def _member_or_same(argument: Any) -> Any:
    """Return the member of an enum for a text such as `ConnectionType.Never`, and any other argument unchanged."""
    if not isinstance(argument, str):
        return argument
    kind, _, member = argument.removeprefix("poptorch.").partition(".")
    return getattr(getattr(enums, kind, None), member, argument) if member else argument
