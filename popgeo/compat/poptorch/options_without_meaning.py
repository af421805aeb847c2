"""The options of PopTorch that can mean nothing here: each is kept, and the account says why."""

from typing import Any

from popgeo.compat.account import ignored
from popgeo.compat.poptorch.enums import OutputMode, SyncPattern
from popgeo.compat.poptorch.option_group import IGNORED, OptionGroup, number_of, setter, whole_number

_NO_MACHINE = "no IPU is taken hold of"


class OptionsWithoutMeaning(OptionGroup):
    """Options of machines, log files and Graphcore's tools, without those that do something here."""

    _asked = "Options"

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> None:
        """Marks a tensor inside the graph to be read after a call."""
        self.checkIsFrozen()
        period = output_return_period if output_mode is OutputMode.EveryN else 1
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]
        ignored("Options.anchorTensor", "names of PopART's tensors are not known here; return the tensor instead")

    @setter("popart:syntheticDataMode", IGNORED, "a call computes with the data that it is given")
    def enableSyntheticData(self, enabled: bool) -> Any:
        """Lets the machine make up its inputs."""
        return 2 if enabled else 0

    @setter("popart:engineOptions", IGNORED, "the account of the modelled machine is executor.report")
    def enableProfiling(self, profile_dir: str | None = None) -> Any:
        """Writes a report of Graphcore's tools."""
        engine = {"autoReport.directory": profile_dir or ".", "autoReport.all": "true"}
        return self._popart.options.get("engineOptions", {}) | engine | {"debug.allowOutOfMemory": "true"}

    @setter("use_model", IGNORED, "models always run on this computer")
    def useIpuModel(self, use_model: bool) -> Any:
        """Graphcore's own simulator instead of a machine."""

    @setter("ipu_id", IGNORED, _NO_MACHINE, whole_number)
    def useIpuId(self, ipu_id: int) -> Any:
        """One of the machines by its number."""

    @setter("auto_round_num_ipus", IGNORED, _NO_MACHINE)
    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Any:
        """Takes a power of two of IPUs."""

    @setter("sync_pattern", IGNORED, _NO_MACHINE, number_of(SyncPattern))
    def syncPattern(self, sync_pattern: SyncPattern) -> Any:
        """Which IPUs wait for each other."""

    @setter("popart:enableStableNorm", IGNORED, "norms are PyTorch's own")
    def enableStableNorm(self, enabled: bool) -> Any:
        """The slower and more exact form of norms."""

    @setter("model_name", IGNORED, "nothing is written under that name")
    def modelName(self, name: str) -> Any:
        """A name for reports of Graphcore's tools."""

    @setter("log_dir", IGNORED, "no log file is written")
    def logDir(self, log_dir: str) -> Any:
        """A folder for log files."""

    @setter("max_repeat_logs", IGNORED, "lines are not repeated")
    def maxRepeatLogs(self, max_lines: int | None) -> Any:
        """How often a line of the log may be repeated."""

    @setter("_relax_optimizer_checks", IGNORED, "attributes of optimizers are not checked")
    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Any:
        """Says nothing about attributes of optimizers that PopTorch does not know."""

    @setter("_module_namescope_enabled", IGNORED, "reports name operations by the model's lines")
    def disableModuleNamescope(self) -> Any:
        """Operations without the names of their modules."""
        return False

    @setter("_source_location_excludes", IGNORED, "reports name the model's own lines")
    def sourceLocationExcludes(self, excludes: list[str]) -> Any:
        """Files that lines of PopART's graph are not traced to."""
        return list(excludes)

    def appendToLocationExcludes(self, *excludes: str) -> Any:
        """Further such files."""
        return self.sourceLocationExcludes([*self._source_location_excludes, *excludes])
