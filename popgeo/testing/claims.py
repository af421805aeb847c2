"""The nouns of the kit: claims about a model, a loader, a sampler or a neighbor list, and their results."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from torch_geometric.data import Data, HeteroData


class SubjectKind(Enum):
    """What a claim is made of."""

    MODEL = "model"
    LOADER = "loader"
    SAMPLER = "sampler"
    NEIGHBOR_LIST = "neighbor list"


class Status(Enum):
    """What came of trying a claim."""

    HELD = "held"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class NotTriedError(Exception):
    """A claim cannot be tried on this subject; the message says why. It is not a failure."""


class BrokenError(AssertionError):
    """A claim does not hold.

    Args:
        words: The finding, the expectation, and the place.
        cause: The usual cause and its remedy, if it differs from the claim's.
        figures: The numbers of it, by name.
    """

    def __init__(self, words: str, cause: str = "", **figures: float) -> None:
        super().__init__(words)
        self.cause, self.figures = cause, figures


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a claim is tried on: a few graphs, and how.

    Attributes:
        graphs: Without padding.
        settings: One of the claim's ways to be tried, such as how much padding there is and of what.
    """

    graphs: tuple[Data | HeteroData, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subject(ABC):
    """What claims are tried on. Each kind has a class of its own, which knows how to use what it holds.

    Attributes:
        what: The model, loader, sampler or neighbor list, or what makes it.
        graphs: What it is tried with.
        origin: Where a script finds it, as `package.module:factory`; empty if it was handed over.
        asked: The names of the claims that are tried only on request, as not all subjects make them.
    """

    kind: ClassVar[SubjectKind]
    limit: ClassVar[int] = 4
    what: Any
    graphs: tuple[Data | HeteroData, ...] = ()
    origin: str = ""
    asked: Collection[str] = ()

    @property
    def name(self) -> str:
        """What to call it."""
        return self.origin or getattr(self.what, "__name__", type(self.what).__name__)

    @abstractmethod
    def prepare(self) -> None:
        """Uses it once, as plainly as can be.

        Raises:
            ValueError: that cannot be; the message asks for what is missing.
        """

    def why_not(self, claim: "Claim") -> str:
        """Why a claim says nothing about this one; empty if it does."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that a user takes for granted of a subject.

    Attributes:
        name: In a few words, as on the command line.
        kind: What it is claimed of.
        says: The claim in one sentence.
        tried: How it is tried.
        cause: The usual reason if it does not hold, and the remedy.
        check: Raises `BrokenError` if it does not hold in a case, `NotTriedError` if that cannot be decided;
            returns figures that show how well it holds, or nothing.
        settings: The ways in which it is tried, one after the other.
        optional: Whether it is tried only on request.
        slow: Whether it takes seconds.
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
    """Tries one claim in one way, as a line of a test.

    Raises:
        AssertionError: it does not hold; the message ends with the usual cause.
    """
    claim = CLAIMS[subject.kind, name]
    try:
        claim.check(subject, Case(graphs=subject.graphs, settings=settings))
    except BrokenError as broken:
        raise AssertionError(f"{broken}\nThe usual cause: {broken.cause or claim.cause}.") from None


CLAIMS: dict[tuple[SubjectKind, str], Claim] = {}


def claim(name: str, kind: SubjectKind, *more: SubjectKind, **rest: Any) -> Callable[[Callable], Callable]:
    """Makes a claim of a function `check(subject, case)`, whose docstring is all that is said of it.

    Its first sentence is what is claimed; a paragraph that begins with `Tried:` says what is done, and one that begins
    with `Cause:` what is usually the reason if it does not hold, and the remedy.

    Args:
        name: See `Claim`.
        kind: See there.
        more: Other kinds of subjects of which the same is claimed.
        rest: `settings`, `optional`, `slow`; `tried` and `cause`, if the docstring does not say them.
    """

    def register(check: Callable) -> Callable:
        says, *parts = (" ".join(part.split()) for part in (check.__doc__ or "").split("\n\n"))
        given = dict(part.rstrip(".").split(": ", 1) for part in parts if part.startswith(("Tried: ", "Cause: ")))
        about = {"says": says, "tried": given.get("Tried", ""), "cause": given.get("Cause", ""), **rest}
        for one in (kind, *more):
            CLAIMS[one, name] = Claim(name=name, kind=one, check=check, **about)
        return check

    return register


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What came of trying a claim.

    Attributes:
        claim: The claim that was tried.
        status: What came of it.
        words: The finding, or why it was not tried.
        cause: The usual cause and its remedy, if it failed.
        figures: Numbers, by name.
        case: The smallest case that fails.
        script: That case as a script.
        seconds: That it took.
        is_broken: Whether it was not tried because the attempt ended: by `sys.exit()`, or without memory.
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
