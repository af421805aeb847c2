"""Formulas: Python's own arithmetic on other numbers, for the path that the recorded code took."""

import copy
import math

import pytest

from popgeo.engine.optimizer.formula import Formula, recorded_math


def recorded(function, *reals):
    """Return what a formula computes for the result of a function, and the result on the given numbers."""
    formula = Formula()
    leaves = [*map(formula.leaf, reals)]
    with recorded_math():
        made = function(*leaves)
    evaluate = formula.compiled(leaves, [], [made], [])

    def on(*others):
        found = evaluate(others, [])
        return None if found is None else found[0][0]

    return on


FUNCTIONS = [
    lambda x, y: x / (1 - y**3), lambda x, y: -x % 0.3 // y, lambda x, y: (1 - x) * 2 + (3 - y) / 7,
    lambda x, y: abs(x - y) ** 0.5 - +y, lambda x, y: round(x * 10, 1) + math.floor(7 * y) + math.ceil(y),
    lambda x, y: math.sqrt(x) + math.pow(y, x) - math.exp(-x), lambda x, y: 2**x - y**-0.5 + 1 / y + 5 % y + 5 // x,
    lambda x, y: float(x) * y,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_numbers_are_python_s_to_the_last_bit(function):
    on = recorded(function, 0.25, 0.5)
    for x, y in ((0.25, 0.5), (0.7, 0.9), (3.0, 2.5), (1e-8, 0.1)):
        assert on(x, y) == function(x, y)


@pytest.mark.parametrize(
    ("function", "same", "other"),
    [
        (lambda x: x if x > 0.5 else -x, 0.6, 0.4),
        (lambda x: max(1.0, x) * x, 0.2, 1.5),
        (lambda x: x + 1 if x else x, 2.0, 0.0),
        (lambda x: x * 2 if x != 0.3 else x, 0.2, 0.3),
        (lambda x: x * 2 if math.isfinite(x) else x, 4.0, math.inf),
    ],
)
def test_numbers_on_another_path_are_not_computed(function, same, other):
    on = recorded(function, 0.9)
    assert on(same) == function(same)
    assert on(other) is None


@pytest.mark.parametrize("use", [int, hash, range, lambda x: divmod(x, 2), lambda x: [1, 2][x]])
def test_what_cannot_be_recorded_raises(use):
    with pytest.raises(TypeError):
        use(Formula().leaf(1))


def test_a_number_of_unknown_kind_cannot_be_recorded():
    with pytest.raises(TypeError, match="complex, which cannot be tracked"):
        Formula().leaf(-1.0) ** 0.5


def test_a_number_is_found_by_its_float_and_copies_are_the_number_itself():
    formula = Formula()
    number = formula.leaf(0.5)
    assert formula.found(float(number)) is number
    assert formula.found(0.5) == 0.5
    assert copy.deepcopy({"lr": [number]})["lr"][0] is number


def test_the_functions_of_math_are_themselves_again():
    before = dict(vars(math))
    with recorded_math():
        assert math.sqrt(4.0) == 2.0
        assert math.sqrt is not before["sqrt"]
    assert vars(math) == before
