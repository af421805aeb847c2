"""The findings of all claims as text, as JSON and as a page."""

import json
import math
from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import Any

from popgeo.ipu.report.html_page import section, shell, table
from popgeo.ipu.report.tables import TableColumn
from popgeo.testing.claims import Finding, Status, SubjectKind

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
