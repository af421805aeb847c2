"""The options of PopTorch that can mean nothing here: kept, to be read again, and entered in the account."""

from typing import Any, TypeVar

from popgeo.compat.poptorch import enums
from popgeo.compat.poptorch.errors import check
from popgeo.compat.poptorch.option_group import OptionGroup, ignored, recorded
from popgeo.compat.poptorch.option_groups import _PopartOptions

Chosen = TypeVar("Chosen", bound="OptionsWithoutMeaning")
_NO_MACHINE = "no IPU is taken hold of"


class OptionsWithoutMeaning(OptionGroup):
    """Options of machines, log files and Graphcore's tools, without those that do something here.

    Args:
        defaults: All options and the values that they have first.
    """

    def __init__(self, **defaults: Any) -> None:
        super().__init__(
            **defaults,
            log_dir=".",
            auto_round_num_ipus=False,
            anchored_tensors={},
            sync_pattern=enums.SyncPattern.Full.value,
            available_memory_proportion={},
        )
        self._popart = _PopartOptions()
        self._execution_strategy: Any = None
        self._relax_optimizer_checks = False
        self._module_namescope_enabled = True
        self._source_location_excludes: list[str] = []

    def setExecutionStrategy(self: Chosen, strategy: Any) -> Chosen:
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
        return self

    def setAvailableMemoryProportion(self: Chosen, available_memory_proportion: dict[str, float]) -> Chosen:
        """The part of an IPU's memory that its products may take for themselves, by IPU: for the account alone.

        Raises:
            AssertionError: a key that is no IPU, or a part that is none; it is a ValueError too.
        """
        for key in available_memory_proportion:
            check(
                key.startswith("IPU") and key[3:].isdigit(),
                'Available memory proportions are expected to be in a dictionary of {"IPU0": 0.5} where the 0 in IPU '
                f"is the index of the IPU. Invalid key: {key}",
            )
        proportions = {int(key[3:]): part for key, part in available_memory_proportion.items()}
        check(
            all(0 <= part <= 1 for part in proportions.values()),
            f"Available memory proportions are parts of a memory, 0 to 1; found {available_memory_proportion}",
        )
        self.set(available_memory_proportion=proportions)
        recorded(
            "Options.setAvailableMemoryProportion",
            "the modelled machine computes products in as many parts as fit in that share of a tile; no result changes",
        )
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

    def enableSyntheticData(self: Chosen, enabled: bool) -> Chosen:
        """Lets the machine make up its inputs."""
        self._popart.keep("syntheticDataMode", 2 if enabled else 0)
        ignored("Options.enableSyntheticData", "a call computes with the data that it is given")
        return self

    def enableProfiling(self: Chosen, profile_dir: str | None = None) -> Chosen:
        """Writes a report of Graphcore's tools."""
        engine = dict(self._popart.options.get("engineOptions", {}))
        engine |= {"autoReport.directory": profile_dir or ".", "autoReport.all": "true"}
        self._popart.keep("engineOptions", engine | {"debug.allowOutOfMemory": "true"})
        ignored("Options.enableProfiling", "the account of the modelled machine is executor.report")
        return self

    def useIpuModel(self: Chosen, use_model: bool) -> Chosen:
        """Graphcore's own simulator instead of a machine."""
        self.createOrSet(use_model=use_model)
        ignored("Options.useIpuModel", "models always run on this computer")
        return self

    def useIpuId(self: Chosen, ipu_id: int) -> Chosen:
        """One of the machines by its number."""
        check(isinstance(ipu_id, int), f"The id of an IPU is {ipu_id!r}; it must be an integer.")
        self.createOrSet(ipu_id=ipu_id)
        ignored("Options.useIpuId", _NO_MACHINE)
        return self

    def autoRoundNumIPUs(self: Chosen, auto_round_num_ipus: bool = True) -> Chosen:
        """Takes a power of two of IPUs."""
        self.set(auto_round_num_ipus=auto_round_num_ipus)
        ignored("Options.autoRoundNumIPUs", _NO_MACHINE)
        return self

    def syncPattern(self: Chosen, sync_pattern: enums.SyncPattern) -> Chosen:
        """Which IPUs wait for each other."""
        check(isinstance(sync_pattern, enums.SyncPattern), f"The sync pattern is {sync_pattern!r}.")
        self.set(sync_pattern=sync_pattern.value)
        ignored("Options.syncPattern", _NO_MACHINE)
        return self

    def enableStableNorm(self: Chosen, enabled: bool) -> Chosen:
        """The slower and more exact form of norms."""
        self._popart.keep("enableStableNorm", enabled)
        ignored("Options.enableStableNorm", "norms are PyTorch's own")
        return self

    def modelName(self: Chosen, name: str) -> Chosen:
        """A name for reports of Graphcore's tools."""
        self.createOrSet(model_name=name)
        ignored("Options.modelName", "nothing is written under that name")
        return self

    def logDir(self: Chosen, log_dir: str) -> Chosen:
        """A folder for log files."""
        self.set(log_dir=log_dir)
        ignored("Options.logDir", "no log file is written")
        return self

    def maxRepeatLogs(self: Chosen, max_lines: int | None) -> Chosen:
        """How often a line of the log may be repeated."""
        self.createOrSet(max_repeat_logs=max_lines)
        ignored("Options.maxRepeatLogs", "lines are not repeated")
        return self

    def relaxOptimizerAttributesChecks(self: Chosen, relax: bool = True) -> Chosen:
        """Says nothing about attributes of optimizers that PopTorch does not know."""
        self._relax_optimizer_checks = relax
        ignored("Options.relaxOptimizerAttributesChecks", "attributes of optimizers are not checked")
        return self

    def disableModuleNamescope(self: Chosen) -> Chosen:
        """Operations without the names of their modules."""
        self._module_namescope_enabled = False
        ignored("Options.disableModuleNamescope", "reports name operations by the model's lines")
        return self

    def sourceLocationExcludes(self: Chosen, excludes: list[str]) -> Chosen:
        """Files that lines of PopART's graph are not traced to."""
        self._source_location_excludes = list(excludes)
        ignored("Options.sourceLocationExcludes", "reports name the model's own lines")
        return self

    def appendToLocationExcludes(self: Chosen, *excludes: str) -> Chosen:
        """Further such files."""
        return self.sourceLocationExcludes([*self._source_location_excludes, *excludes])
