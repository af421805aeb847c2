"""How far the figures of a report can be trusted."""

from popgeo.ipu.cost.plan import Validity
from popgeo.ipu.report.figures import Figures

# Median error of calibrated cycles on published measurements that no constant was fitted to is at most this; the gates
# of benchmarks/cost_model_validation.py. Of scatters only scatter-add was measured, and of what is fused only the
# convolution, as part of an interaction block of SchNet.
ERROR_BANDS = {"gather": 0.07, "scatter": 0.05, "matmul": 0.08}  # by family
ERROR_BANDS_OF_OPERATIONS = {"cfconv": 0.06}


def trust(report: Figures) -> dict[Validity, float]:
    """Part of the cycles whose formula was checked at such sizes, checked at other sizes, or not checked."""
    shares = dict.fromkeys(Validity, 0.0)
    for op in report.rows.ops:
        shares[Validity(op["trust"])] += op["share"]
    return shares


def footer(report: Figures) -> list[str]:
    """How far to trust the figures, in words, with the errors that were found on measurements."""
    shares = trust(report)
    ops = report.rows.ops
    unknown = sum(op["share"] for op in ops if not op["known"])
    measured = [op for op in ops if op["trust"] != Validity.ESTIMATE.value]
    found = {op["family"] for op in measured} | {op["op"] for op in measured}
    bands = [f"{n} {error:.0%}" for n, error in (ERROR_BANDS | ERROR_BANDS_OF_OPERATIONS).items() if n in found]
    lines = [
        f"trust: {shares[Validity.VALIDATED]:.0%} of the cycles validated, {shares[Validity.EXTRAPOLATED]:.0%} at "
        f"sizes beyond, {shares[Validity.ESTIMATE]:.0%} estimates, of them {unknown:.0%} without a rule"
    ]
    if bands:
        lines.append(f"  median error on published Bow IPU figures at most: {', '.join(bands)}")
    return lines
