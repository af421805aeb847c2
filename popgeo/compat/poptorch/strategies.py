"""Which part of a model runs on which IPU: blocks become stages and phases, which run here one by one."""

from collections.abc import Callable, Sequence
from textwrap import indent
from typing import Any

from torch import nn

from popgeo.capture import blocks
from popgeo.capture.blocks import checked_ipu
from popgeo.compat.account import honoured, ignored
from popgeo.compat.poptorch.enums import AutoStage
from popgeo.compat.poptorch.errors import as_poptorch_errors
from popgeo.ipu import stage_choices


def _remember(user_id: str | None, ipu_id: int | None) -> None:
    where = "" if ipu_id is None else f" on IPU {ipu_id}"
    why = "what follows runs as a stage of its own where the model names several IPUs; results stay as they are"
    honoured(f"Block({user_id!r}){where}", why)


class Block(nn.Module, blocks.Block):
    """A part of a model, as a context.

    Args:
        user_id: Its name.
        ipu_id: The IPU that it is to run on.

    Example:
        >>> with Block("Encoder", ipu_id=0):
        ...     pass
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        nn.Module.__init__(self)
        blocks.Block.__init__(self, user_id, ipu_id)
        _remember(user_id, ipu_id)

    @staticmethod
    def useAutoId() -> None:
        """Numbers the blocks without a name; they need none here."""

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begins a block that lasts until the next one."""
        _remember(user_id, ipu_id)
        blocks.begin_block(user_id, ipu_id)


def BeginBlock(layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None) -> Any:
    """Begins a block where a module, or a function, is called.

    Returns:
        The module itself, or a function that does the same.

    Raises:
        Error: it is neither, or begins a block already.

    Example:
        >>> layer = BeginBlock(nn.Linear(2, 2), "first", ipu_id=0)
        >>> list(layer._forward_pre_hooks.values())
        [BeginBlock(user_id=first, ipu_id=0)]
    """
    with as_poptorch_errors():
        begun = blocks.BeginBlock(layer_to_call, user_id, ipu_id=ipu_id)
    _remember(user_id, ipu_id)
    if begun is not layer_to_call:  # a function's, which PopTorch distinguishes in this way
        begun._user_id, begun._ipu_id = user_id, ipu_id
    return begun


removeBlocks = blocks.remove_blocks


def module_repr(m: nn.Module) -> str:
    """A module as torch prints it, with the blocks that begin at it and at those inside it.

    Example:
        >>> print(module_repr(nn.Sequential(nn.ReLU(), BeginBlock(nn.Dropout(0.5), "last"))))
        Sequential(
          (0): ReLU()
          (1): BeginBlock(user_id=last, ipu_id=None) Dropout(p=0.5, inplace=False)
        )
    """
    begins = "".join(f"{hook!r} " for hook in m._forward_pre_hooks.values())
    inside = [f"({name}): {module_repr(part)}" for name, part in m._modules.items() if part is not None]
    text = "\n".join([*m.extra_repr().splitlines(), *inside])
    if "\n" in text or inside:
        text = f"\n{indent(text, '  ')}\n"
    return f"{begins}{m._get_name()}({text})"


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Makes a block of a function.

    Example:
        >>> @BlockFunction("Decoder", ipu_id=1)
        ... def decode(x):
        ...     return x + 1
        >>> decode(1)
        2
    """

    _remember(user_id, ipu_id)
    return blocks.Block(user_id, ipu_id)  # a context that is a decorator, too


class Stage(stage_choices.Stage):
    """Blocks that run together on one IPU: popgeo's own, whose IPU is set in place.

    Example:
        >>> Stage("encoder", "pooling").ipu(1).blocks
        ['encoder', 'pooling']
    """

    def ipu(self, ipu: int) -> "Stage":
        """Sets the IPU that the stage runs on."""
        object.__setattr__(self, "on_ipu", checked_ipu(ipu))
        return self

    @property
    def blocks(self) -> list[str]:
        """Names of its blocks."""
        return list(self.names)


class Phase:
    """Stages that run at the same time.

    Args:
        arg: Stages, or the names of blocks that make a stage together.

    Example:
        >>> [stage.blocks for stage in Phase(Stage("a"), Stage("b")).ipus(0, 2).stages]
        [['a'], ['b']]
    """

    def __init__(self, *arg: Any) -> None:
        parts = _parts(arg)
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


def _parts(args: Sequence[Any]) -> list[Any]:
    """What is given one by one, or as one list."""
    return list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else list(args)


class ExecutionStrategy:
    """What strategies have in common: stages by the names of their blocks."""

    schedule: str | None = None  # popgeo's name of the order; None for its usual one
    _takes: tuple[type, ...] = (Phase, Stage, str)

    def __init__(self, *args: Any) -> None:
        self.auto_stage: Any = None
        self._phases: list[Phase] = []
        for part in _parts(args):
            if isinstance(part, self._takes):
                phase = Phase(*part) if isinstance(part, list | tuple) else part
                self._phases.append(phase if isinstance(phase, Phase) else Phase(phase))
            elif self.auto_stage is None and hasattr(part, "name"):
                self.auto_stage = part
            else:
                raise ValueError(f"{type(self).__name__} takes Stages, names of blocks or an AutoStage, found {part}.")
        self._stages = [stage for phase in self._phases for stage in phase.stages]
        self._by_block: dict[str, Stage] = {}
        for stage in self._stages:
            for block in stage.blocks:
                if block in self._by_block:
                    raise ValueError(f"Block {block!r} is in two stages of a {type(self).__name__}.")
                self._by_block[block] = stage

    def enter(self) -> None:
        """Enters itself into the account, as a choice of the program's."""
        what = f"{type(self).__name__} of {len(self._stages)} stages" if self._stages else type(self).__name__
        honoured(what, "stages run here one by one, in its order, where the model names blocks; results stay the same")

    def stages(self) -> str | list[Any] | None:
        """The stages in popgeo's terms; None if the IPUs that blocks name decide."""
        automatic = stage_choices.EACH_BLOCK if self.auto_stage == AutoStage.AutoIncrement else None
        return list(self._stages) or automatic

    def stage(self, block_id: str) -> Stage:
        """The stage of a block.

        Raises:
            ValueError: no stage has it.
        """
        if block_id not in self._by_block:
            raise ValueError(f"No stage has block {block_id!r}; there are {', '.join(self._by_block) or 'none'}.")
        return self._by_block[block_id]


class ShardedExecution(ExecutionStrategy):
    """Stages one after the other, each on its IPU.

    Example:
        >>> ShardedExecution(Stage("a"), Stage("b").ipu(1)).stage("b").blocks
        ['b']
    """

    schedule = "sharded"


class PipelinedExecution(ExecutionStrategy):
    """Stages at the same time, each on another micro-batch.

    Example:
        >>> PipelinedExecution("a", "b").stage("a").blocks
        ['a']
    """


class _PhasedExecution(ExecutionStrategy):
    schedule = "phased"
    _takes = (Phase, Stage, str, list, tuple)

    def stages(self) -> str | list[Any] | None:
        """A stage for each phase: they come one after the other, here on one IPU, and so do the stages of each."""
        names = ([name for stage in phase.stages for name in stage.names] for phase in self._phases)
        return [stage_choices.Stage(*of_phase) for of_phase in names] or super().stages()

    def phase(self, phase: int) -> Phase:
        """One of its phases."""
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Any:
        """Keeps the phases of forward and backward apart."""
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
