"""Claims about the losses of triples against negatives."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from popgeo.nn import LogSigmoidLoss, SoftmaxLoss

LOSSES = {
    "log-sigmoid": LogSigmoidLoss(margin=0.5, temperature=1.0),
    "log-sigmoid, all negatives alike": LogSigmoidLoss(temperature=0.0),
    "softmax": SoftmaxLoss(),
    "sampled softmax": SoftmaxLoss(num_entities=30),
}


def test_losses_are_those_worked_out_by_hand():
    positive, negative, counts = torch.tensor([1.0]), torch.tensor([[0.0, 2.0]]), torch.tensor([[True, True]])
    share = torch.tensor([0.0, 4.0]).softmax(0)  # at temperature 2
    by_hand = (F.softplus(torch.tensor(-1.0)) + (share * F.softplus(negative[0])).sum()) / 2
    assert_close(LogSigmoidLoss(temperature=2.0)(positive, negative, counts), by_hand)
    exponentials = math.exp(0) + math.exp(2)
    assert SoftmaxLoss()(positive, negative, counts).item() == pytest.approx(
        -math.log(math.e / (math.e + exponentials))
    )
    # Two drawn negatives stand for the ten other entities of eleven.
    sampled = -math.log(math.e / (math.e + exponentials * 10 / 2))
    assert SoftmaxLoss(num_entities=11)(positive, negative, counts).item() == pytest.approx(sampled)


def test_softmax_over_all_entities_is_cross_entropy():
    logits, target = torch.randn(7, 5), torch.tensor([0, 4, 2, 2, 1, 3, 0])
    counts = torch.arange(5) != target.unsqueeze(1)
    positive = logits.gather(1, target.unsqueeze(1)).squeeze(1)
    assert_close(SoftmaxLoss()(positive, logits, counts), F.cross_entropy(logits, target))


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_masked_changes_neither_value_nor_gradient(name: str):
    positive, negative = torch.randn(3), torch.randn(3, 4)
    results = []
    for triples, candidates in ((3, 4), (5, 9)):
        p, n = torch.full((triples,), 3.0), torch.full((triples, candidates), 7.0)
        p[:3], n[:3, :4] = positive, negative
        p, n = p.requires_grad_(), n.requires_grad_()
        counts = (torch.arange(candidates) < 4) & (torch.arange(triples) < 3).unsqueeze(1)
        loss = LOSSES[name](p, n, counts, torch.arange(triples) < 3)
        of_positive, of_negative = torch.autograd.grad(loss, (p, n))
        assert (of_negative[:, 4:] == 0).all()
        results.append([loss, of_positive[:3], of_negative[:3, :4]])
    assert_close(*results)
    assert all(part.isfinite().all() for part in results[1])


def test_harder_negatives_weigh_more_and_their_weights_have_no_gradient():
    positive, counts = torch.tensor([0.0]), torch.ones(1, 2, dtype=torch.bool)
    negative = torch.tensor([[3.0, -3.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(LogSigmoidLoss(temperature=1.0)(positive, negative, counts), negative)
    share = torch.tensor([3.0, -3.0]).softmax(0)
    assert_close(gradient[0], share * torch.tensor([3.0, -3.0]).sigmoid() / 2)
