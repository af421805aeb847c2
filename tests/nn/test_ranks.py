"""Ranks: filtered, fair to ties, and expected among drawn negatives."""

import pytest
import torch

from popgeo.nn import Ranks, filtered_ranks


def test_ranks_by_hand():
    scores = torch.tensor([[3.0, 2.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    known = torch.tensor([[True, True, False, False], [False, False, False, True]])
    target = torch.tensor([1, 0])
    assert filtered_ranks(scores, target).realistic.tolist() == [2.5, 2.5]
    assert filtered_ranks(scores, target, known).realistic.tolist() == [1.5, 2.0]


def test_what_scores_minus_infinity_is_no_candidate():
    scores = torch.tensor([[-torch.inf, 1.0, 1.0], [-torch.inf, -torch.inf, -torch.inf]])
    assert filtered_ranks(scores, torch.tensor([1, 0])).realistic.tolist() == [1.5, 1.0]


def test_one_score_for_all_gets_the_middle_rank_on_average_as_a_random_order_does():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(3, (200, 50), generator=generator).float()
    target = torch.randint(50, (200,), generator=generator)
    broken = [
        filtered_ranks(scores + 0.1 * torch.rand(200, 50, generator=generator), target).realistic for _ in range(50)
    ]
    assert abs(torch.stack(broken).mean(0) - filtered_ranks(scores, target).realistic).max() < 8


def test_hits_among_negatives_are_what_drawing_them_gives():
    generator = torch.Generator().manual_seed(0)
    for rank in (1, 4, 30):
        ranks = Ranks(optimistic=torch.tensor([rank]), pessimistic=torch.tensor([rank]))
        above = torch.rand(20000, 12, generator=generator) * 100 < rank - 1
        drawn = float((above.sum(1) < 3).double().mean())
        candidates = torch.tensor([100])
        assert ranks.hits_among(12, k=3, num_candidates=candidates) == pytest.approx(drawn, abs=0.02)
        assert ranks.hits_among(12, k=13, num_candidates=candidates) == pytest.approx(1)


def test_a_nan_and_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        filtered_ranks(torch.tensor([[0.0, torch.nan]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="known"):
        filtered_ranks(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.bool))
    ranks = Ranks(optimistic=torch.ones(1), pessimistic=torch.ones(1))
    with pytest.raises(ValueError, match="k is 0"):
        ranks.hits_among(5, k=0, num_candidates=torch.tensor([5]))
    with pytest.raises(ValueError, match="one number for each"):
        ranks.hits_among(5, k=1, num_candidates=torch.tensor([5, 5]))


def test_targets_out_of_range_and_masks_of_numbers_are_refused():
    scores = torch.tensor([[3.0, 2.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match=r"target\[1\] is 2; allowed are 0 to 1"):
        filtered_ranks(scores, torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"known is torch\.uint8; it is boolean"):
        filtered_ranks(scores, torch.tensor([0, 1]), torch.zeros(2, 2, dtype=torch.uint8))
    assert filtered_ranks(scores, torch.tensor([0, 0], dtype=torch.int32)).realistic.tolist() == [1, 2]
