"""Claims about metrics of classes: written-out numbers, torchmetrics' functions, masks, and captured steps."""

import pytest
import torch
from torch import nn

from popgeo import compile_forward
from popgeo.nn import confusion_matrix, f1_score, mean_over_tasks, precision, recall

# Predicted 0 0 1 2 1 0 of classes 0 1 1 2 0 0; the last three rows are padding, not known, and padding.
LOGITS = torch.eye(3)[[0, 0, 1, 2, 1, 0, 2, 1, 0]]
TARGET = torch.tensor([0, 1, 1, 2, 0, 0, 1, torch.nan, 77])
MASK = torch.tensor([True] * 6 + [False, True, False])
SCORES = {"precision": precision, "recall": recall, "f1_score": f1_score}


def test_a_confusion_matrix_counts_real_rows_with_known_labels():
    expected = torch.tensor([[2.0, 1, 0], [1, 1, 0], [0, 0, 1]])
    assert torch.equal(confusion_matrix(LOGITS, TARGET, MASK), expected)
    assert torch.equal(confusion_matrix(LOGITS.argmax(1), TARGET, MASK, num_classes=3), expected)


@pytest.mark.parametrize(
    ("score", "average", "expected"),
    [
        (precision, "none", [2 / 3, 1 / 2, 1]),
        (recall, None, [2 / 3, 1 / 2, 1]),
        (f1_score, "micro", 4 / 6),
        (f1_score, "macro", (2 / 3 + 1 / 2 + 1) / 3),
        (f1_score, "weighted", (3 * 2 / 3 + 2 * 1 / 2 + 1) / 6),
    ],
)
def test_scores_of_classes_are_as_worked_out_by_hand(score, average, expected):
    torch.testing.assert_close(score(LOGITS, TARGET, MASK, average), torch.tensor(expected))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("average", ["micro", "macro", "weighted", "none"])
def test_scores_of_classes_are_those_of_torchmetrics(name: str, average: str):
    peers = pytest.importorskip("torchmetrics.functional", reason="torchmetrics is not installed")
    draw = torch.Generator().manual_seed(0)
    for rows in (1, 7, 200):
        logits, target = torch.randn(rows, 5, generator=draw), torch.randint(0, 4, (rows,), generator=draw)
        mask = torch.rand(rows, generator=draw) < 0.8
        mask[0] = True
        peer = getattr(peers, name)(logits[mask], target[mask], task="multiclass", num_classes=5, average=average)
        torch.testing.assert_close(SCORES[name](logits, target, mask, average), peer)
        counts = peers.confusion_matrix(logits[mask], target[mask], task="multiclass", num_classes=5)
        assert torch.equal(confusion_matrix(logits, target, mask), counts.float())


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_one_task_are_those_of_torchmetrics(name: str):
    peers = pytest.importorskip("torchmetrics.functional", reason="torchmetrics is not installed")
    draw = torch.Generator().manual_seed(0)
    logits, target = 3 * torch.randn(90, generator=draw), torch.randint(0, 2, (90,), generator=draw)
    for threshold in (0.5, 0.8):
        peer = getattr(peers, name)(logits.sigmoid(), target, task="binary", threshold=threshold)
        torch.testing.assert_close(SCORES[name](logits, target.float(), threshold=threshold), peer)


@pytest.mark.parametrize("name", SCORES)
def test_masks_unknown_labels_and_missing_classes_are_as_if_torchmetrics_got_the_known_rows(name: str):
    peers = pytest.importorskip("torchmetrics.functional", reason="torchmetrics is not installed")
    draw = torch.Generator().manual_seed(1)

    def unknown(labels):
        return torch.where(torch.rand(labels.shape, generator=draw) < 0.2, torch.nan, labels.float())

    for rows in range(1, 30):
        classes = 2 + rows % 4
        logits, mask = torch.randn(rows, classes, generator=draw), torch.rand(rows, generator=draw) < 0.7
        target = unknown(torch.randint(0, 1 + rows % classes, (rows,), generator=draw))
        known = mask & ~target.isnan()
        padded = torch.where(mask.unsqueeze(1), logits, torch.nan)
        for average in ("micro", "macro", "weighted", "none") if known.any() else ():
            given = {"task": "multiclass", "num_classes": classes, "average": average}
            peer = getattr(peers, name)(logits[known], target[known].long(), **given)
            torch.testing.assert_close(SCORES[name](padded, target, mask, average), peer)
        labels = unknown(torch.randint(0, 2, (rows, classes), generator=draw))
        tasks = [(mask & ~labels[:, i].isnan(), i) for i in range(classes)]
        alone = [getattr(peers, name)(logits[k, i].sigmoid(), labels[k, i].long(), task="binary") for k, i in tasks]
        if all(k.any() for k, _ in tasks):
            torch.testing.assert_close(mean_over_tasks(SCORES[name], padded, labels, mask), torch.stack(alone).mean())


def test_tasks_with_missing_labels_are_averaged():
    logits, target = torch.tensor([[1.0, 1], [-1, 1], [1, -1]]), torch.tensor([[1.0, 0], [0, 1], [torch.nan, 1]])
    assert mean_over_tasks(f1_score, logits, target) == pytest.approx((1 + 0.5) / 2)


def test_without_rows_scores_are_zero_and_after_a_prediction_of_nan_they_are_nan():
    nothing = torch.zeros(9, dtype=torch.bool)
    assert f1_score(LOGITS, TARGET, nothing, "macro") == 0
    broken = LOGITS.clone()
    broken[6] = torch.nan  # padding
    assert f1_score(broken, TARGET, MASK) == pytest.approx(4 / 6)
    broken[0, 1] = torch.nan
    assert f1_score(broken, TARGET, MASK).isnan()
    assert confusion_matrix(broken, TARGET, MASK).isnan().all()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: confusion_matrix(LOGITS, TARGET), r"target\[8\] is 77; there are 3 classes"),
        (lambda: f1_score(LOGITS[:2], torch.tensor([0.0, 0.5])), r"target\[1\] is 0.5; there are 3 classes"),
        (lambda: confusion_matrix(torch.tensor([0, 5]), torch.tensor([0, 1]), num_classes=2), r"input\[1\] is 5"),
        (lambda: confusion_matrix(torch.tensor([0]), torch.tensor([0])), "pass num_classes="),
        (lambda: f1_score(LOGITS, TARGET[:3]), r"input has shape \(9, 3\), target \(3,\)"),
        (lambda: recall(LOGITS, TARGET, MASK, "mean"), "average is 'mean'; it must be one of 'micro', 'macro'"),
    ],
)
def test_what_cannot_be_counted_is_refused(call, expected):
    with pytest.raises(ValueError, match=expected):
        call()


def test_a_captured_step_counts_as_eager_pytorch_does_and_gives_nan_for_what_that_refuses():
    class Scores(nn.Module):
        def forward(self, logits, target, mask):
            return f1_score(logits, target, mask, "macro"), confusion_matrix(logits, target, mask)

    step = compile_forward(Scores())
    for mask in (MASK, MASK & (torch.arange(9) < 4)):
        for found, expected in zip(step(LOGITS, TARGET, mask), Scores()(LOGITS, TARGET, mask), strict=True):
            torch.testing.assert_close(found, expected)
    score, counts = step(LOGITS, TARGET, torch.ones(9, dtype=torch.bool))
    assert score.isnan()
    assert counts.isnan().all()


def test_more_rows_are_counted_than_float32_counts():
    rows = torch.zeros(2**24 + 3, dtype=torch.int64)
    assert confusion_matrix(rows, rows, num_classes=1) == float(2**24 + 4)  # the nearest float32
