"""Which operations draw random numbers, and whether shapes alone tell how many."""

from popgeo.capture.op_graph import Op
from popgeo.capture.passes import is_random

# How many numbers these draw depends on shapes alone, so the numbers behind theirs can be found without data.
_COUNTED = (
    "bernoulli", "bernoulli_", "native_dropout", "rand", "randn", "rand_like", "randn_like", "randint", "randint_like",
    "randperm", "uniform", "uniform_", "normal_", "normal_functional", "random_", "exponential_", "exponential",
    "rrelu_with_noise", "rrelu_with_noise_functional",
)  # fmt: skip
# Marked as random, since they can drop out; on a processor they refuse to, and draw nothing.
_NEVER = ("_scaled_dot_product_flash_attention_for_cpu",)


def draws(op: Op) -> bool:
    """Whether an operation draws random numbers.

    Example:
        >>> draws(Op(target="aten.bernoulli.default", args=(), outputs=()))
        True
    """
    return is_random(op) and (bool(op.bodies) or op.target.split(".")[1] not in _NEVER)


def uncounted(op: Op) -> bool:
    """Whether it depends on data how many random numbers an operation draws.

    Example:
        >>> uncounted(Op(target="aten.poisson.default", args=(), outputs=()))
        True
    """
    return draws(op) and (bool(op.bodies) or op.target.split(".")[1] not in _COUNTED)
