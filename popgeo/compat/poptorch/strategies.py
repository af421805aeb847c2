"""How blocks become stages and phases on several IPUs; they run here one by one, in that order."""

from typing import Any

from popgeo.compat.account import honoured, ignored
from popgeo.compat.poptorch.enums import AutoStage
from popgeo.ipu.stage_choices import EACH_BLOCK
from popgeo.ipu.stage_choices import Stage as NamedStage

__all__ = [
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
]


class Stage:
    """Blocks that run together on one IPU.

    Example:
        >>> Stage("encoder", "pooling").ipu(1).blocks
        ['encoder', 'pooling']
    """

    def __init__(self, *block_ids: str) -> None:
        for block in block_ids:
            if not isinstance(block, str) or not block:
                raise ValueError(f"A Stage is made of names of blocks, found {block!r}.")
        self._block_ids = list(block_ids)
        self._ipu_id: int | None = None

    def ipu(self, ipu_id: int) -> "Stage":
        """Sets the IPU that the stage runs on."""
        if isinstance(ipu_id, bool) or not isinstance(ipu_id, int) or ipu_id < 0:
            raise ValueError(f"The number of an IPU must be an integer of at least 0, found {ipu_id!r}.")
        self._ipu_id = ipu_id
        return self

    @property
    def blocks(self) -> list[str]:
        """Names of its blocks."""
        return self._block_ids


class Phase:
    """Stages that run at the same time.

    Args:
        arg: Stages, or the names of blocks that make a stage together.

    Example:
        >>> [stage.blocks for stage in Phase(Stage("a"), Stage("b")).ipus(0, 2).stages]
        [['a'], ['b']]
    """

    def __init__(self, *arg: Any) -> None:
        parts = list(arg[0]) if len(arg) == 1 and isinstance(arg[0], list | tuple) else list(arg)
        self.stages = [Stage(*parts)] if parts and isinstance(parts[0], str) else parts
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise ValueError("A Phase is made of Stages, or of the names of blocks.")

    def stage(self, idx: int) -> Stage:
        """One of its stages."""
        return self.stages[idx]

    def ipus(self, *ids: int) -> "Phase":
        """Sets the IPU of each stage."""
        if len(ids) != len(self.stages):
            raise ValueError(f"A Phase of {len(self.stages)} stages needs as many IPUs, found {len(ids)}.")
        for stage, one in zip(self.stages, ids, strict=True):
            stage.ipu(one)
        return self


class _ExecutionStrategy:
    """What strategies have in common: stages by the names of their blocks."""

    schedule: str | None = None  # popgeo's name of the order; None for its usual one

    def stages(self) -> str | list[NamedStage] | None:
        """The stages in popgeo's terms; None for those of the IPUs that blocks name."""
        if self._stages:
            named = [NamedStage(*stage.blocks) for stage in self._stages]
            ipus = [stage._ipu_id for stage in self._stages]
            return [one if ipu is None else one.ipu(ipu) for one, ipu in zip(named, ipus, strict=True)]
        return EACH_BLOCK if self.auto_stage == AutoStage.AutoIncrement else None

    def __init__(self, *args: Any) -> None:
        parts = list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else list(args)
        automatic = [part for part in parts if not isinstance(part, str | Stage | Phase)]
        if len(automatic) > 1 or any(not hasattr(part, "name") for part in automatic):
            raise ValueError(f"{type(self).__name__} takes Stages, names of blocks or an AutoStage, found {automatic}.")
        self.auto_stage = automatic[0] if automatic else None
        self._stages = [
            part if isinstance(part, Stage) else Stage(part) for part in parts if isinstance(part, str | Stage)
        ]
        self._phases = [part for part in parts if isinstance(part, Phase)]
        self._stages += [stage for phase in self._phases for stage in phase.stages]
        self._by_block: dict[str, Stage] = {}
        for stage in self._stages:
            for block in stage.blocks:
                if block in self._by_block:
                    raise ValueError(f"Block {block!r} stands in two stages of a {type(self).__name__}.")
                self._by_block[block] = stage
        what = f"{type(self).__name__} of {len(self._stages)} stages" if self._stages else type(self).__name__
        why = "stages run here one by one, in its order, where the model names blocks; results stay as they are"
        honoured(what, why)

    def stage(self, block_id: str) -> Stage:
        """The stage of a block.

        Raises:
            ValueError: no stage has it.
        """
        if block_id not in self._by_block:
            raise ValueError(f"No stage has block {block_id!r}; there are {', '.join(self._by_block) or 'none'}.")
        return self._by_block[block_id]


class ShardedExecution(_ExecutionStrategy):
    """Stages one after the other, each on its IPU.

    Example:
        >>> ShardedExecution(Stage("a"), Stage("b").ipu(1)).stage("b").blocks
        ['b']
    """

    schedule = "sharded"


class PipelinedExecution(_ExecutionStrategy):
    """Stages at the same time, each on another micro-batch.

    Example:
        >>> PipelinedExecution("a", "b").stage("a").blocks
        ['a']
    """


class _PhasedExecution(_ExecutionStrategy):
    schedule = "phased"

    def stages(self) -> str | list[NamedStage] | None:
        """The same, wherever they are: phases come one after the other, here on one IPU."""
        return [NamedStage(*stage.blocks) for stage in self._stages] or super().stages()

    def __init__(self, *phases: Any) -> None:
        parts = list(phases[0]) if len(phases) == 1 and isinstance(phases[0], list | tuple) else list(phases)
        made = [Phase(*p) if isinstance(p, list | tuple) else p for p in parts]
        super().__init__(*(p if isinstance(p, Phase) or hasattr(p, "name") else Phase(p) for p in made))

    def phase(self, phase: int) -> Phase:
        """One of its phases."""
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Any:
        """Lets forward and backward share no phase."""
        return self

    def setTensorsLiveness(self, liveness: Any) -> Any:
        """Where tensors stay between phases."""
        ignored(f"setTensorsLiveness({liveness})", "memory outside of the tiles is not modelled")
        return self


class ParallelPhasedExecution(_PhasedExecution):
    """Phases by turns on two groups of IPUs.

    Example:
        >>> ParallelPhasedExecution(Phase(Stage("a"), Stage("b")), ["c"]).phase(1).stage(0).blocks
        ['c']
    """

    def sendBetweenConsecutiveIPUs(self, *args: Any) -> Any:
        """Which IPUs exchange data."""
        return self


class SerialPhasedExecution(_PhasedExecution):
    """Phases one after the other on the same IPUs.

    Example:
        >>> SerialPhasedExecution(Stage("a"), Stage("b")).phase(0).stage(0).blocks
        ['a']
    """
