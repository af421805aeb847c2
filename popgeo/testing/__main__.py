"""`python -m popgeo.testing module:factory` tries every claim on the result of a factory and prints the findings."""

import sys
from collections.abc import Sequence
from pathlib import Path

from popgeo.atomic_write import write_atomically
from popgeo.command_line import OneLineParser, add_options, described, run
from popgeo.testing.claims import Status, SubjectKind
from popgeo.testing.conformance import check_conformance, known_claims


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a claim failed, 2 if a requested claim could not be tried, and 0 otherwise."""
    parser = OneLineParser(prog="python -m popgeo.testing", description=__doc__)
    parser.add_argument("model", nargs="*", metavar="module:factory", help="a function that returns a model")
    for kind in SubjectKind:
        flag = f"--{kind.value.replace(' ', '-')}"
        parser.add_argument(flag, action="append", dest=kind.name, default=[], metavar="module:factory")
    add_options(parser, Path(__file__).with_name("options.csv"))
    args = parser.parse_args(arguments)
    if args.list:
        named = ((kind, claim) for kind in SubjectKind for claim in known_claims(kind).values())
        print("\n".join(f"{kind.value}: {claim.name}: {claim.says}" for kind, claim in named))
        return 0
    args.MODEL += args.model
    subjects = [(kind, origin) for kind in SubjectKind for origin in getattr(args, kind.name)]
    if not subjects:
        parser.error("name a factory to try, as package.module:factory")
    reports = []
    try:
        for kind, origin in subjects:
            how = {"claims": args.claims or None, "also": args.also, "slow": args.slow}
            reports.append(check_conformance(origin, kind=kind, **how))
            print(reports[-1])
        if args.json:
            write_atomically(args.json, f"[{','.join(report.to_json() for report in reports)}]\n".encode())
        for i, report in enumerate(reports if args.html else ()):
            path = args.html if i == 0 else args.html.with_stem(f"{args.html.stem}-{i + 1}")
            write_atomically(path, report.html().encode())
    except (Exception, SystemExit) as error:  # a traceback would end with status 1, the status of a failed claim
        is_known = isinstance(error, (ValueError, OSError))
        words = error if is_known else f"{origin} could not be tried: {described(error)}"
        print(f"popgeo.testing: {words}", file=sys.stderr)
        return 2
    if any(report.failed for report in reports):
        return 1
    asked = {*args.also, *args.claims} - {"all"}
    findings = [one for report in reports for one in report.findings if one.status is Status.NOT_TRIED]
    untried = {one.claim.name: one.words for one in findings if one.is_broken or one.claim.name in asked}
    for name, words in untried.items():
        print(f"popgeo.testing: {name} was requested but not tried: {words}", file=sys.stderr)
    return 2 if untried else 0


if __name__ == "__main__":
    run(main)
