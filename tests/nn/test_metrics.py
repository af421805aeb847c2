"""Claims about the values of metrics; the contracts cover padding."""

import pytest
import torch
from torch.nn import functional as F

from popgeo import compile_forward
from popgeo.nn import (
    accuracy,
    average_precision,
    known_labels,
    mean_absolute_error,
    mean_over_tasks,
    pearson_r,
    r2_score,
    roc_auc,
    root_mean_squared_error,
)
from tests.contracts.test_checks_hold_when_captured import Function

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


def of_sklearn(name: str):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    stats = pytest.importorskip("scipy.stats")
    return {
        "mean_absolute_error": lambda x, y: metrics.mean_absolute_error(y, x),
        "root_mean_squared_error": lambda x, y: metrics.root_mean_squared_error(y, x),
        "pearson_r": lambda x, y: stats.pearsonr(x, y).statistic,
        "r2_score": lambda x, y: metrics.r2_score(y, x),
        "roc_auc": lambda x, y: metrics.roc_auc_score(y, x),
        "average_precision": lambda x, y: metrics.average_precision_score(y, x),
    }[name]


METRICS = {
    f.__name__: f
    for f in (mean_absolute_error, root_mean_squared_error, pearson_r, r2_score, roc_auc, average_precision)
}


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("levels", [4, 1000], ids=["many ties", "few ties"])
def test_a_metric_of_known_labels_of_real_rows_is_that_of_scikit_learn(name: str, levels: int):
    generator = torch.Generator().manual_seed(levels)
    scores = torch.randint(0, levels, (80,), generator=generator).double() - levels / 3
    if name in ("roc_auc", "average_precision"):
        target = torch.randint(0, 2, (80,), generator=generator).double()
    else:
        target = scores + torch.randn(80, generator=generator, dtype=torch.float64)
    target[::6], scores[70:], target[75:] = torch.nan, torch.nan, torch.inf
    mask = torch.arange(80) < 70
    known = known_labels(target, mask)
    expected = of_sklearn(name)(scores[known].numpy(), target[known].numpy())
    assert float(METRICS[name](scores, target, mask)) == pytest.approx(expected, abs=1e-9)


def test_average_precision_counts_ties_together_and_needs_a_positive():
    # Both rows of score 2 are 1/2 right, the row of score 1 makes it 2/3: (1/2 + 2/3) / 2.
    scores, target = torch.tensor([2.0, 2.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert average_precision(scores, target) == pytest.approx(7 / 12)
    assert average_precision(scores, torch.zeros(4)).isnan()


def test_errors_of_nothing_known_are_unknown_and_not_zero():
    unknown = torch.full((3,), torch.nan)
    assert mean_absolute_error(torch.ones(3), unknown).isnan()
    assert root_mean_squared_error(torch.ones(3), unknown).isnan()


def test_the_mean_over_tasks_leaves_out_what_is_no_number():
    scores = torch.tensor([[1.0, 5.0, 0.0], [2.0, 6.0, 1.0]])
    target = torch.tensor([[0.0, 1.0, torch.nan], [1.0, 1.0, torch.nan]])
    assert mean_over_tasks(roc_auc, scores, target) == 1
    assert mean_over_tasks(mean_absolute_error, scores, target) == pytest.approx((1 + 4.5) / 2)
    with pytest.raises(ValueError, match=r"\[rows, num_tasks\]"):
        mean_over_tasks(roc_auc, scores[0], target[0])


def test_metrics_of_many_columns_are_refused():
    with pytest.raises(ValueError, match=r"input\[:, task\]"):
        roc_auc(torch.ones(4, 3), torch.ones(4, 3))


def test_classes_for_other_rows_are_refused():
    with pytest.raises(ValueError, match=r"classes \[rows\]"):
        accuracy(torch.ones(4, 2), torch.ones(3, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("metric", [roc_auc, average_precision])
def test_whole_scores_give_what_the_same_scores_give_as_floats(metric, dtype):
    scores, target = torch.tensor([0, 1, 0, 1, 1]).to(dtype), torch.tensor([0.0, 1, 1, 0, 1])
    assert 0 < metric(scores, target) < 1
    torch.testing.assert_close(metric(scores, target), metric(scores.float(), target))


ODD_LABELS = {
    "missing as -1": [0.0, 1.0, -1.0, 1.0],
    "a third class": [0.0, 1.0, 2.0, 1.0],
    "a share": [0.0, 1.0, 0.3, 1.0],
}


@pytest.mark.parametrize("labels", ODD_LABELS.values(), ids=ODD_LABELS)
@pytest.mark.parametrize("metric", [roc_auc, average_precision])
def test_a_label_that_is_neither_class_gives_no_number(metric, labels):
    scores, target, mask = torch.tensor([0.1, 0.4, 0.3, 0.8]), torch.tensor(labels), torch.tensor([1, 1, 0, 1]).bool()
    assert metric(scores, target, mask) == metric(scores[mask], target[mask])
    with pytest.raises(ValueError, match="labels are 0 and 1, and NaN if not measured"):
        metric(scores, target)
    assert compile_forward(Function(metric))(scores, target).isnan()


@pytest.mark.parametrize("odd", [-1, 2, -100])
def test_accuracy_asks_for_classes_that_exist(odd):
    logits, target, mask = torch.eye(2)[[0, 1, 0]], torch.tensor([0, 0, odd]), torch.tensor([True, True, False])
    assert accuracy(logits, target, mask) == 0.5
    with pytest.raises(ValueError, match=f"is {odd}; there are 2 classes"):
        accuracy(logits, target)
    with pytest.raises(ValueError, match="there are 1 classes"):
        accuracy(logits[:, :1], torch.tensor([0, 1, 0]))
    assert compile_forward(Function(accuracy))(logits, target).isnan()


@pytest.mark.parametrize("value", [0.1, 0.7, 1234.567, -3e-5, 0.0])
@pytest.mark.parametrize("rows", [1, 2, 7, 10, 33, 1000])
def test_what_does_not_vary_has_neither_a_correlation_nor_a_variance(rows, value):
    other = torch.randn(rows + 2, generator=GENERATOR)
    same = torch.full((rows + 2,), value)
    same[0], same[-1] = 9.0, torch.nan
    mask = torch.arange(rows + 2) > 0
    assert pearson_r(other, same, mask).isnan()
    assert pearson_r(same[:-1], other[:-1], mask[:-1]).isnan()
    assert r2_score(other, same, mask).isnan()


def test_differences_of_small_whole_numbers_do_not_wrap():
    few, many = torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([2, 250], dtype=torch.uint8)
    assert mean_absolute_error(few, many) == (1 + 248) / 2
    assert mean_absolute_error(few.bool(), torch.tensor([False, True])) == 0.5
