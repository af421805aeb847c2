"""Options and targets refuse impossible choices and figures."""

import dataclasses

import pytest

from popgeo.ipu import IpuTarget, Options, OutputMode, Reduction


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"device_iterations": 0}, "device_iterations is 0; it must be an integer of at least 1"),
        ({"gradient_accumulation": 1.5}, "gradient_accumulation is 1.5"),
        ({"replication_factor": True}, "replication_factor is True"),
        ({"num_threads": 0}, "num_threads is 0; it must be an integer of at least 1"),
        ({"reduction": "max"}, "reduction is 'max'; it must be one of 'mean', 'sum'"),
        ({"output_mode": "first"}, "output_mode is 'first'; it must be one of 'all', 'final', 'every_n', 'sum'"),
        (
            {"output_mode": "every_n", "output_period": 2, "device_iterations": 3},
            "Choose a period that divides this number",
        ),
        ({"loss_scaling": 0.0}, "loss_scaling is 0.0; it must be positive"),
        ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0"),
        ({"target": "bow"}, r"pass an IpuTarget, for example IpuTarget.bow\(\)"),
    ],
)
def test_a_wrong_choice_is_refused_with_what_is_allowed(choice, message):
    with pytest.raises(ValueError, match=message):
        Options(**choice)


def test_options_are_frozen_and_turn_strings_into_members():
    options = Options(reduction="sum", output_mode="final")
    assert (options.reduction, options.output_mode) == (Reduction.SUM, OutputMode.FINAL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.device_iterations = 2
    assert dataclasses.replace(options, device_iterations=3).batch_factor == 3


def test_targets_have_the_published_memory():
    # 1,216 tiles of 256 KiB are 304 MiB; 1,472 of 624 KiB are 897 MiB.
    assert IpuTarget.gc2().memory == 304 * 2**20
    assert IpuTarget.gc200().memory == IpuTarget.bow().memory == 897 * 2**20
    # 1,472 tiles x 64 multiply-accumulates x 2 x 1.85 GHz: the 349 TFLOP/s of the data sheet
    bow = IpuTarget.bow()
    assert bow.num_tiles * bow.float16_macs * 2 * bow.clock == pytest.approx(349e12, rel=0.01)


def test_a_target_without_tiles_is_refused():
    with pytest.raises(ValueError, match="num_tiles is 0; it must be positive"):
        dataclasses.replace(IpuTarget.bow(), num_tiles=0)
