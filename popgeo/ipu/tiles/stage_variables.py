"""What runs on which IPU in a program in stages, and what the variables that stages share are called."""

from collections.abc import Sequence
from dataclasses import dataclass

from popgeo.capture.op_graph import Input
from popgeo.engine.pipeline.parts import Kept, StagePart
from popgeo.engine.pipeline.staging import Pass


@dataclass(frozen=True, kw_only=True)
class StagesOnIpus:
    """What runs where, and in which order.

    Attributes:
        parts: The passes of each stage.
        order: Every pass of a round.
        ipus: The IPU of each stage.
    """

    parts: Sequence[StagePart]
    order: Sequence[Pass]
    ipus: Sequence[int]


@dataclass(frozen=True)
class Left:
    """The variable of what one part leaves for later parts of the same micro-batch.

    Attributes:
        kept: What it is.
        part: Which part leaves it, by its place among all.
        micro_batch: Of which micro-batch.
    """

    kept: Kept
    part: int
    micro_batch: int

    @property
    def name(self) -> str:
        """What the program calls it."""
        return f"{'before' if self.kept.before else 'sent'}{self.kept.value}.{self.part}.{self.micro_batch}"


@dataclass(frozen=True)
class Given:
    """The variable of an argument of one micro-batch.

    Attributes:
        argument: Which.
        micro_batch: Of which micro-batch.
    """

    argument: Input
    micro_batch: int

    @property
    def name(self) -> str:
        """What the program calls it."""
        return f"given:{self.argument.name}.{self.micro_batch}"
