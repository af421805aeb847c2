"""Ranks: filtered, fair to ties, and expected among drawn negatives."""

import pytest
import torch

from popgeo.nn import filtered_ranks, hits_among


def test_ranks_by_hand():
    scores = torch.tensor([[3.0, 2.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    known = torch.tensor([[True, True, False, False], [False, False, False, True]])
    target = torch.tensor([1, 0])
    assert filtered_ranks(scores, target).tolist() == [2.5, 2.5]
    assert filtered_ranks(scores, target, known).tolist() == [1.5, 2.0]


def test_what_scores_minus_infinity_is_no_candidate():
    scores = torch.tensor([[-torch.inf, 1.0, 1.0], [-torch.inf, -torch.inf, -torch.inf]])
    assert filtered_ranks(scores, torch.tensor([1, 0])).tolist() == [1.5, 1.0]


def test_one_score_for_all_gets_the_middle_rank_on_average_as_a_random_order_does():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(3, (200, 50), generator=generator).float()
    target = torch.randint(50, (200,), generator=generator)
    broken = [filtered_ranks(scores + 0.1 * torch.rand(200, 50, generator=generator), target) for _ in range(50)]
    assert abs(torch.stack(broken).mean(0) - filtered_ranks(scores, target)).max() < 8


def test_hits_among_negatives_are_what_drawing_them_gives():
    generator = torch.Generator().manual_seed(0)
    ranks, candidates = torch.tensor([1.0, 4.0, 30.0]), torch.tensor([100, 100, 100])
    above = torch.rand(20000, 3, 12, generator=generator) * 100 < (ranks - 1).unsqueeze(1)
    drawn = (above.sum(2) < 3).float().mean(0)
    assert (hits_among(ranks, candidates, k=3, num_negatives=12) - drawn).abs().max() < 0.02
    assert hits_among(ranks, candidates, k=13, num_negatives=12).tolist() == pytest.approx([1, 1, 1])


def test_a_nan_and_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        filtered_ranks(torch.tensor([[0.0, torch.nan]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="known"):
        filtered_ranks(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="k is 0"):
        hits_among(torch.ones(1), torch.ones(1), k=0, num_negatives=5)
