"""`weight`, `pos_weight` and `label_smoothing` have the same meaning as in torch; a divisor has its own name."""

import pytest
import torch
from torch.nn import functional as F

from popgeo.nn import binary_cross_entropy, cross_entropy, huber_loss, l1_loss, metrics, mse_loss

RANDOM = torch.Generator().manual_seed(0)
X, Y, W = (torch.rand(6, 3, generator=RANDOM) for _ in range(3))
CLASSES, OF_CLASS = torch.tensor([0, 2, 1, 1, 0, 2]), torch.tensor([1.0, 5.0, 0.0])
REAL = torch.tensor([True, True, False, True, True, False])
NAN = torch.nan


@pytest.mark.parametrize(("own", "peer"), [(mse_loss, F.mse_loss), (l1_loss, F.l1_loss), (huber_loss, F.huber_loss)])
def test_a_factor_of_each_entry_is_torchs(own, peer):
    torch.testing.assert_close(own(X, Y, weight=W), peer(X, Y, weight=W))
    torch.testing.assert_close(own(X, Y, REAL, W), peer(X[REAL], Y[REAL], weight=W[REAL]))
    rows = W[:, 0]
    torch.testing.assert_close(own(X, Y, weight=rows), peer(X, Y, weight=rows[:, None].expand(6, 3)))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weight", [None, OF_CLASS])
def test_factors_of_classes_and_smoothing_are_torchs(weight, smoothing):
    found = cross_entropy(X, CLASSES, REAL, weight, smoothing)
    expected = F.cross_entropy(X[REAL], CLASSES[REAL], weight, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)


def test_factors_of_positive_labels_are_torchs():
    label = (Y > 0.5).float()
    expected = F.binary_cross_entropy_with_logits(X, label, W, pos_weight=OF_CLASS)
    torch.testing.assert_close(binary_cross_entropy(X, label, weight=W, pos_weight=OF_CLASS), expected)
    smooth = F.binary_cross_entropy_with_logits(X, label * 0.8 + 0.1)
    torch.testing.assert_close(binary_cross_entropy(X, label, label_smoothing=0.2), smooth)


@pytest.mark.parametrize("loss", [mse_loss, l1_loss, huber_loss])
def test_a_divisor_is_one_number_and_no_factor(loss):
    torch.testing.assert_close(loss(X, Y, divide_by=36.0), loss(X, Y) / 2)
    torch.testing.assert_close(loss(X, Y, divide_by=torch.tensor([36])), loss(X, Y) / 2)
    with pytest.raises(ValueError, match=r"divide_by has shape \(3,\); it is one number"):
        loss(X, Y, divide_by=OF_CLASS)
    for wrong in (10.0, torch.tensor(2.0), torch.ones(4)):
        with pytest.raises(ValueError, match="as in torch it is a tensor of factors"):
            loss(X, Y, weight=wrong)
    with pytest.raises(ValueError, match=r"mask is torch\.float32; it is a boolean tensor"):
        loss(X, Y, REAL.float())


def test_classes_and_labels_that_do_not_exist_are_named():
    with pytest.raises(ValueError, match=r"target\[1\] is 7; there are 3 classes"):
        cross_entropy(X, torch.tensor([0, 7, 1, 1, 0, 2]))
    with pytest.raises(ValueError, match="classes, which are integers"):
        cross_entropy(X, CLASSES.float())
    with pytest.raises(ValueError, match=r"A label is -1\.0; labels are 0 to 1"):
        binary_cross_entropy(X[:, 0], torch.tensor([0.0, 1, -1, 0, 1, 0]))


@pytest.mark.parametrize("metric", [metrics.roc_auc, metrics.average_precision])
def test_a_prediction_of_nan_is_no_good_score_and_infinity_ranks_as_such(metric):
    y = torch.tensor([0.0, 1, 0, 1])
    assert metric(torch.full((4,), NAN), y).isnan()
    assert metric(torch.tensor([NAN, 0.2, 0.3, 0.4]), y).isnan()
    assert not metric(torch.tensor([NAN, 0.2, 0.3, 0.4]), torch.tensor([NAN, 1, 0, 1])).isnan()
    both = torch.stack([torch.tensor([NAN, 0.2, 0.3, 0.4]), torch.tensor([0.1, 0.2, 0.3, 0.4])], 1)
    assert metrics.mean_over_tasks(metric, both, y[:, None].expand(4, 2)).isnan()
    inf = torch.inf
    scores = torch.tensor([-inf, -3.0, inf, inf, 2.0, -inf])
    label = torch.tensor([0.0, 0, 1, 0, 1, 1])
    finite = torch.tensor([-9.0, -3.0, 9.0, 9.0, 2.0, -9.0])
    for fill in (NAN, inf, -inf, 0.0):
        padded = torch.cat([scores, torch.full((3,), fill)])
        found = metric(padded, torch.cat([label, torch.zeros(3)]), torch.arange(9) < 6)
        torch.testing.assert_close(found, metric(finite, label))


def test_an_accuracy_of_nan_is_nan():
    assert metrics.accuracy(torch.full((4, 3), NAN), torch.tensor([0, 0, 0, 1])).isnan()
    assert (
        metrics.accuracy(torch.tensor([[NAN, 1.0], [2.0, 1.0]]), torch.tensor([0, 0]), torch.tensor([False, True])) == 1
    )
