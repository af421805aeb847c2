"""Plans that the machine runs one after the other as one operation."""

from collections.abc import Sequence

from popgeo.ipu.plan import Plan, Validity

_WEAKEST = (Validity.ESTIMATE, Validity.EXTRAPOLATED, Validity.VALIDATED)


def in_sequence(family: str, plans: Sequence[Plan], *, main: int = 0) -> Plan:
    """One plan out of several, no more trustworthy than the weakest of them.

    Args:
        family: What to call it.
        plans: In the order in which they run.
        main: Which of them gives the split.

    Example:
        >>> first, second = Plan(family="gather", flops=1), Plan(family="multiply", flops=2)
        >>> both = in_sequence("both", [first, second])
        >>> both.flops, len(both.parts)
        (3, 2)
    """
    validity = min((plan.validity for plan in plans), key=_WEAKEST.index)
    reasons = dict.fromkeys(f"{plan.family}: {plan.why}" for plan in plans if plan.why)
    return Plan(
        family=family,
        split=plans[main].split,
        supersteps=tuple(step for plan in plans for step in plan.supersteps),
        temporary_bytes=max(plan.temporary_bytes for plan in plans),
        flops=sum(plan.flops for plan in plans),
        considered=sum(plan.considered for plan in plans),
        validity=validity,
        why="; ".join(reasons),
        parts=tuple(plans),
    )
