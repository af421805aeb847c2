"""Blocks, stages and phases: the parts of a model and their IPUs. Here they run one after the other."""

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
    honoured(f"Block({user_id!r}){where}", "the block is a stage if the model names several IPUs; results are the same")


class Block(nn.Module, blocks.Block):
    """Context for a part of a model.

    Args:
        user_id: Name of the block.
        ipu_id: IPU of the block.

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
        """Set the numbering of unnamed blocks. It has no effect, since blocks need no names here."""

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begin a block that lasts until the next block."""
        _remember(user_id, ipu_id)
        blocks.begin_block(user_id, ipu_id)


def BeginBlock(layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None) -> Any:
    """Begin a block at each call of a module or function.

    Returns:
        The module itself, or a function with the same behaviour.

    Raises:
        Error: `layer_to_call` is neither a module nor a function, or already begins a block.

    Example:
        >>> layer = BeginBlock(nn.Linear(2, 2), "first", ipu_id=0)
        >>> list(layer._forward_pre_hooks.values())
        [BeginBlock(user_id=first, ipu_id=0)]
    """
    with as_poptorch_errors():
        begun = blocks.BeginBlock(layer_to_call, user_id, ipu_id=ipu_id)
    _remember(user_id, ipu_id)
    if begun is not layer_to_call:  # for a function, PopTorch sets these attributes
        begun._user_id, begun._ipu_id = user_id, ipu_id
    return begun


removeBlocks = blocks.remove_blocks


def module_repr(m: nn.Module) -> str:
    """Return the text of a module as torch prints it, with the blocks that begin inside it.

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
    """Return a decorator that makes a block of a function.

    Example:
        >>> @BlockFunction("Decoder", ipu_id=1)
        ... def decode(x):
        ...     return x + 1
        >>> decode(1)
        2
    """
    _remember(user_id, ipu_id)
    return blocks.Block(user_id, ipu_id)  # a context that is also a decorator


class Stage(stage_choices.Stage):
    """Blocks that run together on one IPU, as popgeo's stage with a setter of the IPU.

    Example:
        >>> Stage("encoder", "pooling").ipu(1).blocks
        ['encoder', 'pooling']
    """

    def ipu(self, ipu: int) -> "Stage":
        """Set the IPU of the stage."""
        object.__setattr__(self, "on_ipu", checked_ipu(ipu))
        return self

    @property
    def blocks(self) -> list[str]:
        """Names of the stage's blocks."""
        return list(self.names)


class Phase:
    """Stages that run at the same time.

    Args:
        arg: Stages, or names of blocks that form one stage.

    Example:
        >>> [stage.blocks for stage in Phase(Stage("a"), Stage("b")).ipus(0, 2).stages]
        [['a'], ['b']]
    """

    def __init__(self, *arg: Any) -> None:
        parts = _parts(arg)
        self.stages = [Stage(*parts)] if parts and isinstance(parts[0], str) else parts
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise ValueError("A Phase takes Stages, or names of blocks.")

    def stage(self, idx: int) -> Stage:
        """Return one stage."""
        return self.stages[idx]

    def ipus(self, *ids: int) -> "Phase":
        """Set the IPU of each stage."""
        if len(ids) != len(self.stages):
            raise ValueError(f"A Phase of {len(self.stages)} stages needs {len(self.stages)} IPUs, found {len(ids)}.")
        for stage, one in zip(self.stages, ids, strict=True):
            stage.ipu(one)
        return self


def _parts(args: Sequence[Any]) -> list[Any]:
    """Return arguments that are given separately or as one list."""
    return list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else list(args)


class ExecutionStrategy:
    """Base class of strategies, which define stages by the names of their blocks.

    Args:
        args: Stages, names of blocks, and possibly an `AutoStage`.
    """

    schedule: str | None = None  # popgeo's name of the schedule; None for its default
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
        """Add the strategy to the account."""
        what = f"{type(self).__name__} of {len(self._stages)} stages" if self._stages else type(self).__name__
        honoured(what, "stages run here one after the other; results are the same")

    def stages(self) -> str | list[Any] | None:
        """Return popgeo's stages. None: the IPUs of the blocks decide."""
        automatic = stage_choices.EACH_BLOCK if self.auto_stage == AutoStage.AutoIncrement else None
        return list(self._stages) or automatic

    def stage(self, block_id: str) -> Stage:
        """Return the stage of a block.

        Raises:
            ValueError: No stage contains the block.
        """
        if block_id not in self._by_block:
            raise ValueError(f"No stage has block {block_id!r}; the blocks are {', '.join(self._by_block) or 'none'}.")
        return self._by_block[block_id]


class ShardedExecution(ExecutionStrategy):
    """Strategy that runs stages one after the other, each on its IPU.

    Example:
        >>> ShardedExecution(Stage("a"), Stage("b").ipu(1)).stage("b").blocks
        ['b']
    """

    schedule = "sharded"


class PipelinedExecution(ExecutionStrategy):
    """Strategy that runs stages at the same time, each on a different micro-batch.

    Example:
        >>> PipelinedExecution("a", "b").stage("a").blocks
        ['a']
    """


class _PhasedExecution(ExecutionStrategy):
    schedule = "phased"
    _takes = (Phase, Stage, str, list, tuple)

    def stages(self) -> str | list[Any] | None:
        """Return one stage per phase, since phases and their stages run one after the other here."""
        names = ([name for stage in phase.stages for name in stage.names] for phase in self._phases)
        return [stage_choices.Stage(*of_phase) for of_phase in names] or super().stages()

    def phase(self, phase: int) -> Phase:
        """Return one phase."""
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Any:
        """Separate the phases of the forward and backward pass. It has no effect."""
        return self

    def setTensorsLiveness(self, liveness: Any) -> Any:
        """Choose the location of tensors between phases. It has no effect."""
        ignored(f"setTensorsLiveness({liveness})", "memory outside of the tiles is not modelled")
        return self


class ParallelPhasedExecution(_PhasedExecution):
    """Strategy that alternates phases between two groups of IPUs.

    Example:
        >>> ParallelPhasedExecution(Phase(Stage("a"), Stage("b")), ["c"]).phase(1).stage(0).blocks
        ['c']
    """

    def sendBetweenConsecutiveIPUs(self, *args: Any) -> Any:
        """Choose the IPUs that exchange data. It has no effect."""
        return self


class SerialPhasedExecution(_PhasedExecution):
    """Strategy that runs phases one after the other on the same IPUs.

    Example:
        >>> SerialPhasedExecution(Stage("a"), Stage("b")).phase(0).stage(0).blocks
        ['a']
    """
