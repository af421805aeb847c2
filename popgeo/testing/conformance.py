"""The check of all claims about a subject, and its findings as text, as JSON and as a page."""

import importlib
import json
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import torch

from popgeo.command_line import described, found_at
from popgeo.ipu.report.html_page import section, shell, table
from popgeo.ipu.report.tables import TableColumn
from popgeo.testing.claims import CLAIMS, Case, Claim, Finding, NotTriedError, Status, Subject, SubjectKind
from popgeo.testing.fixed_batches import first_graphs
from popgeo.testing.loader_subject import LoaderSubject, SamplerSubject
from popgeo.testing.model_subject import ModelSubject
from popgeo.testing.neighbor_claims import NeighborSubject
from popgeo.testing.smallest_case import issue_script, shrink

_MARKS = {Status.HELD: "held", Status.FAILED: "FAILED", Status.NOT_TRIED: "not tried"}


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """The findings of all claims about a subject.

    Attributes:
        subject: Name of the subject.
        kind: Kind of the subject.
        findings: One finding per claim.
        seconds: Run time of all claims.
    """

    subject: str
    kind: SubjectKind
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the claims that failed."""
        return tuple(finding.claim.name for finding in self.findings if finding.status is Status.FAILED)

    def finding(self, name: str) -> Finding:
        """Return the finding of a claim."""
        return next(finding for finding in self.findings if finding.claim.name == name)

    def require(self) -> None:
        """Raise AssertionError with the text if a claim failed."""
        if self.failed:
            raise AssertionError(self.text())

    @property
    def _summary(self) -> str:
        counts = Counter(finding.status for finding in self.findings)
        numbers = ", ".join(f"{counts[status]} {status.value}" for status in Status)
        return f"{self.kind.value} {self.subject}: {numbers}, in {self.seconds:.1f} s"

    def text(self) -> str:
        """Return a line per claim; for failures also the finding, its usual cause, and a script."""
        lines = [self._summary]
        for finding in self.findings:
            figures = ", ".join(f"{name} {value:.3g}" for name, value in finding.figures.items())
            words = f" ({finding.words})" if finding.status is Status.NOT_TRIED else figures and f" ({figures})"
            lines.append(f"  {_MARKS[finding.status]:9}  {finding.claim.name}: {finding.claim.says}{words}")
        for finding in self.findings:
            if finding.status is Status.FAILED:
                lines += ["", f"{finding.claim.name}: {finding.words}", f"Tried: {finding.claim.tried}"]
                lines += [f"The usual cause: {finding.cause}.", "The smallest failing case:", ""]
                lines += [f"    {line}".rstrip() for line in finding.script.splitlines()]
        return "\n".join(lines)

    __str__ = text

    def to_json(self) -> str:
        """Return all findings as JSON; infinite and NaN figures are strings."""
        about = {"subject": self.subject, "kind": self.kind.value, "seconds": round(self.seconds, 3)}
        return json.dumps({**about, "findings": list(map(_as_plain, self.findings))}, allow_nan=False, indent=1)

    def html(self) -> str:
        """Return a page that needs no other file and runs no script."""
        sections = {"claims": section("claims", "Claims", _table(self.findings))}
        for i, finding in enumerate(self.findings):
            if finding.status is Status.FAILED:
                sections[f"claim-{i} {finding.claim.name}"] = _failure(i, finding)
        return shell(f"Claims about {self.subject}", f'<p class="soft">{escape(self._summary)}</p>', sections)


def _as_plain(finding: Finding) -> dict[str, Any]:
    claim, figures = finding.claim, {name: x if math.isfinite(x) else str(x) for name, x in finding.figures.items()}
    about = {"claim": claim.name, "says": claim.says, "tried": claim.tried, "status": finding.status.value}
    about |= {"words": finding.words, "cause": finding.cause}
    return {**about, "figures": figures, "script": finding.script, "seconds": round(finding.seconds, 3)}


def _table(findings: tuple[Finding, ...]) -> str:
    columns = [TableColumn(name=name, unit="", about="") for name in ("status", "claim", "says", "tried", "found")]
    cells = (
        (_MARKS[f.status], f.claim.name, f.claim.says, f.claim.tried, f.words.partition("\n")[0]) for f in findings
    )
    return table(columns, [dict(zip((column.name for column in columns), row, strict=True)) for row in cells])


def _failure(number: int, finding: Finding) -> str:
    content = (
        f'<div class="insight fatal"><b>{escape(finding.claim.says)}</b><p>{escape(finding.words)}</p>'
        f'<p class="do">The usual cause: {escape(finding.cause)}.</p></div>'
        f"<p>The smallest failing case:</p><pre>{escape(finding.script)}</pre>"
    )
    return section(f"claim-{number}", escape(finding.claim.name), content)


# Each family of claims is a file `NAME_claims.py`; importing it registers its claims.
FAMILIES = ("invariance", "input", "gradient", "physics", "compile", "bit", "loader", "neighbor")
_SUBJECTS: tuple[type[Subject], ...] = (ModelSubject, LoaderSubject, SamplerSubject, NeighborSubject)


def check_conformance(
    what: Any,
    graphs: Any = None,
    *,
    kind: SubjectKind | str = SubjectKind.MODEL,
    claims: Collection[str] | None = None,
    also: Collection[str] = (),
    slow: bool = False,
    settings: Mapping[str, Any] | None = None,
    limit: int | None = None,
    shrink_seconds: float = 3.0,
    **how: Any,
) -> Conformance:
    """Try every claim about a subject, and return the findings, with the smallest failing cases.

    Args:
        what: Model, or function that makes a loader, sampler or neighbor list; or `"module:factory"`, which returns it,
            a `Subject`, or a pair of it and its graphs.
        graphs: Graphs to try it with: a list, a dataset or a batch. Default: a few of the bundled molecules.
        kind: Kind of the subject.
        claims: Names of the claims to try. Default: all.
        also: Names of optional claims to try, such as "rotation"; `["all"]` requests all of them.
        slow: Whether to try claims that take seconds each.
        settings: Only setting for all claims, as in the script of a failing case.
        limit: Largest number of graphs to use. Default: 4 for models, 100 for other kinds.
        shrink_seconds: Longest search for a smaller case, for each failing claim.
        how: Other fields of the subject's class, such as `call` of a model.

    Raises:
        ValueError: the subject cannot be used, or a claim is unknown; the message asks for the missing information.

    Example:
        >>> from popgeo import ops
        >>> def total(batch):
        ...     return ops.global_add_pool(batch.x, batch.batch, batch.num_graphs)
        >>> check_conformance(total).failed
        ()
    """
    subject = subject_of(what, graphs, kind=kind, limit=limit, **how)
    start = time.perf_counter()
    known = known_claims(subject.kind)
    asked = {*also, *subject.asked, *(claims or ())}
    for name in asked - {*known, "all"}:
        raise ValueError(f"{name!r} is not a claim of a {subject.kind.value}; the claims are {', '.join(known)}.")
    try:
        subject.prepare()
    except SystemExit as error:
        raise ValueError(f"{subject.name} cannot be tried: {described(error)}.") from error
    found = []
    for claim in known.values() if claims is None else [known[name] for name in claims]:
        reason = subject.why_not(claim)
        if claim.optional and not asked & {claim.name, "all"}:
            reason = f"it is optional: request it by also={[claim.name]!r}, or --also {claim.name!r}"
        elif claim.slow and not slow and claim.name not in asked:
            reason = "it takes seconds: request it by slow=True, or --slow"
        ways = claim.settings if settings is None else [settings]
        if reason:
            found.append(Finding(claim=claim, status=Status.NOT_TRIED, words=reason))
        else:
            found.append(try_claim(claim, subject, ways, shrink_seconds))
    seconds = time.perf_counter() - start
    return Conformance(subject=subject.name, kind=subject.kind, findings=tuple(found), seconds=seconds)


def subject_of(
    what: Any, graphs: Any = None, *, kind: SubjectKind | str = SubjectKind.MODEL, limit: int | None = None, **how: Any
) -> Subject:
    """Return the subject for any object that `check_conformance` accepts."""
    if isinstance(what, str):
        how["origin"] = what
        what = call_factory(what) if SubjectKind(kind) is SubjectKind.MODEL else found_at(what)
    if isinstance(what, tuple) and len(what) == 2:
        graphs, what = what[1] if graphs is None else graphs, what[0]
    kinds = {subject.kind: subject for subject in _SUBJECTS}
    subject = type(what) if isinstance(what, Subject) else kinds[SubjectKind(kind)]
    if graphs is not None:
        how["graphs"] = tuple(first_graphs(graphs, subject.limit if limit is None else limit))
    return replace(what, **how) if isinstance(what, Subject) else subject(what=what, **how)


def call_factory(origin: str) -> Any:
    """Return the result of the factory `module:factory`.

    Raises:
        ValueError: nothing has this name, or the factory needs arguments or fails.
    """
    make = found_at(origin)
    try:
        return make()
    except TypeError as error:
        raise ValueError(
            f"{origin} cannot be called without arguments: {error}. Write a function without arguments that returns "
            "the model, or the model and a list of graphs, and pass its name."
        ) from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"{origin} failed: {described(error)}.") from error


def ends_attempt(error: BaseException) -> bool:
    """Check whether an error says nothing about a claim: the model ended the process, or memory ran out."""
    no_memory = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return no_memory or isinstance(error, (SystemExit, MemoryError, torch.OutOfMemoryError))


def known_claims(kind: SubjectKind) -> dict[str, Claim]:
    """Return all claims of a kind, by name, in the order of their families, and then the user's own claims."""
    modules = [importlib.import_module(f"popgeo.testing.{family}_claims").__name__ for family in FAMILIES]
    place = {name: number - len(modules) for number, name in enumerate(modules)}
    known = [(name, claim) for (of, name), claim in CLAIMS.items() if of is kind]
    return dict(sorted(known, key=lambda one: place.get(one[1].check.__module__, 0)))


def try_claim(claim: Claim, subject: Subject, ways: Sequence[Mapping[str, Any]], shrink_seconds: float) -> Finding:
    """Try a claim in each way until it fails, and then search for the smallest failing case."""
    start = time.perf_counter()
    figures: dict[str, float] = {}

    def seen(**rest: Any) -> Finding:
        return Finding(claim=claim, seconds=time.perf_counter() - start, **rest)

    reasons = []
    for settings in ways:
        case = Case(graphs=subject.graphs, settings=settings)
        made, error = _try_once(claim, subject, case)
        figures |= {name: max(value, figures.get(name, value)) for name, value in made.items()}
        if isinstance(error, NotTriedError):
            reasons.append(str(error))
        elif error is not None and ends_attempt(error):
            return seen(status=Status.NOT_TRIED, words=described(error), is_broken=True)
        elif error is not None:
            smaller = _smallest_case(claim, subject, case, type(error), shrink_seconds) if shrink_seconds else case
            broken = (None if smaller is case else _try_once(claim, subject, smaller)[1]) or error
            return seen(
                status=Status.FAILED,
                words=str(broken) if isinstance(broken, AssertionError) else described(broken),
                cause=getattr(broken, "cause", "") or claim.cause,
                figures=getattr(broken, "figures", {}),
                case=smaller,
                script=issue_script(subject, claim, smaller),
            )
    if len(reasons) == len(ways):
        return seen(status=Status.NOT_TRIED, words=reasons[0])
    return seen(status=Status.HELD, figures=figures)


def _try_once(claim: Claim, subject: Subject, case: Case) -> tuple[Mapping[str, float], BaseException | None]:
    """Return the figures of a claim in a case, and any error that it raises."""
    try:
        return claim.check(subject, case) or {}, None
    except (Exception, SystemExit) as error:
        return {}, error


def _smallest_case(claim: Claim, subject: Subject, case: Case, error: type[BaseException], seconds: float) -> Case:
    until = time.perf_counter() + seconds

    def fails(smaller: Case) -> bool:
        if time.perf_counter() >= until or type(_try_once(claim, subject, smaller)[1]) is not error:
            return False
        try:
            replace(subject, graphs=smaller.graphs).prepare()  # otherwise its script would end before the claim
        except ValueError:
            return False
        return True

    try:
        return shrink(case, fails)
    except ValueError:  # a flat store refuses these graphs, so show all of them
        return case
