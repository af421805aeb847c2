"""Compiled models compute the loss of connectionist temporal classification as torch does."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import ctc_loss as reference

from popgeo import compile_forward, compile_step
from popgeo.capture.static_ctc import ctc_loss
from tests.contracts.test_checks_hold_when_captured import Function

STEPS, CLASSES = torch.tensor([7, 5, 2]), torch.tensor([3, 2, 1])
TARGETS = torch.tensor([[1, 1, 4], [4, 2, 0], [2, 0, 0]])


def scores_of(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=dtype).requires_grad_()


def loss_and_gradient(function, scores: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
    loss = function(scores, *args, **kwargs)
    return loss, *torch.autograd.grad(loss.sum(), scores)


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize(("reduction", "blank"), [*itertools.product(["mean", "sum", "none"], [0, 3])])
def test_loss_and_gradient_are_those_of_torch(reduction: str, blank: int, is_normalized: bool):
    scores = scores_of(7, 3, 5)
    results = [
        loss_and_gradient(
            lambda x, function=function: function(
                x.log_softmax(2) if is_normalized else x, TARGETS, STEPS, CLASSES, blank, reduction
            ),
            scores,
        )
        for function in (ctc_loss, reference)
    ]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_loss_has_the_type_of_the_scores_and_is_summed_in_float32(dtype: torch.dtype):
    scores = scores_of(7, 3, 5, dtype=torch.float32).detach().log_softmax(2).to(dtype)
    loss = ctc_loss(scores, TARGETS, STEPS, CLASSES)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss, reference(scores.float(), TARGETS, STEPS, CLASSES).to(dtype))


def test_targets_may_be_one_row_and_lengths_plain_numbers():
    scores, row = scores_of(7, 3, 5), torch.tensor([1, 1, 4, 4, 2, 2])
    torch.testing.assert_close(
        ctc_loss(scores, row, [7, 5, 2], [3, 2, 1]), reference(scores, row, [7, 5, 2], [3, 2, 1])
    )


def test_one_sequence_needs_no_batch_dimension():
    scores, target = scores_of(5, 4), torch.tensor([1, 3])
    for reduction in ("none", "mean"):
        args = (scores, target, torch.tensor(5), torch.tensor(2), 0, reduction)
        torch.testing.assert_close(ctc_loss(*args), reference(*args))


def test_what_lies_behind_a_target_is_not_read():
    padded = torch.where(torch.arange(3) < CLASSES.unsqueeze(1), TARGETS, -1)
    scores = scores_of(7, 3, 5)
    torch.testing.assert_close(ctc_loss(scores, padded, STEPS, CLASSES), reference(scores, TARGETS, STEPS, CLASSES))


@pytest.mark.parametrize(("num_steps", "num_classes"), [(2, 2), (0, 1), (0, 0), (2, 0), (1, 1)])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_sequences_that_do_not_fit_and_empty_ones_are_as_in_torch(num_steps, num_classes, zero_infinity):
    scores, targets = (
        torch.zeros(2, 1, 3).log_softmax(2),
        torch.tensor([[1, 1]]),
    )  # two equal classes need a blank between
    args = (scores, targets, torch.tensor([num_steps]), torch.tensor([num_classes]), 0, "none", zero_infinity)
    torch.testing.assert_close(ctc_loss(*args), reference(*args))


def test_a_sequence_that_is_left_out_has_no_gradient():
    scores = scores_of(2, 1, 3)
    _, gradient = loss_and_gradient(ctc_loss, scores, torch.tensor([[1, 1]]), [2], [2], zero_infinity=True)
    assert (gradient == 0).all()


class Speech(nn.Module):
    """A model that returns its own loss, as PopTorch's training models do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.loss = nn.Linear(4, 5), nn.CTCLoss(blank=4, zero_infinity=True)

    def forward(self, x: Tensor, targets: Tensor, num_steps: Tensor, num_classes: Tensor) -> Tensor:
        return self.loss(self.linear(x).log_softmax(2), targets, num_steps, num_classes)


def test_a_model_trains_on_lengths_that_change_from_call_to_call():
    torch.manual_seed(0)
    x, models = torch.randn(7, 3, 4), (Speech(), Speech())
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    step = compile_step(models[0], optimizers[0])
    for shift in (0, 1):
        loss = step(x, TARGETS % 4, STEPS - shift, CLASSES - shift)
        optimizers[1].zero_grad()
        expected = models[1](x, TARGETS % 4, STEPS - shift, CLASSES - shift)
        expected.backward()
        optimizers[1].step()
        torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(*[dict(model.named_parameters()) for model in models])


@pytest.mark.parametrize(
    ("num_steps", "num_classes", "name"), [(8, 3, "input"), (7, 4, "target"), (-1, 3, "input"), (7, -1, "target")]
)
def test_lengths_that_torch_refuses_are_refused(num_steps: int, num_classes: int, name: str):
    run = compile_forward(Function(lambda x, n, m: reference(x, TARGETS, n, m)))
    x = scores_of(7, 3, 5).detach().log_softmax(2)
    run(x, STEPS, CLASSES)
    with pytest.raises(RuntimeError, match=f"one of {name}_lengths is not in 0 to"):
        run(x, torch.tensor([num_steps, 5, 2]), torch.tensor([num_classes, 2, 1]))


def test_one_row_of_targets_with_lengths_in_a_tensor_is_refused_with_the_remedy():
    row = torch.tensor([1, 1, 4, 4, 2, 2])
    with pytest.raises(ValueError, match=r"pass targets of shape \[batch, longest\]"):
        compile_forward(Function(lambda x, m: reference(x, row, STEPS, m)))(scores_of(7, 3, 5).detach(), CLASSES)
