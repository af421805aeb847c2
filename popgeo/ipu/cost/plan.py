"""Plans of operations: their division over the tiles, and the cost of each superstep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Activity(str, Enum):
    """The activity of the slowest tile in a superstep."""

    COMPUTE = "compute"
    EXCHANGE = "exchange"
    SYNC = "sync"
    HOST = "host"


class Profile(str, Enum):
    """The kind of cycles that a report adds up."""

    IDEAL = "ideal"
    CALIBRATED = "calibrated"


class Validity(str, Enum):
    """The basis of a cost: a measurement, an extrapolation from measurements, or an estimate.

    Attributes:
        VALIDATED: Inside the range of sizes at which the formula was checked against published measurements.
        EXTRAPOLATED: The formula was checked, but on smaller or larger sizes.
        ESTIMATE: No published measurement of this kind of operation is known.
    """

    VALIDATED = "validated"
    EXTRAPOLATED = "extrapolated"
    ESTIMATE = "estimate"


Judgement = tuple[Validity, str]
"""The validity of a cost, and a sentence with the reason for an estimate or an extrapolation."""


@dataclass(frozen=True, kw_only=True)
class Superstep:
    """One bulk-synchronous step of an operation.

    Attributes:
        name: Name of its work, such as `slice rows` or `add partial sums`.
        activity: Activity of the slowest tile.
        ideal: Cycles of the slowest tile by the formulas alone.
        calibrated: Cycles of the slowest tile with the constants fitted to published measurements.
        mean: Ideal cycles averaged over all tiles; `mean / ideal` is the evenness of the work.
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
        """Return the cycles of the slowest tile."""
        return self.calibrated if profile == Profile.CALIBRATED else self.ideal


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen division of one operation and its cost.

    Attributes:
        family: Family of the operation in the table of operations, such as `gather` or `matmul`.
        split: Number of parts of each dimension of the work, such as `{"rows": 4, "columns": 16}`.
        supersteps: Supersteps with their cost, in order.
        temporary_bytes: Most bytes of any tile while the operation runs, beyond its arguments and results.
        flops: Floating-point operations of all tiles, a multiply-accumulate counted as two.
        considered: Number of divisions that were compared.
        validity: Validity of the cost.
        why: Sentence with the reason for an estimate or an extrapolation.
        parts: Plans of the parts, in order, if the machine runs the operation as several.
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
        """Return an estimate for work on elements that are mapped in order over some tiles.

        Args:
            family: Family of the operation.
            tiles: Number of tiles at work.
            steps: Supersteps, in order.
            why: Sentence with the reason for the estimate.
            nbytes: Most bytes of work space on any tile.
            flops: Floating-point operations.
        """
        split, supersteps = {"tiles": tiles}, tuple(steps)
        return cls(family=family, split=split, supersteps=supersteps, temporary_bytes=nbytes, flops=flops, why=why)

    def split_of(self, family: str) -> Mapping[str, int]:
        """Return the split of the first part of a family; the plan's own split if no part is of that family."""
        return next((part for part in self.parts if part.family == family), self).split

    def cycles(self, profile: Profile) -> float:
        """Return the cycles of all supersteps."""
        return sum(step.cycles(profile) for step in self.supersteps)


@dataclass(frozen=True, kw_only=True)
class OpCost:
    """An operation of the captured program with its plan.

    Attributes:
        target: Name of the operation in torch.
        phase: `forward`, `backward` or `update`; `accumulate` adds up gradients of several micro-batches; `host` moves
            data in and out.
        module: Dotted name of the submodule that calls the operation.
        source: Line of the model that calls the operation.
        shapes: Shapes of its tensors, arguments first, as text for reports.
        plan: Division over the tiles, and its cost.
        known: Whether a rule knows the operation; otherwise its plan is conservative.
        count: Runs in one step: one per micro-batch, or one per update.
        bytes: Bytes read and written, as if each tensor had its own memory; a broadcast dimension counts once.
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
        """Family of the operation in the table of operations."""
        return self.plan.family

    @property
    def flops(self) -> int:
        """Floating-point operations of one run, a multiply-accumulate counted as two."""
        return self.plan.flops
