"""Types of gradients and state, scaling of gradients, and the counter of random rounding."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from popgeo.engine.optimizer.gradient_scaling import GradientScaling, overflow_of, set_gradient
from popgeo.engine.optimizer.precision import gradient_type, is_mixed, rounding_counter
from popgeo.engine.step_options import StepOptions

HALF, SINGLE, BRAIN = torch.float16, torch.float32, torch.bfloat16
SGD = torch.optim.SGD([nn.Parameter(torch.ones(1))])


def test_updates_of_narrow_weights_are_wide_where_something_asks_for_it():
    assert not is_mixed(StepOptions(accumulation_dtype=HALF))
    assert is_mixed(StepOptions(accumulation_dtype=SINGLE))
    for one in (
        StepOptions(optimizer_state_dtype=HALF),
        StepOptions(master_weights=True),
        StepOptions(stochastic_rounding=True),
    ):
        assert is_mixed(one)
        assert gradient_type(one, SGD, HALF) is SINGLE
        assert gradient_type(one, SGD, SINGLE) is SINGLE
        assert gradient_type(one, SGD, torch.float64) is torch.float64


def test_gradients_are_joined_in_the_type_asked_for_or_the_optimizer_s():
    wide = SimpleNamespace(accum_type=SINGLE)
    assert gradient_type(StepOptions(), SGD, BRAIN) is BRAIN
    assert gradient_type(StepOptions(), wide, BRAIN) is SINGLE
    assert gradient_type(StepOptions(), SimpleNamespace(accum_type=HALF), BRAIN) is BRAIN
    assert gradient_type(StepOptions(accumulation_dtype=BRAIN), wide, BRAIN) is BRAIN
    assert gradient_type(StepOptions(accumulation_dtype=HALF, optimizer_state_dtype=SINGLE), SGD, HALF) is HALF
    assert gradient_type(StepOptions(accumulation_dtype=SINGLE), SGD, HALF) is SINGLE
    assert gradient_type(StepOptions(accumulation_dtype=HALF), SGD, SINGLE) is SINGLE
    with pytest.raises(ValueError, match=r"accumulation_dtype is torch\.float16, and some weights are torch\.bfloat16"):
        gradient_type(StepOptions(accumulation_dtype=HALF), SGD, BRAIN)


def test_each_weight_and_part_has_random_numbers_of_its_own():
    starts = {
        rounding_counter(seed, number, 0, part)
        for seed in (0, 1, 2**63) for part in range(3) for number in range(3)
    }  # fmt: skip
    assert len(starts) == 27
    assert all(0 <= start < 2**62 for start in starts)  # room for the number of updates and streams
    assert rounding_counter(5, 1, 9) == rounding_counter(5, 1, 0) + 9
    assert rounding_counter(2**64 + 5, 1, 9) == rounding_counter(5, 1, 9)
    assert rounding_counter(-1, 1, 9) == rounding_counter(2**64 - 1, 1, 9)
    # A seeded run must give the same results in future releases.
    assert rounding_counter(5, 0, 1) == 1_816_913_306_085_111_997


def test_scaling_changes_nothing_only_where_nothing_is_asked_for():
    assert GradientScaling().changes_nothing
    assert not GradientScaling(divisor=2.0).changes_nothing
    assert not GradientScaling(max_grad_norm=0.0).changes_nothing
    assert not GradientScaling(looks_for_overflow=True).changes_nothing


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("limit", [None, 1.0, 100.0])
@pytest.mark.parametrize("divisor", [1.0, 4.0])
def test_gradients_that_are_there_are_divided_and_then_clipped_together(looks, limit, divisor):
    mine = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(1))]
    set_gradient(mine[0], torch.tensor([6.0, 8.0]))
    set_gradient(mine[2], torch.tensor([24.0]))
    GradientScaling(divisor=divisor, max_grad_norm=limit, looks_for_overflow=looks).apply(mine)
    norm = 26 / divisor
    factor = 1 / divisor * (1 if limit is None else min(1.0, limit / (norm + 1e-6)))
    torch.testing.assert_close(mine[0].grad, factor * torch.tensor([6.0, 8.0]))
    torch.testing.assert_close(mine[2].grad, factor * torch.tensor([24.0]))
    assert mine[1].grad is None


def test_a_gradient_may_be_wider_than_its_parameter():
    for dtype in (HALF, SINGLE):
        weight = nn.Parameter(torch.zeros(2, dtype=dtype))
        set_gradient(weight, torch.ones(2))
        assert weight.grad.dtype is SINGLE


def test_an_overflow_anywhere_is_one():
    fine, huge = torch.tensor([3e38]), torch.full((2,), 6e4, dtype=HALF)
    assert overflow_of([fine, huge]).item() == 0
    for value in (torch.inf, -torch.inf, torch.nan):
        for dtype in (HALF, SINGLE):
            assert overflow_of([fine, torch.tensor([0.0, value], dtype=dtype)]).item() == 1
            assert overflow_of([torch.tensor(value, dtype=dtype), huge]).item() == 1
    assert overflow_of([fine]).shape == ()
    assert overflow_of([fine.double()]).dtype is SINGLE
