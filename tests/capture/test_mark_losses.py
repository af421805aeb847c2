"""The choice of the loss among the results of a model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo.capture.identity_loss import identity_loss, losses_marked
from popgeo.ipu import training_model


class Scale(nn.Module):
    """A loss of x times a weight that starts at 1."""

    def __init__(self, loss: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.loss = nn.Parameter(torch.ones(())), loss

    def forward(self, x: Tensor) -> Any:
        y = self.weight * x
        return y.sum(), self.loss(y)


def gradient(loss: Callable[[Tensor], Any]) -> float:
    """Return the gradient of the loss by the weight, for x = 1 and 2."""
    model = Scale(loss)
    training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))(torch.tensor([1.0, 2.0]))
    return 1 - model.weight.item()


def test_of_several_marks_the_one_counts_that_the_others_feed():
    def squared(y: Tensor) -> Tensor:
        part = identity_loss(y, "none")
        return identity_loss((part * part).sum(), "none")

    assert gradient(squared) == pytest.approx(10)  # 2 w (1 + 4)


def test_a_loss_that_is_not_reduced_is_summed():
    assert gradient(lambda y: identity_loss(y, "none")) == pytest.approx(3)
    assert gradient(lambda y: identity_loss(y, "mean")) == pytest.approx(1.5)


def test_marks_that_do_not_feed_each_other_are_refused():
    with pytest.raises(ValueError, match=r"Multiple independent losses.*identity_loss"):
        gradient(lambda y: (identity_loss(y, "sum"), identity_loss(2 * y, "sum")))


def test_torch_s_losses_are_found_while_they_are_marked():
    zero = torch.zeros(2)
    with losses_marked():
        assert gradient(lambda y: F.mse_loss(y, zero, reduction="sum")) == pytest.approx(10)
        assert gradient(lambda y: nn.L1Loss()(y, zero)) == 1.5
        with pytest.raises(ValueError, match="Multiple independent losses"):
            gradient(lambda y: F.mse_loss(y, zero) + F.l1_loss(y, zero))
    with pytest.raises(ValueError, match=r"Couldn't find a loss.*2 scalars"):
        gradient(lambda y: F.mse_loss(y, zero))


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="only newer versions of torch have it")
def test_a_loss_that_is_new_in_torch_is_found_too():
    weight = torch.ones(3, 2, requires_grad=True)
    with losses_marked():
        loss = F.linear_cross_entropy(torch.ones(1, 2), weight, torch.tensor([0]))
    assert "identity_loss" in type(loss.grad_fn).__name__


@pytest.mark.parametrize(
    ("loss", "slope"),
    [
        (lambda y: (F.mse_loss(y, 0 * y, reduction="none") * torch.tensor([1.0, 0.0])).sum(), 10),
        (lambda y: 0.5 * F.mse_loss(y, 0 * y, reduction="sum"), 10),
        (lambda y: F.l1_loss(y, torch.zeros(2)) + y.square().sum(), 1.5),
    ],
)
def test_a_scalar_that_is_made_of_a_marked_loss_and_not_trained_on_is_warned_of(loss, slope):
    with losses_marked(), pytest.warns(UserWarning, match=r"trained on its marked loss .* Wrap that scalar"):
        assert gradient(loss) == pytest.approx(slope)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y: F.mse_loss(y, torch.zeros(2)),
        lambda y: identity_loss(0.5 * F.mse_loss(y, torch.zeros(2)), "none"),
        lambda y: (F.mse_loss(y, torch.zeros(2)), y.mean(), y.detach().sum() * 2),
    ],
)
def test_nothing_is_warned_of_if_the_loss_is_what_the_model_returns(loss, recwarn):
    with losses_marked():
        gradient(loss)
    assert not [one for one in recwarn if "marked loss" in str(one.message)]
