"""The options of a compiled step: defaults, refused values and derived values."""

import dataclasses
import re

import pytest
import torch

from popgeo.engine.loss_scaling import LossScaling
from popgeo.engine.step_options import OutputMode, Reduction, StepOptions
from popgeo.ipu import Options


def test_without_a_choice_a_call_is_one_step_on_one_device():
    options = StepOptions()
    assert dataclasses.asdict(options) == {
        "device_iterations": 1,
        "replication_factor": 1,
        "gradient_accumulation": 1,
        "reduction": Reduction.MEAN,
        "output_mode": None,
        "output_period": 1,
        "random_seed": None,
        "num_threads": None,
        "loss_scaling": 1.0,
        "accumulation_dtype": None,
        "optimizer_state_dtype": None,
        "master_weights": False,
        "stochastic_rounding": False,
        "max_grad_norm": None,
        "shard_optimizer_state": False,
        "floating_point_exceptions": False,
        "batch_invariant": False,
        "cache_dir": None,
        "show_progress": True,
    }
    assert (options.steps_per_call, options.batch_factor) == (1, 1)


def test_a_call_takes_a_micro_batch_for_each_step_of_each_update():
    options = StepOptions(device_iterations=3, gradient_accumulation=4, replication_factor=2)
    assert (options.steps_per_call, options.batch_factor) == (12, 24)


@pytest.mark.parametrize(
    "name", ["device_iterations", "replication_factor", "gradient_accumulation", "output_period", "num_threads"]
)
def test_counts_are_integers_of_at_least_one(name: str):
    assert getattr(StepOptions(**{name: 1}), name) == 1
    for count in (0, -1, 1.0, True, "2"):
        with pytest.raises(
            ValueError, match=rf"StepOptions\.{name} is {count!r}; it must be (an integer of at least 1|a whole number)"
        ):
            StepOptions(**{name: count})
    if name != "num_threads":
        with pytest.raises(ValueError, match=rf"StepOptions\.{name} is None"):
            StepOptions(**{name: None})


def test_a_norm_is_positive():
    assert StepOptions(max_grad_norm=0.5).max_grad_norm == 0.5
    for norm in (0, 0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"StepOptions\.max_grad_norm is .*; it must be positive"):
            StepOptions(max_grad_norm=norm)


@pytest.mark.parametrize(
    ("name", "kind", "allowed"),
    [
        ("reduction", Reduction, "'mean', 'sum'"),
        ("output_mode", OutputMode, "'all', 'final', 'every_n', 'sum'"),
    ],
)
def test_modes_are_given_as_members_or_by_their_values(name: str, kind: type, allowed: str):
    for member in kind:
        assert getattr(StepOptions(**{name: member}), name) is member
        assert getattr(StepOptions(**{name: member.value}), name) is member
    with pytest.raises(ValueError, match=re.escape(f"StepOptions.{name} is 'other'; it must be one of {allowed}")):
        StepOptions(**{name: "other"})


def test_a_reduction_there_must_be():
    with pytest.raises(ValueError, match=r"StepOptions\.reduction is None"):
        StepOptions(reduction=None)


@pytest.mark.parametrize("mode", ["every_n", OutputMode.EVERY_N])
def test_a_period_divides_the_steps_of_a_call(mode):
    options = {"device_iterations": 2, "gradient_accumulation": 3, "output_mode": mode}
    for period in (1, 2, 3, 6):
        StepOptions(**options, output_period=period)
    for period in (4, 5, 7, 12):
        with pytest.raises(ValueError, match=rf"output_period is {period}, but a call runs 6 steps"):
            StepOptions(**options, output_period=period)
        StepOptions(device_iterations=6, output_mode="all", output_period=period)  # where it counts for nothing


def test_a_scale_of_the_loss_is_a_number_or_a_rule():
    assert StepOptions(loss_scaling="dynamic").loss_scaling == LossScaling()
    assert StepOptions(loss_scaling=LossScaling(initial=8.0)).loss_scaling == LossScaling(initial=8.0)
    with pytest.raises(ValueError, match="StepOptions"):
        StepOptions(loss_scaling="static")
    with pytest.raises(ValueError, match="optimizer_state_dtype"):
        StepOptions(optimizer_state_dtype=torch.int32)


@pytest.mark.parametrize(("reduction", "joined"), [("mean", 6), (Reduction.MEAN, 6), ("sum", 1), (Reduction.SUM, 1)])
def test_gradients_are_divided_by_what_an_update_joins_and_a_constant_scale(reduction, joined: int):
    given = {"gradient_accumulation": 6, "device_iterations": 5, "reduction": reduction}
    assert StepOptions(**given).gradient_divisor == joined
    assert StepOptions(**given, loss_scaling=4).gradient_divisor == 4 * joined
    assert StepOptions(**given, loss_scaling="dynamic").gradient_divisor == joined
    assert StepOptions(loss_scaling=4).constant_loss_scaling == 4
    assert StepOptions(loss_scaling=4.5).constant_loss_scaling == 4.5
    assert StepOptions(loss_scaling="dynamic").constant_loss_scaling is None


def test_without_a_choice_training_returns_its_last_step_and_inference_all():
    assert StepOptions().chosen_output_mode(trains=True) is OutputMode.FINAL
    assert StepOptions().chosen_output_mode(trains=False) is OutputMode.ALL
    assert StepOptions(output_mode="sum").chosen_output_mode(trains=True) is OutputMode.SUM


@pytest.mark.parametrize(("reduction", "divisor"), [("mean", 8.0 * 3 * 2), ("sum", 8.0)])
def test_gradients_are_averaged_over_replicas_too(reduction: str, divisor: float):
    options = StepOptions(loss_scaling=8.0, gradient_accumulation=3, replication_factor=2, reduction=reduction)
    assert options.gradient_divisor == divisor


def test_the_options_of_a_machine_are_those_of_a_run_and_its_own():
    run = {field.name: getattr(StepOptions(), field.name) for field in dataclasses.fields(StepOptions)}
    assert dataclasses.asdict(Options()).items() >= run.items()
    with pytest.raises(ValueError, match=r"^Options\.device_iterations is 0"):
        Options(device_iterations=0)


def test_each_type_of_an_update_is_allowed():
    for dtype in (None, torch.float16, torch.float32, torch.bfloat16):
        StepOptions(accumulation_dtype=dtype, optimizer_state_dtype=dtype, master_weights=True)
        StepOptions(accumulation_dtype=dtype, stochastic_rounding=True)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"accumulation_dtype": torch.float64}, r"StepOptions\.accumulation_dtype is torch\.float64; it must be"),
        ({"optimizer_state_dtype": torch.int32}, r"must be torch\.float32, torch\.float16, torch\.bfloat16 or None"),
        ({"master_weights": None}, "master_weights is None; it must be True or False"),
        ({"stochastic_rounding": 0}, "stochastic_rounding is 0; it must be True or False"),
        ({"master_weights": True, "stochastic_rounding": True}, "choose one"),
    ],
)
def test_other_types_and_choices_that_exclude_each_other_are_refused(chosen: dict, message: str):
    with pytest.raises(ValueError, match=message):
        StepOptions(**chosen)
