"""Negatives of links with times: both ends exist by then, every pair that does is as likely, and none is an edge."""

from collections import Counter

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from popgeo.loader import FixedSizeLinkLoader
from popgeo.sampling.timed_negatives import TimedNonEdges

TIME = torch.arange(60)
LINKS, AT = torch.tensor([[0, 1, 2, 8], [1, 2, 3, 9]]), torch.tensor([3, 4, 5, 12])


def line() -> Data:
    return Data(x=torch.zeros(60, 1), edge_index=torch.stack([TIME[:-1], TIME[1:]]), time=TIME)


@pytest.mark.parametrize(
    "sampling", ["binary", "triplet", NegativeSampling("triplet", 3), NegativeSampling("binary", 2.5)]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_negative_exists_at_the_time_of_its_link(sampling, workers):
    choices = {"edge_label_time": AT, "time_attr": "time", "neg_sampling": sampling, "batch_size": 4}
    loader = FixedSizeLinkLoader(line(), [2], LINKS, **choices, num_workers=workers)
    amount = NegativeSampling.cast(sampling).amount
    for _ in range(2 if workers else 5):  # each epoch starts the workers again
        for batch in loader:
            negative = batch.edge_label_mask & (batch.edge_label == 0)
            ends = batch.n_id[batch.edge_label_index[:, negative]]
            limits = AT.repeat_interleave(int(-(-amount // 1)))[: ends.shape[1]]
            assert ends.shape[1] == -(-4 * amount // 1)
            assert (TIME[ends] <= limits).all()
            assert not (ends[1] == ends[0] + 1).any()  # none is an edge


def test_nodes_of_two_types_have_times_of_their_own():
    data = HeteroData()
    data["user"].x, data["user"].time = torch.zeros(20, 1), torch.arange(20)
    data["item"].x, data["item"].time = torch.zeros(30, 1), torch.arange(30) // 2
    edges = torch.stack([torch.arange(20), torch.arange(20)])
    data["user", "buys", "item"].edge_index = edges
    kind = ("user", "buys", "item")
    choices = {"edge_label_time": torch.arange(2, 20), "time_attr": "time", "neg_sampling": "binary", "batch_size": 18}
    for batch in FixedSizeLinkLoader(data, {kind: [1]}, (kind, edges[:, 2:]), **choices):
        store = batch[kind]
        index = store.edge_label_index[:, 18:]
        users, items = batch["user"].n_id[index[0]], batch["item"].n_id[index[1]]
        assert (data["user"].time[users] <= torch.arange(2, 20)).all()
        assert (data["item"].time[items] <= torch.arange(2, 20)).all()


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_where_every_pair_that_exists_has_an_edge_there_is_no_negative(mode):
    all_pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3)).T
    edges, time = torch.cat([all_pairs, torch.tensor([[3], [4]])], dim=1), torch.arange(5)
    timed = TimedNonEdges.from_edge_index(edges, (5, 5), (time, time))
    positives = torch.tensor([[0, 0, 3], [1, 2, 4]])
    drawn, exists = timed.draw(positives, torch.tensor([1, 2, 4]), mode=mode, amount=1, seed=1)
    assert exists.tolist() == [False, False, True]
    assert drawn[:, :2].tolist() == positives[:, :2].tolist()
    data = Data(x=torch.zeros(5, 1), edge_index=edges, time=time)
    choices = {"edge_label_time": torch.tensor([1, 2, 4]), "time_attr": "time", "neg_sampling": mode, "batch_size": 3}
    (batch,) = FixedSizeLinkLoader(data, [1], positives, **choices)
    assert batch.edge_label_mask[:6].tolist() == [True, True, True, False, False, True]


def test_each_pair_that_may_be_drawn_is_as_likely_as_the_next():
    edges = torch.tensor([[0, 0, 1, 5], [0, 1, 2, 5]])
    time = torch.tensor([0, 1, 2, 9, 9, 9])
    timed = TimedNonEdges.from_edge_index(edges, (6, 6), (time, time))
    allowed = {(s, d) for s in range(3) for d in range(3)} - {(0, 0), (0, 1), (1, 2)}
    positives = torch.zeros(2, 6_000, dtype=torch.long)
    drawn, exists = timed.draw(positives, torch.full((6_000,), 2), mode="binary", amount=1, seed=3)
    counts = Counter(map(tuple, drawn.T.tolist()))
    assert exists.all()
    assert counts.keys() == allowed
    assert all(abs(count - 1_000) < 150 for count in counts.values())


def test_a_pair_among_a_few_that_have_no_edge_is_found():
    pairs = torch.cartesian_prod(torch.arange(40), torch.arange(40)).T
    edges = pairs[:, (pairs != torch.tensor([[7], [9]])).any(0)]
    time = torch.arange(40)
    timed = TimedNonEdges.from_edge_index(edges, (40, 40), (time, None))
    drawn, exists = timed.draw(edges[:, :3], torch.tensor([6, 7, 39]), mode="binary", amount=1, seed=0)
    assert exists.tolist() == [False, True, True]
    assert drawn[:, 1:].tolist() == [[7, 7], [9, 9]]
