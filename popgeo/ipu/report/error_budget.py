"""The expected error of a total, from residuals of microbenchmarks or, without measurements, from stated bands.

The residuals are measured cycles over modelled cycles of each family, in published microbenchmarks to which no constant
was fitted. Each band reaches from the tenth to the ninetieth percentile; `benchmarks/cost_model_validation.py` prints
the bands and a test checks them. The errors of one family are assumed to have the same sign, and the errors of
different families to be independent, so that their squares add up.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from popgeo.ipu.cost.plan import OpCost, Profile, Validity

Band = tuple[float, float]
# Element-wise and fused operations were measured only in SchNet's interaction block.
_BLOCK = (0.99, 1.04)
MEASURED: Mapping[str, Band] = {
    "gather": (0.93, 1.11), "scatter": (0.92, 1.03), "matmul": (0.96, 1.11), "elementwise": _BLOCK, "fused": _BLOCK,
}  # fmt: skip
"""Measured over modelled cycles, tenth to ninetieth percentile, by family."""
BEYOND = 2.0
"""Factor by which a band is wider beyond the measured sizes."""
NOT_MEASURED: Band = (0.8, 2.0)
"""Band of estimates. In measurements, the median machine took 2.1 times the cycles of the formulas without fitted
constants for gathers, 1.8 times for scatter-adds, 1.2 times for blocks and 1.0 times for products; a tenth of the
products took less than 0.9 times."""
PROGRAM: Band = (1 / 1.07, 1.07)
"""Band of any total: the same BERT program differs by a factor of 1.14 between two frameworks."""


@dataclass(frozen=True, kw_only=True)
class ErrorBudget:
    """The trust in a total, and the factors of the total that contain four of five machines.

    Attributes:
        validated: Part of the cycles from measured families at measured sizes.
        extrapolated: Part of the cycles from measured families at other sizes.
        estimates: Part of the cycles without measurements.
        low: Lower factor of the total.
        high: Upper factor of the total.
    """

    validated: float
    extrapolated: float
    estimates: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"


def error_budget(costs: Iterable[OpCost], profile: Profile = Profile.CALIBRATED) -> ErrorBudget:
    """Return the error budget of a step.

    Args:
        costs: Operations of the step. The host's operations have no share.
        profile: Kind of cycles.

    Example:
        >>> import torch
        >>> from popgeo import ipu
        >>> x, index = torch.ones(512, 64), torch.zeros(4096, dtype=torch.long)
        >>> print(ipu.compile(lambda x, index: x.index_select(0, index), [x, index]).report.error_budget)
        0.90 to 1.13
    """
    cycles = defaultdict[tuple[str, Validity], float](float)
    for cost in costs:
        if cost.phase != "host":
            cycles[cost.family, cost.plan.validity] += cost.count * cost.plan.cycles(profile)
    total = sum(cycles.values()) or 1.0
    bands = [(1.0, PROGRAM), *((n / total, _band(*key)) for key, n in cycles.items())]
    low, high = (math.hypot(*(share * (band[end] - 1) for share, band in bands)) for end in (0, 1))
    validated, extrapolated, estimates = (
        sum(n for (_, validity), n in cycles.items() if validity is one) / total for one in Validity
    )
    return ErrorBudget(validated=validated, extrapolated=extrapolated, estimates=estimates, low=1 - low, high=1 + high)


def _band(family: str, validity: Validity) -> Band:
    """Return the band of a family at a level of trust."""
    if validity is Validity.ESTIMATE or family not in MEASURED:
        return NOT_MEASURED
    wider = BEYOND if validity is Validity.EXTRAPOLATED else 1.0
    low, high = MEASURED[family]
    return 1 + wider * (low - 1), 1 + wider * (high - 1)
