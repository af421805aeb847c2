"""The loss of connectionist temporal classification next to torch's own."""

import itertools

import pytest
import torch
from torch.nn.functional import ctc_loss as reference

from popgeo import ipu
from popgeo.capture.static_forms import ctc_loss

STEPS, CLASSES = torch.tensor([7, 5, 2]), torch.tensor([3, 2, 1])


@pytest.mark.parametrize(("reduction", "blank"), list(itertools.product(["mean", "sum", "none"], [0, 3])))
def test_loss_and_gradient_are_those_of_torch(reduction: str, blank: int):
    scores = torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    targets = torch.tensor([[1, 1, 4], [4, 2, 0], [2, 0, 0]])
    results = []
    for function in (ctc_loss, reference):
        loss = function(scores.log_softmax(2), targets, STEPS, CLASSES, blank, reduction)
        results.append((loss, *torch.autograd.grad(loss.sum(), scores)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_a_sequence_that_is_too_long_is_impossible():
    scores, targets = torch.zeros(2, 1, 3).log_softmax(2), torch.tensor([[1, 1]])  # needs a blank between
    assert ctc_loss(scores, targets, [2], [2]) == torch.inf
    assert ctc_loss(scores, targets, [2], [2], zero_infinity=True) == 0


def test_a_compiled_model_takes_lengths_as_data():
    targets = torch.tensor([[1, 2, 4], [4, 2, 0], [2, 0, 0]])
    compiled = ipu.compile(lambda x, n, m: reference(x, targets, n, m), [torch.zeros(7, 3, 5), STEPS, CLASSES])
    scores = torch.randn(7, 3, 5).log_softmax(2)
    torch.testing.assert_close(compiled(scores, STEPS, CLASSES), reference(scores, targets, STEPS, CLASSES))
