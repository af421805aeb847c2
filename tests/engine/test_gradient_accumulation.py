"""A call's tensors are cut into one micro-batch per step, and results are joined as the mode says."""

import pytest
import torch

from popgeo.capture.pytree import flatten
from popgeo.engine.gradient_accumulation import CallResults, check_batch_dimension, micro_batch
from popgeo.engine.step_options import OutputMode


def test_micro_batches_are_parts_of_the_first_dimension_in_order():
    x, y = torch.arange(12).reshape(6, 2), torch.arange(3)
    assert [[t.tolist() for t in micro_batch([x, y], index, 3)] for index in range(3)] == [
        [[[0, 1], [2, 3]], [0]],
        [[[4, 5], [6, 7]], [1]],
        [[[8, 9], [10, 11]], [2]],
    ]
    assert micro_batch([x], 0, 1)[0] is x


def test_a_tensor_that_cannot_be_cut_is_refused_by_its_path():
    structure = flatten({"x": [torch.zeros(6, 2), torch.zeros(4)]})[1]
    check_batch_dimension(structure, 2)
    with pytest.raises(ValueError, match=r"argument `x\[1\]` has shape \[4\].* a multiple of 3"):
        check_batch_dimension(structure, 3)
    scalar = flatten({"x": torch.tensor(1.0)})[1]
    check_batch_dimension(scalar, 1)
    with pytest.raises(ValueError, match=r"`x` has shape \[\]"):
        check_batch_dimension(scalar, 2)


# Six steps of two replicas; step s of replica r returns a loss of 10 s + r and one row of it.
JOINED = {
    OutputMode.ALL: [0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51],
    OutputMode.FINAL: [50, 51],
    OutputMode.EVERY_N: [20, 21, 50, 51],  # of three
    OutputMode.SUM: [150, 156],
}


@pytest.mark.parametrize("mode", JOINED)
def test_the_mode_says_which_steps_count(mode):
    results = CallResults(mode, period=3, num_steps=6)
    loss = torch.zeros(())
    for step in range(6):
        for replica in range(2):
            loss.fill_(10 * step + replica)  # the engine, too, returns the same memory each time
            if results.wants(step):
                results.add(step, replica, [loss, loss.reshape(1, 1)])
    losses, rows = results.join()
    assert losses.tolist() == JOINED[mode]
    assert rows.tolist() == [[number] for number in JOINED[mode]]


def test_the_only_result_keeps_its_shape():
    results = CallResults(OutputMode.FINAL, period=1, num_steps=1)
    results.add(0, 0, [torch.tensor(2.0)])
    assert results.join() == [torch.tensor(2.0)]
    assert results.join()[0].shape == ()
