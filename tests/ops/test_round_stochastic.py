"""Claims about stochastic rounding, compiled and not."""

import pytest
import torch

from popgeo.native import library
from popgeo.ops import round_stochastic
from tests.support.fake_cuda import NoWaits

COUNTER = torch.tensor(11)
HALVES = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)


def words(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_the_type_holds_stays_bit_by_bit(native, dtype: torch.dtype):
    x = HALVES.view(dtype)
    x = x[~x.isnan()]
    if dtype is torch.bfloat16:
        x = x[(x.float().abs() >= torch.finfo(torch.float32).tiny) | (x == 0)]
    assert torch.equal(words(round_stochastic(x.float(), COUNTER, dtype)), words(x))


@pytest.mark.parametrize(
    ("x", "below", "above", "chance"),
    [
        (1 + 2**-12, 1.0, 1 + 2**-10, 0.25),
        (-1 - 3 * 2**-12, -1.0, -1 - 2**-10, 0.75),
        (1 - 2**-14, 1 - 2**-11, 1.0, 0.875),
        (2**-24 * 0.3, 0.0, 2**-24, 0.3),  # among denormal numbers
        (2**-24 * 5.6, 2**-24 * 5, 2**-24 * 6, 0.6),
        (65504 + 8.0, 65504.0, torch.inf, 0.25),
    ],
)
def test_the_chance_of_a_neighbor_is_how_near_it_is(x: float, below: float, above: float, chance: float):
    num = 100_000
    rounded = round_stochastic(torch.full((num,), x), COUNTER)
    assert {*rounded.unique().tolist()} == {below, above}
    share = float((rounded == above).float().mean())
    assert abs(share - chance) < 4 * (chance * (1 - chance) / num) ** 0.5


def test_bfloat16_too():
    rounded = round_stochastic(torch.full((100_000,), 1 + 2**-9), COUNTER, torch.bfloat16)
    assert {*rounded.unique().tolist()} == {1.0, 1 + 2**-7}
    assert float((rounded > 1).float().mean()) == pytest.approx(0.25, abs=0.006)


def test_what_has_no_neighbors_is_kept(native):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e6, -70000.0, 1e-40, -0.0])
    made = round_stochastic(x, COUNTER)
    assert made[[0, 1, 3, 4]].tolist() == [torch.inf, -torch.inf, torch.inf, -torch.inf]
    assert made[2].isnan()
    assert words(made)[-2:].tolist() == [0, -(2**15)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_compiled_or_not_and_with_any_number_of_threads_the_bits_are_the_same(dtype: torch.dtype):
    if not library.is_available():
        pytest.skip(library.reason())
    bits = torch.randint(-(2**31), 2**31 - 1, (40_000,), generator=torch.Generator().manual_seed(0))
    x = torch.cat([bits.to(torch.int32).view(torch.float32), torch.randn(1000) * 2.0**-20]).view(-1, 2).t()
    made = round_stochastic(x, COUNTER, dtype)
    with library.without_native():
        assert torch.equal(words(round_stochastic(x, COUNTER, dtype)), words(made))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(words(round_stochastic(x, COUNTER, dtype)), words(made))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("counter", [0, 11, -1, 2**63 - 1, -(2**63)])
def test_without_kernels_no_value_of_a_counter_is_read_and_the_bits_are_the_same(counter: int):
    x, place = torch.randn(1000), torch.tensor([counter])
    made = round_stochastic(x, place)
    with library.without_native(), NoWaits():
        without = round_stochastic(x, place)
    assert torch.equal(words(without), words(made))


def test_ten_thousand_steps_of_a_ten_thousandth_move_a_half_of_one_by_about_one():
    random, nearest = torch.ones(16).half(), torch.ones(16).half()
    for step in range(10_000):
        random = round_stochastic(random.float() - 1e-4, torch.tensor(step))
        nearest = (nearest.float() - 1e-4).half()
    assert (nearest == 1).all()
    assert abs(float(random.mean())) < 0.02
    assert float(random.abs().max()) < 0.1


def test_another_counter_draws_other_numbers_and_each_element_has_its_own():
    x = torch.full((50_000,), 1 + 2**-11)
    made = torch.stack([round_stochastic(x, torch.tensor(n)) for n in range(4)]) > 1
    joint = torch.corrcoef(torch.cat([made[:, :-1], made[:1, 1:]]).float())
    off = joint - torch.eye(5)
    assert float(off.abs().max()) < 0.02


@pytest.mark.parametrize(
    ("x", "counter", "dtype", "message"),
    [
        (torch.ones(2).half(), COUNTER, torch.float16, "from torch.float32 to"),
        (torch.ones(2), COUNTER, torch.int8, "not from torch.float32 to torch.int8"),
        (torch.ones(2), torch.ones(2).long(), torch.float16, r"of shape \[2\]; it is one torch.int64"),
    ],
)
def test_other_types_are_refused(x: torch.Tensor, counter: torch.Tensor, dtype: torch.dtype, message: str):
    with pytest.raises(ValueError, match=message):
        round_stochastic(x, counter, dtype)
