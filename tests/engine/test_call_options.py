"""What follows from the choices of a call."""

import pytest

from popgeo.engine.call_options import OutputMode, chosen_output_mode, gradient_divisor
from popgeo.ipu import Options


def test_without_a_choice_training_returns_its_last_step_and_inference_all():
    assert chosen_output_mode(Options(), trains=True) is OutputMode.FINAL
    assert chosen_output_mode(Options(), trains=False) is OutputMode.ALL
    assert chosen_output_mode(Options(output_mode="sum"), trains=True) is OutputMode.SUM


@pytest.mark.parametrize(("reduction", "divisor"), [("mean", 8.0 * 3 * 2), ("sum", 8.0)])
def test_gradients_are_divided_by_the_loss_scale_and_averaged_over_all_that_an_update_joins(reduction, divisor):
    options = Options(
        loss_scaling=8.0, gradient_accumulation=3, replication_factor=2, device_iterations=5, reduction=reduction
    )
    assert gradient_divisor(options) == divisor
