"""Which operations draw random numbers, and whether shapes alone tell how many."""

from popgeo.capture.op_graph import Op
from popgeo.capture.operations import Draws, operation_of
from popgeo.capture.passes import is_random


def draws(op: Op) -> bool:
    """Whether an operation draws random numbers.

    Example:
        >>> draws(Op(target="aten.bernoulli.default", args=(), outputs=()))
        True
    """
    return is_random(op) and (bool(op.bodies) or operation_of(op.target).draws is not Draws.NEVER)


def uncounted(op: Op) -> bool:
    """Whether it depends on data how many random numbers an operation draws.

    Example:
        >>> uncounted(Op(target="aten.poisson.default", args=(), outputs=()))
        True
    """
    return draws(op) and (bool(op.bodies) or operation_of(op.target).draws is not Draws.SHAPE)
