"""Claims about the values of losses; the contracts cover padding."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from popgeo.nn import binary_cross_entropy, cross_entropy, huber_loss, l1_loss, masked_mean, mse_loss

GENERATOR = torch.Generator().manual_seed(0)
INPUT, TARGET = torch.randn(20, 3, generator=GENERATOR), torch.randn(20, 3, generator=GENERATOR)
CLASSES = torch.randint(0, 3, (20,), generator=GENERATOR)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (mse_loss(INPUT, TARGET), F.mse_loss(INPUT, TARGET)),
        (l1_loss(INPUT, TARGET), F.l1_loss(INPUT, TARGET)),
        (huber_loss(INPUT, TARGET, delta=0.5), F.huber_loss(INPUT, TARGET, delta=0.5)),
        (cross_entropy(INPUT, CLASSES), F.cross_entropy(INPUT, CLASSES)),
        (binary_cross_entropy(INPUT, TARGET.gt(0)), F.binary_cross_entropy_with_logits(INPUT, TARGET.gt(0).float())),
    ],
    ids=["mse", "l1", "huber", "cross-entropy", "binary cross-entropy"],
)
def test_without_a_mask_a_loss_equals_torchs(found, expected):
    assert_close(found, expected)


def test_zero_is_a_target_like_any_other():
    assert mse_loss(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0])) == 0.5


def test_a_mask_may_have_an_entry_for_each_value():
    mask = torch.tensor([[True, False], [True, True]])
    assert masked_mean(torch.tensor([[1.0, 50.0], [2.0, 6.0]]), mask) == 3


@pytest.mark.parametrize("loss", [mse_loss, l1_loss, huber_loss, binary_cross_entropy])
def test_shapes_that_would_broadcast_are_refused(loss):
    with pytest.raises(ValueError, match=r"target has shape \(4,\); it must be \(4, 1\)"):
        loss(torch.ones(4, 1), torch.ones(4))


def test_classes_for_other_rows_are_refused():
    with pytest.raises(ValueError, match=r"classes \[rows\]"):
        cross_entropy(torch.ones(4, 2), torch.ones(3, dtype=torch.long))


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(ValueError, match="one entry for each row"):
        masked_mean(torch.ones(4), torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_mean_of_more_entries_than_half_precision_counts_is_right(dtype):
    values = torch.full((100_000,), 3.0, dtype=dtype, requires_grad=True)
    mean = masked_mean(values, torch.arange(100_000) < 80_000)
    assert mean.dtype is dtype
    assert mean.item() == 3
    mean.backward()
    assert values.grad[0].item() == pytest.approx(1 / 80_000, rel=0.05)
    assert values.grad[-1] == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.bool, torch.int64])
def test_a_mean_of_whole_numbers_counts_all_of_them(dtype):
    values = torch.arange(600).remainder(2).to(dtype)
    torch.testing.assert_close(masked_mean(values, torch.arange(600) < 400), torch.tensor(0.5))
