"""Claims about the values of losses and metrics; the contracts cover padding."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from popgeo.nn import (
    accuracy,
    binary_cross_entropy,
    cross_entropy,
    huber_loss,
    l1_loss,
    masked_mean,
    mse_loss,
    r2_score,
    roc_auc,
)

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
    with pytest.raises(ValueError, match=r"shape \(4, 1\), target \(4,\)"):
        loss(torch.ones(4, 1), torch.ones(4))


def test_classes_for_other_rows_are_refused():
    with pytest.raises(ValueError, match=r"classes \[rows\]"):
        cross_entropy(torch.ones(4, 2), torch.ones(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"classes \[rows\]"):
        accuracy(torch.ones(4, 2), torch.ones(3, dtype=torch.long))


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(ValueError, match="one entry for each row"):
        masked_mean(torch.ones(4), torch.ones(3, dtype=torch.bool))


def test_accuracy_counts_real_rows_only():
    logits = F.one_hot(torch.tensor([0, 1, 1, 0]), 2).float()
    assert accuracy(logits, torch.tensor([0, 1, 0, 0]), torch.tensor([True, True, True, False])) == pytest.approx(2 / 3)


def chance_by_pairs(scores: torch.Tensor, target: torch.Tensor) -> float:
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[target == 1].tolist() for n in scores[target == 0].tolist()]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("levels", [3, 1000])
def test_roc_auc_is_the_chance_that_a_positive_scores_above_a_negative(levels: int):
    scores = torch.randint(0, levels, (60,), generator=GENERATOR).float()
    target = torch.randint(0, 2, (60,), generator=GENERATOR).float()
    target[::7] = torch.nan
    mask = torch.arange(60) < 50
    expected = chance_by_pairs(scores[mask], target[mask])
    assert float(roc_auc(scores, target, mask)) == pytest.approx(expected, abs=1e-6)


def test_roc_auc_of_one_class_is_unknown():
    assert roc_auc(torch.ones(3), torch.ones(3)).isnan()


def test_r2_is_one_when_right_zero_at_the_mean_and_ignores_padding():
    target, mask = torch.tensor([1.0, 2.0, 3.0, 99.0]), torch.tensor([True, True, True, False])
    assert r2_score(torch.tensor([1.0, 2.0, 3.0, 0.0]), target, mask) == 1
    assert r2_score(torch.full((4,), 2.0), target, mask) == 0


def test_metrics_of_many_columns_are_refused():
    with pytest.raises(ValueError, match=r"input\[:, task\]"):
        roc_auc(INPUT, TARGET)
