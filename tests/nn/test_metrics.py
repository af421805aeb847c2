"""Claims about the values of metrics; the contracts cover padding."""

import pytest
import torch
from torch.nn import functional as F

from popgeo.nn import accuracy, r2_score, roc_auc

GENERATOR = torch.Generator().manual_seed(0)


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
        roc_auc(torch.ones(4, 3), torch.ones(4, 3))


def test_classes_for_other_rows_are_refused():
    with pytest.raises(ValueError, match=r"classes \[rows\]"):
        accuracy(torch.ones(4, 2), torch.ones(3, dtype=torch.long))
