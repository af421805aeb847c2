"""How far the figures of a report can be trusted."""

from popgeo.ipu.plan import Validity
from popgeo.ipu.profile.rows import op_rows
from popgeo.ipu.report import Report


def trust(report: Report) -> dict[Validity, float]:
    """Part of the cycles whose formula was checked at such sizes, checked at other sizes, or not checked."""
    shares = dict.fromkeys(Validity, 0.0)
    for op in op_rows(report):
        shares[Validity(op["trust"])] += op["share"]
    return shares


def footer(report: Report) -> list[str]:
    """The same in words."""
    shares = trust(report)
    unknown = sum(op["share"] for op in op_rows(report) if not op["known"])
    words = (
        f"trust: {shares[Validity.VALIDATED]:.0%} of the cycles validated on published measurements, "
        f"{shares[Validity.EXTRAPOLATED]:.0%} outside their sizes,"
    )
    return [words, f"  {shares[Validity.ESTIMATE]:.0%} estimates (no published figures), {unknown:.0%} without a rule"]
