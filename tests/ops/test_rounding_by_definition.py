"""Stochastic rounding, number by number: neighbors as fractions, random words by the published functions."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from popgeo.ops import round_stochastic
from popgeo.ops.round_stochastic import _keys

VALUES = [
    0.0, -0.0, 1.0, -1.0, 1 / 3, -2 / 3, 2.0**-14, 2.0**-14 * (1 - 2**-12), 1.7e-5, -3.3e-7, 2.0**-24, 2.0**-24 * 0.6,
    2.0**-25, 2.0**-30 * 1.3, 1000.7, -65503.9, 65504.0, 65519.9, 65520.0, 65535.9, 1 + 2**-12, 1 + 2**-23, 2 - 2**-23,
]  # fmt: skip
COUNTERS = [0, 1, -1, 11, 2**32, 2**63 - 1, -(2**63)]


def random_word(number: int, counter: int) -> int:
    """Compute an element's random word: splitmix64 of the counter gives two words for lowbias32 of its number."""
    z = (counter + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    z ^= z >> 31

    def lowbias32(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    return lowbias32((lowbias32(number ^ (z % 2**32)) + (z >> 32)) % 2**32)


def rounded(x: float, word: int, dtype: torch.dtype) -> float:
    """Round up for a share of all words that equals the position of x between its neighbors."""
    nearest = torch.tensor(abs(x)).to(dtype)
    bits = int(nearest.view(torch.int16)) - int(float(nearest) > abs(x))
    below, above = torch.tensor([bits, bits + 1], dtype=torch.int16).view(dtype).tolist()
    share = Fraction(abs(x)) - Fraction(below)
    if share:
        share /= Fraction(65536.0 if math.isinf(above) else above) - Fraction(below)
    if dtype is torch.bfloat16:
        up = word % 2**16 >= 2**16 * (1 - share)
    else:
        exponent = math.frexp(x)[1] + 126  # as float32 holds it
        kept = min(max(126 - exponent, 13), 31)
        up = word % 2**kept < math.floor(share * 2**kept)
    return math.copysign(above if up else below, x)


def words(x: Tensor) -> list[int]:
    return x.view(torch.int16).flatten().tolist()


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_each_number_goes_to_the_neighbor_that_its_word_says(native, dtype: torch.dtype, counter: int):
    values = [float(torch.tensor(value)) for value in VALUES] * 4
    made = round_stochastic(torch.tensor(values), torch.tensor(counter), dtype)
    expected = [rounded(value, random_word(n, counter), dtype) for n, value in enumerate(values)]
    assert words(made) == words(torch.tensor(expected).to(dtype))


@pytest.mark.parametrize("counter", [0, 7])
def test_a_number_rises_from_the_first_share_on_that_its_word_allows(native, counter: int):
    halves = [random_word(n, counter) % 2**13 for n in range(200)]
    for more in (0, 1):
        x = torch.tensor([1 + (word + more) * 2.0**-23 for word in halves])
        rises = round_stochastic(x, torch.tensor(counter)) > 1
        assert rises.tolist() == [more == 1] * 200
    brains = [2**16 - random_word(n, counter) % 2**16 for n in range(200)]
    for more in (0, 1):
        x = torch.tensor([1 + (share - 1 + more) * 2.0**-23 for share in brains])
        assert (round_stochastic(x, torch.tensor(counter), torch.bfloat16) > 1).tolist() == [more == 1] * 200


def test_far_below_the_smallest_number_a_rise_is_as_rare_as_it_should_be(native):
    rises = int((round_stochastic(torch.full((60_000,), 1.5 * 2.0**-33), torch.tensor(5)) > 0).sum())
    assert abs(rises - 60_000 * 1.5 * 2.0**-9) < 50  # 4 standard deviations


def test_the_keys_are_splitmix64_s_published_numbers():
    first, gamma = 1234567, 0x9E3779B97F4A7C15
    for step, published in enumerate((6457827717110365317, 3203168211198807973, 9817491932198370423)):
        word = (first + step * gamma) % 2**64
        low, high = _keys(torch.tensor(word - 2**64 if word >= 2**63 else word))
        assert int(high) << 32 | int(low) == published


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_infinities_and_what_is_no_number(native, dtype: torch.dtype):
    signalling = torch.tensor([0x7F800001, -0x7FFFFF, 0x7F8FFFFF, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    for counter in COUNTERS:
        assert round_stochastic(signalling, torch.tensor(counter), dtype).isnan().all()
        ends = torch.tensor([torch.inf, -torch.inf] * 3)
        assert torch.equal(round_stochastic(ends, torch.tensor(counter), dtype).float(), ends)
    beyond = torch.tensor([65536.0, -65536.0, 65537.0, 3e38])
    limits = [torch.inf, -torch.inf, torch.inf, torch.inf]
    assert round_stochastic(beyond, torch.tensor(3), torch.float16).tolist() == limits
    assert round_stochastic(beyond[:2], torch.tensor(3), torch.bfloat16).tolist() == [65536, -65536]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3), (2, 3, 2)])
def test_any_shape_and_layout_counts_its_elements_in_order(native, shape: tuple[int, ...]):
    x, counter = torch.full(shape, 1 / 3), torch.tensor(5)
    made = round_stochastic(x, counter)
    assert made.shape == shape
    flat = round_stochastic(torch.full((max(x.numel(), 1),), 1 / 3), counter)
    assert words(made) == words(flat)[: x.numel()]
    turned = round_stochastic(x.permute(tuple(range(x.dim()))[::-1]), torch.tensor([5]))
    assert words(turned.contiguous()) == words(made.reshape(turned.shape))


def test_types_are_refused_alike_with_and_without_data():
    for make in (lambda t: t, lambda t: t.to("meta"), FakeTensorMode().from_tensor):
        x, counter = make(torch.ones(2, 3)), make(torch.tensor([7]))
        made = round_stochastic(x, counter, torch.bfloat16)
        assert (made.shape, made.dtype) == ((2, 3), torch.bfloat16)
        for wrong in (
            (x.double(), counter, torch.float16),
            (x, counter, torch.float32),
            (x.half(), counter, torch.float16),
        ):
            with pytest.raises(ValueError, match=r"Rounding is from torch\.float32 to"):
                round_stochastic(*wrong)
        for wrong in (counter.int(), counter[:0], counter.repeat(2)):
            with pytest.raises(ValueError, match=r"it is one torch\.int64"):
                round_stochastic(x, wrong)
