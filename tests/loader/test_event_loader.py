"""Events in batches of one shape: each once, in order, with negatives that do not depend on the batches."""

import numpy as np
import pytest
import torch
from torch_geometric.data import TemporalData
from torch_geometric.loader import TemporalDataLoader

from popgeo import FixedSizeEventLoader


def make_events(num_events: int = 23) -> TemporalData:
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(5, (num_events,), generator=generator), torch.randint(7, 20, (num_events,))
    t = torch.randint(0, 3, (num_events,), generator=generator).cumsum(0)
    return TemporalData(src, dst, t, torch.randn(num_events, 2), y=torch.rand(num_events) < 0.1)


@pytest.mark.parametrize("batch_size", [1, 5, 23, 40])
def test_batches_are_pygs_filled_up_to_one_shape(batch_size: int):
    events = make_events()
    loader = FixedSizeEventLoader(events, batch_size)
    peers = list(TemporalDataLoader(events, batch_size))
    assert len(loader) == len(peers)
    for batch, peer in zip(loader, peers, strict=True):
        assert batch.events_mask.tolist() == [i < len(peer.src) for i in range(batch_size)]
        for name in ("src", "dst", "t", "msg", "y"):
            column = batch[name]
            assert column.shape == (batch_size, *events[name].shape[1:])
            assert torch.equal(column[batch.events_mask], peer[name])
            assert not column[~batch.events_mask].any()


def negatives(loader: FixedSizeEventLoader) -> list[int]:
    return torch.cat([batch.neg_dst[batch.events_mask] for batch in loader]).tolist()


def test_negatives_are_destinations_and_depend_on_seed_epoch_and_event_alone():
    events = make_events()
    one, other = FixedSizeEventLoader(events, 5, seed=3), FixedSizeEventLoader(events, 8, seed=3)
    first, second = negatives(one), negatives(one)
    assert [negatives(other), negatives(other)] == [first, second]
    assert first != second
    assert first != negatives(FixedSizeEventLoader(events, 5, seed=4))
    assert int(events.dst.min()) <= min(first + second)
    assert max(first + second) <= int(events.dst.max())
    same = FixedSizeEventLoader(events, 5, seed=3, same_negatives=True)
    assert negatives(same) == negatives(same) == first


def test_negatives_are_drawn_evenly_from_a_range_that_is_given():
    events = TemporalData(*torch.zeros(3, 4000, dtype=torch.int64))
    drawn = torch.tensor(negatives(FixedSizeEventLoader(events, 100, negatives=(10, 14), seed=0)))
    assert (drawn.bincount(minlength=14)[10:] - 1000).abs().max() < 120
    assert (drawn < 14).all()
    assert "neg_dst" not in next(iter(FixedSizeEventLoader(events, 100, negatives=None))).to_dict()


def test_what_is_done_to_a_batch_changes_neither_the_data_nor_the_next_epoch():
    events = make_events()
    before, loader = events.clone(), FixedSizeEventLoader(events, 5)
    for batch in loader:
        batch.src.fill_(9)
        batch.events_mask.zero_()
    for name, column in before.to_dict().items():
        assert torch.equal(events[name], column)
        assert torch.equal(torch.cat([batch[name][batch.events_mask] for batch in loader]), column)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda events: {"data": events[events.t.argsort(descending=True)]}, "not in order of time"),
        (lambda events: {"data": events[:0]}, "0 events"),
        (
            lambda events: {"data": TemporalData(events.src - 1, events.dst, events.t)},
            "has node -1; nodes are numbered",
        ),
        (lambda events: {"batch_size": 0}, "batches of 0"),
        (lambda events: {"negatives": (4, 4)}, "first node and the one after the last"),
        (lambda events: {"negatives": "sources"}, "'sources'"),
        (lambda events: {"data": TemporalData(events.src, events.dst, events.t, name="x")}, "name"),
    ],
)
def test_what_cannot_be_loaded_is_refused(change, message):
    events = make_events()
    with pytest.raises(ValueError, match=message):
        FixedSizeEventLoader(**({"data": events, "batch_size": 5} | change(events)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.int64])
def test_times_of_any_kind_are_read(dtype):
    data = TemporalData(*torch.tensor([[0, 1, 0], [3, 4, 4]]), torch.tensor([1, 2, 2]).to(dtype))
    assert next(iter(FixedSizeEventLoader(data, batch_size=4))).t.tolist() == [1, 2, 2, 0]
    data.t = data.t.flip(0)
    with pytest.raises(ValueError, match="1 of 3 events are not in order"):
        FixedSizeEventLoader(data, batch_size=4)


def test_a_seed_may_be_a_number_of_numpy():
    events = make_events()
    first, second = (FixedSizeEventLoader(events, 5, seed=seed) for seed in (3, np.int64(3)))
    assert [batch.neg_dst.tolist() for batch in first] == [batch.neg_dst.tolist() for batch in second]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("range_", ["destinations", (0, 9), (3, 8)])
def test_a_negative_is_neither_the_source_nor_met_at_that_time(dtype, range_):
    generator = torch.Generator().manual_seed(1)
    src, dst, steps = (torch.randint(n, (200,), generator=generator) for n in (6, 9, 2))
    events = TemporalData(src.to(dtype), dst.to(dtype), steps.cumsum(0))
    met = set(zip(src.tolist(), dst.tolist(), events.t.tolist(), strict=True))
    drawn = {}
    for workers in (0, 2):
        loader = FixedSizeEventLoader(events, 7, negatives=range_, seed=0, num_workers=workers)
        drawn[workers] = negatives(loader)
        for source, other, time in zip(src.tolist(), drawn[workers], events.t.tolist(), strict=True):
            assert source != other
            assert (source, other, time) not in met
    assert drawn[0] == drawn[2]
    assert len(set(drawn[0])) == (5 if range_ == (3, 8) else 9)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, r"Event 0 has no negative: each of the nodes 3 to 3.*Pass negatives=\(first, end\) of more nodes"),
        ({"negatives": (0, 300)}, "but dst is torch.uint8. Pass dst as torch.int64"),
    ],
)
def test_a_range_without_a_negative_or_beyond_the_type_is_refused(choices, message):
    events = TemporalData(torch.tensor([0, 1]), torch.tensor([3, 3], dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=message):
        FixedSizeEventLoader(events, 2, **choices)
    events.dst = events.dst.float()
    with pytest.raises(ValueError, match="nodes are numbered by integers"):
        FixedSizeEventLoader(events, 2)
