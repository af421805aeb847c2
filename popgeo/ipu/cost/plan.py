"""How an operation is divided over the tiles, and what each of its supersteps costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Activity(str, Enum):
    """What the slowest tile spends a superstep on."""

    COMPUTE = "compute"
    EXCHANGE = "exchange"
    SYNC = "sync"
    HOST = "host"


class Profile(str, Enum):
    """Which figures a report adds up."""

    IDEAL = "ideal"
    CALIBRATED = "calibrated"


class Validity(str, Enum):
    """How far a cost can be trusted.

    Attributes:
        VALIDATED: Inside the range of sizes at which the formula was checked against published measurements.
        EXTRAPOLATED: The formula was checked, but on smaller or larger sizes.
        ESTIMATE: No published measurement of this kind of operation is known.
    """

    VALIDATED = "validated"
    EXTRAPOLATED = "extrapolated"
    ESTIMATE = "estimate"


Judgement = tuple[Validity, str]
"""How far a cost can be trusted, and the reason for an estimate or an extrapolation, in words."""


@dataclass(frozen=True, kw_only=True)
class Superstep:
    """One bulk-synchronous step of an operation.

    Attributes:
        name: What it does, such as `slice rows` or `add partial sums`.
        activity: What the slowest tile spends it on.
        ideal: Cycles of the slowest tile by the formulas alone.
        calibrated: Cycles of the slowest tile with the constants fitted to published measurements.
        mean: Ideal cycles averaged over all tiles; with `ideal` it tells how even the work lies.
        tiles: Tiles at work.
        workers: Workers occupied on a tile at work, on average.
        bytes_in: Most bytes that any tile receives.
        bytes_out: Most bytes that any tile sends.
        bytes_total: Bytes that all tiles receive together.
        fragments: Most separate pieces that any tile receives.
    """

    name: str
    activity: Activity
    ideal: float
    calibrated: float
    mean: float = 0.0
    tiles: int = 0
    workers: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_total: int = 0
    fragments: int = 0

    def cycles(self, profile: Profile) -> float:
        """Cycles of the slowest tile."""
        return self.calibrated if profile == Profile.CALIBRATED else self.ideal


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen division of one operation and its cost.

    Attributes:
        family: What kind of work it is, such as `gather` or `matmul`; that of the operation's row in the table.
        split: Into how many parts each dimension of the work is cut, such as `{"rows": 4, "columns": 16}`.
        supersteps: What it costs, in order.
        temporary_bytes: Most bytes of any tile while the operation runs, beyond its arguments and results.
        flops: Floating-point operations of all tiles, a multiply-accumulate counted as two.
        considered: Divisions that were compared.
        validity: How far the cost can be trusted.
        why: The reason for an estimate or an extrapolation, in words.
        parts: The plans that it consists of, in order, where the machine runs an operation as several.
    """

    family: str
    split: Mapping[str, int] = field(default_factory=dict)
    supersteps: tuple[Superstep, ...] = ()
    temporary_bytes: int = 0
    flops: int = 0
    considered: int = 1
    validity: Validity = Validity.ESTIMATE
    why: str = ""
    parts: "tuple[Plan, ...]" = ()

    @classmethod
    def in_order(
        cls, family: str, tiles: int, steps: Sequence[Superstep], why: str, *, nbytes: int = 0, flops: int = 0
    ) -> "Plan":
        """An estimate of work on elements that lie in order over some tiles.

        Args:
            family: What kind of work it is.
            tiles: How many tiles are at work.
            steps: Its supersteps, in order.
            why: The reason for an estimate, in words.
            nbytes: Most bytes of work space on any tile.
            flops: Floating-point operations.
        """
        split, supersteps = {"tiles": tiles}, tuple(steps)
        return cls(family=family, split=split, supersteps=supersteps, temporary_bytes=nbytes, flops=flops, why=why)

    def split_of(self, family: str) -> Mapping[str, int]:
        """Return the split of the first part of a family; the plan's own split if no part is of that family."""
        return next((part for part in self.parts if part.family == family), self).split

    def cycles(self, profile: Profile) -> float:
        """Cycles of all supersteps."""
        return sum(step.cycles(profile) for step in self.supersteps)


@dataclass(frozen=True, kw_only=True)
class OpCost:
    """An operation of the captured program with its plan.

    Attributes:
        target: Its name in torch.
        phase: `forward`, `backward` or `update`; `accumulate` adds up gradients of several micro-batches; `host` moves
            data in and out.
        module: Dotted name of the submodule that asked for it.
        source: The model's line that asked for it.
        shapes: Shapes of its tensors, arguments first, as a report shows them.
        plan: How it is divided and what it costs.
        known: False if no rule knows the operation and a conservative one stood in.
        count: How often one step runs it: once a micro-batch, or once an update.
        bytes: Bytes that it reads and writes, had each tensor its own memory; a broadcast dimension counts once.
    """

    target: str
    phase: str
    module: str = ""
    source: str = ""
    shapes: str = ""
    plan: Plan
    known: bool = True
    count: int = 1
    bytes: int = 0

    @property
    def family(self) -> str:
        """What kind of work it is."""
        return self.plan.family

    @property
    def flops(self) -> int:
        """Floating-point operations of one run, a multiply-accumulate counted as two."""
        return self.plan.flops
