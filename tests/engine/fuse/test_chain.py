"""Elements of several values are described in the fewest dimensions."""

import itertools
import random

import pytest

from popgeo.engine.fuse.chain import CODES, OPERANDS, collapse


def offsets(shape, strides):
    """Return the offset of each element, in order."""
    return [sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*map(range, shape))]


def test_the_same_elements_in_the_same_order_in_the_fewest_dimensions():
    draw = random.Random(0)
    for _ in range(150):
        shape = tuple(draw.choice((2, 3)) for _ in range(draw.randrange(5)))
        strides = []
        for _ in range(draw.randint(1, 3)):
            own, step = [], draw.choice((1, 1, 2))
            for size in reversed(shape):
                own.insert(0, draw.choice((step, step, step, 0)))
                step *= size + draw.choice((0, 0, 0, 1))
            strides.append(tuple(own))
        sizes, joined = collapse(shape, strides)
        assert [offsets(sizes, own) for own in joined] == [offsets(shape, own) for own in strides]
        for d in range(len(sizes) - 1):  # no two neighbors could be one
            assert any(own[d] != own[d + 1] * sizes[d + 1] for own in joined)


def test_the_codes_are_those_of_the_compiled_program():
    # In the order of TABLE in native/csrc/chains.cpp; what moves elements and sums follows from 100 on.
    assert list(CODES.items())[:3] == [("copy", 0), ("neg", 1), ("abs", 2)]
    assert [CODES[name] for name in ("add", "where", "lerp")] == [18, 36, 39]
    assert [CODES[name] for name in ("fill", "load_float", "store_bool", "sum_rows", "sum_all")] == [
        100,
        101,
        106,
        107,
        109,
    ]


@pytest.mark.parametrize(
    ("code", "operands"), [("silu", 1), ("mul", 2), ("tanh_backward", 2), ("where", 3), ("fma", 3)]
)
def test_how_many_operands_a_step_takes(code, operands):
    assert OPERANDS[code] == operands
