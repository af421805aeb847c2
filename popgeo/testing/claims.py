"""The classes of the kit: claims about a model, a loader, a sampler or a neighbor list, and their findings."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from torch_geometric.data import Data, HeteroData


class SubjectKind(Enum):
    """The kind of a claim's subject."""

    MODEL = "model"
    LOADER = "loader"
    SAMPLER = "sampler"
    NEIGHBOR_LIST = "neighbor list"


class Status(Enum):
    """The status of a tried claim."""

    HELD = "held"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class NotTriedError(Exception):
    """The error of a claim that cannot be tried on this subject; it is not a failure."""


class BrokenError(AssertionError):
    """The error of a claim that does not hold.

    Args:
        words: The finding, the expectation, and the place.
        cause: Usual cause and its remedy. Default: the claim's cause.
        figures: Figures of the finding, by name.
    """

    def __init__(self, words: str, cause: str = "", **figures: float) -> None:
        super().__init__(words)
        self.cause, self.figures = cause, figures


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case on which a claim is tried: a few graphs, and the settings of one way to try it.

    Attributes:
        graphs: Graphs without padding.
        settings: One of the claim's settings, such as the amount and the content of padding.
    """

    graphs: tuple[Data | HeteroData, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subject(ABC):
    """The base class of subjects, on which claims are tried. Each kind has its own class.

    Attributes:
        what: Model, loader, sampler or neighbor list, or the function that makes it.
        graphs: Graphs to try it with.
        origin: Place for scripts to import it from, as `package.module:factory`; empty if the caller passed an object.
        asked: Names of optional claims that this subject should satisfy.
    """

    kind: ClassVar[SubjectKind]
    limit: ClassVar[int] = 4
    what: Any
    graphs: tuple[Data | HeteroData, ...] = ()
    origin: str = ""
    asked: Collection[str] = ()

    @property
    def name(self) -> str:
        """The subject's name in messages."""
        return self.origin or getattr(self.what, "__name__", type(self.what).__name__)

    @abstractmethod
    def prepare(self) -> None:
        """Run the subject once on simple input, before any claim is tried.

        Raises:
            ValueError: the subject cannot be used; the message asks for the missing information.
        """

    def why_not(self, claim: "Claim") -> str:
        """Return the reason why a claim does not apply to this subject; empty if it applies."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim: a property that users expect of a subject.

    Attributes:
        name: Name in a few words, as on the command line.
        kind: Kind of the subject.
        says: The claim in one sentence.
        tried: Description of the check.
        cause: Usual cause of a failure, and the remedy.
        check: Function that raises `BrokenError` if the claim does not hold in a case, and `NotTriedError` if it cannot
            decide. It may return figures that show how well the claim holds.
        settings: Settings of each way to try the claim, in order.
        optional: Whether the claim is tried only on request.
        slow: Whether the check takes seconds.
    """

    name: str
    kind: SubjectKind
    says: str
    tried: str
    cause: str
    check: Callable[[Any, Case], Mapping[str, float] | None]
    settings: Sequence[Mapping[str, Any]] = ({},)
    optional: bool = False
    slow: bool = False


def require(subject: Subject, name: str, **settings: Any) -> None:
    """Try one claim with one setting, as a line of a test.

    Raises:
        AssertionError: the claim does not hold; the message ends with the usual cause.
    """
    claim = CLAIMS[subject.kind, name]
    try:
        claim.check(subject, Case(graphs=subject.graphs, settings=settings))
    except BrokenError as broken:
        raise AssertionError(f"{broken}\nThe usual cause: {broken.cause or claim.cause}.") from None


CLAIMS: dict[tuple[SubjectKind, str], Claim] = {}


def claim(name: str, kind: SubjectKind, *more: SubjectKind, **rest: Any) -> Callable[[Callable], Callable]:
    """Register a function `check(subject, case)` as a claim that its docstring describes.

    The docstring's first sentence is the claim, and may begin with "Check that". A paragraph that begins with `Tried:`
    describes the check. A paragraph that begins with `Cause:` names the usual cause of a failure and the remedy.

    Args:
        name: Name of the claim.
        kind: Kind of its subjects.
        more: Further kinds of subjects.
        rest: `settings`, `optional` and `slow` of `Claim`; `tried` and `cause`, if the docstring does not contain them.
    """

    def register(check: Callable) -> Callable:
        summary, *parts = (" ".join(part.split()) for part in (check.__doc__ or "").split("\n\n"))
        says = summary.removeprefix("Check that ")
        given = dict(part.rstrip(".").split(": ", 1) for part in parts if part.startswith(("Tried: ", "Cause: ")))
        about = {"tried": given.get("Tried", ""), "cause": given.get("Cause", ""), **rest}
        about["says"] = says[:1].upper() + says[1:]
        for one in (kind, *more):
            CLAIMS[one, name] = Claim(name=name, kind=one, check=check, **about)
        return check

    return register


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of trying a claim.

    Attributes:
        claim: The claim.
        status: Whether it held, failed, or was not tried.
        words: The finding, or the reason why the claim was not tried.
        cause: Usual cause and its remedy, for a failure.
        figures: Figures of the check, by name.
        case: Smallest failing case.
        script: Smallest failing case as a script.
        seconds: Run time.
        is_broken: Whether the attempt ended early, by `sys.exit()` or without memory.
    """

    claim: Claim
    status: Status
    words: str = ""
    cause: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    case: Case | None = None
    script: str = ""
    seconds: float = 0.0
    is_broken: bool = False
