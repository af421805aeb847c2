"""`poptorch.Options`: everything that a program chooses about how a model is compiled and run."""

import ast
import copy
import json
import os
import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch

from popgeo.compat.account import honoured, ignored
from popgeo.compat.poptorch import enums, option_groups
from popgeo.compat.poptorch.enums import CommGroupType, ConnectionType, OutputMode
from popgeo.compat.poptorch.errors import check, said
from popgeo.compat.poptorch.option_group import OptionGroup, at_least_one, number_of, setter
from popgeo.compat.poptorch.strategies import ExecutionStrategy, PipelinedExecution


class Options(OptionGroup):
    """How a model is compiled and run: setters return the options, so that they chain; a model in use freezes them.

    Example:
        >>> options = Options().deviceIterations(4).replicationFactor(2)
        >>> options.Training.gradientAccumulation(8).gradient_accumulation
        8
        >>> options.device_iterations, options.replication_factor
        (4, 2)
    """

    _asked = "Options"
    Training = property(attrgetter("_training"), doc="How gradients become an update.")
    Precision = property(attrgetter("_precision"), doc="Types, and what becomes of NaN.")
    GraphProcessing = Precision  # its name before PopTorch 2.0
    Distributed = property(attrgetter("_distributed"), doc="Which of several processes this one is.")
    Jit = property(attrgetter("_jit"), doc="How the model is traced.")
    TensorLocations = property(attrgetter("_tensor_locations"), doc="Where tensors lie on the machine.")
    _Popart = property(attrgetter("_popart"), doc="Settings of PopART by their own names.")
    Popart = _Popart  # its name before PopTorch 2.0

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
        """Sets what a file asks for, one call a line without `options.` in front; nothing else in it is run.

        Raises:
            ConfigFileError: a line is not such a call; the message names it.
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

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> "Options":
        """Lets groups of replicas share their inputs.

        Raises:
            AssertionError: a group of all replicas, or of no size; it is a ValueError too.
        """
        known = input_group_type in (CommGroupType.Consecutive, CommGroupType.Orthogonal)
        check(known, f"The input group type is {input_group_type!r}; it must be Consecutive or Orthogonal.")
        size = at_least_one("inputReplicaGrouping", input_group_size)
        self.set(input_group_size=size, input_group_type=input_group_type)
        honoured("Options.inputReplicaGrouping")
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> "Options":
        """Which of the steps of a call return their results.

        Raises:
            AssertionError: `EveryN` without a positive period, or no member of `poptorch.OutputMode`; a ValueError too.
        """
        mode, every_n = number_of(OutputMode)("outputMode", output_mode), output_mode is OutputMode.EveryN
        check(not every_n or (output_return_period or 0) > 0, said("outputMode"))
        self.set(output_mode=mode, output_return_period=output_return_period if every_n else 1)
        honoured("Options.outputMode")
        return self

    def anchorMode(self, anchor_mode: OutputMode, anchor_return_period: int | None = None) -> "Options":
        """`outputMode` by its name before PopTorch 2.4."""
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultOutputMode(self) -> bool:
        """Whether no output mode has been chosen."""
        return self.output_mode == OutputMode.Default

    defaultAnchorMode = defaultOutputMode

    @setter("random_seed", "honoured", "the numbers drawn are PyTorch's, not the machine's")
    def randomSeed(self, random_seed: int) -> Any:
        """Where random numbers start, also torch's own."""
        check(isinstance(random_seed, int), f"The random seed is {random_seed!r}; it must be an integer.")
        self.checkIsFrozen()
        torch.manual_seed(random_seed)

    @setter("popart:enableEngineCaching", "honoured", "captured steps are kept there")
    def enableExecutableCaching(self, path: str | None) -> Any:
        """Keeps compiled steps in a folder; None keeps none."""
        if path is not None:
            self._popart.keep("cachePath", path)
        return path is not None

    @setter("ipu_version", "recorded", "the modelled machine is of that generation")
    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Any:
        """Compiles for a machine that is not there: 1 is the first generation, 2 the second."""
        self.connectionType(ConnectionType.Never)

    @setter("_execution_strategy", None)  # which enters itself into the account
    def setExecutionStrategy(self, strategy: Any) -> Any:
        """How the model's blocks are divided over IPUs."""
        check(isinstance(strategy, ExecutionStrategy), said("setExecutionStrategy", strategy=strategy))
        strategy.enter()

    @setter("available_memory_proportion", "recorded", "the modelled machine makes products in parts of that size")
    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> Any:
        """The part of an IPU's memory that its products may take, by IPU; it changes the account and no result."""
        for key in available_memory_proportion:
            check(key.startswith("IPU") and key[3:].isdigit(), said("setAvailableMemoryProportion", key=key))
        proportions = {int(key[3:]): part for key, part in available_memory_proportion.items()}
        fit, given = all(0 <= part <= 1 for part in proportions.values()), available_memory_proportion
        check(fit, f"Available memory proportions are parts of a memory, 0 to 1; found {given}")
        return proportions

    def anchorTensor(
        self, short_name: str, long_name: str, output_mode: OutputMode | None = None, output_return_period: int = 1
    ) -> None:
        """Marks a tensor inside the graph to be read after a call."""
        self.checkIsFrozen()
        period = output_return_period if output_mode is OutputMode.EveryN else 1
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]
        ignored("Options.anchorTensor", "names of PopART's tensors are not known here; return the tensor instead")

    @setter("popart:engineOptions", "ignored", "the account of the modelled machine is executor.report")
    def enableProfiling(self, profile_dir: str | None = None) -> Any:
        """Writes a report of Graphcore's tools."""
        engine = {"autoReport.directory": profile_dir or ".", "autoReport.all": "true"}
        return self._popart.options.get("engineOptions", {}) | engine | {"debug.allowOutOfMemory": "true"}

    @setter("_module_namescope_enabled", "ignored", "reports name operations by the model's lines")
    def disableModuleNamescope(self) -> Any:
        """Operations without the names of their modules."""
        return False

    def appendToLocationExcludes(self, *excludes: str) -> Any:
        """Further such files."""
        return self.sourceLocationExcludes([*self._source_location_excludes, *excludes])


class ConfigFileError(Exception):
    """A line of a configuration file is not a call of a setter."""


def apply_file(options: Any, path: str | os.PathLike[str]) -> None:
    """Runs the setters that a file names, one a line, as `deviceIterations(4)`; `#` starts a comment.

    Raises:
        ConfigFileError: a line is something else; the message has its number and its text.
    """
    calls = []
    with open(path) as file:
        for number, line in enumerate(map(str.strip, file), start=1):
            text = f"options.{line}"
            try:
                if line and not line.startswith("#"):
                    calls.append((number, text, ast.parse(text, mode="eval").body))
            except SyntaxError as error:
                raise _refusal(f"SyntaxError at line {number}", path, error.msg, text) from error
    for number, text, call in calls:
        try:
            _value_of(call, {"options": options, "poptorch": _PopTorchNames()})
        except _NotACallError as error:
            raise _refusal(f"Line {number}", path, str(error), text) from None


def apply_json(options: Any, text: str) -> None:
    """Runs the setters that a dictionary names: dots lead into groups, a list holds several arguments.

    Raises:
        ValueError: the text is not a dictionary in JSON, or a name no setter.
    """
    asked = json.loads(text)
    if not isinstance(asked, dict):
        raise ValueError(f"Options in JSON are a dictionary of setters, not {type(asked).__name__}.")
    for name, arguments in asked.items():
        setter: Any = options
        for part in name.split("."):
            setter = getattr(setter, part, None)
        if not callable(setter):
            raise ValueError(f"Options in JSON name {name!r}, which is not a setter of poptorch.Options.")
        arguments = arguments if isinstance(arguments, list) else [arguments]
        setter(*map(_member_or_same, arguments))


def _refusal(where: str, path: str | os.PathLike[str], detail: str, text: str) -> ConfigFileError:
    return ConfigFileError(f"{where} of {os.path.basename(path)}: {detail}\n> {text}")


def _member_or_same(argument: Any) -> Any:
    """The member of an enum that a text such as `ConnectionType.Never` names; anything else as it is."""
    if not isinstance(argument, str):
        return argument
    kind, _, member = argument.removeprefix("poptorch.").partition(".")
    return getattr(getattr(enums, kind, None), member, argument) if member else argument


class _NotACallError(Exception):
    """A part of a line that is neither a setter, an argument nor one of PopTorch's names."""


class _PopTorchNames:
    """PopTorch's classes and enums, which a file may use; found when asked for, since their module imports this one."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(sys.modules[__package__ or ""], name, None)
        check(isinstance(found, type), f"`poptorch.{name}` is not a class of PopTorch", _NotACallError)
        return found


def _value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a literal, of a name among `names` or its attribute, or of a call."""
    match node:
        case ast.Name() if node.id in names:
            return names[node.id]
        case ast.Attribute() if not node.attr.startswith("__"):
            return getattr(_value_of(node.value, names), node.attr)
        case ast.Call():
            arguments = [_value_of(part, names) for part in node.args]
            named = {part.arg: _value_of(part.value, names) for part in node.keywords if part.arg is not None}
            return _value_of(node.func, names)(*arguments, **named)
        case ast.List() | ast.Tuple():
            return [_value_of(part, names) for part in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _NotACallError(f"`{ast.unparse(node)}` is neither a setter of poptorch.Options nor an argument") from None
