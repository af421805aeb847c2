"""Claims about batches of triples: one shape, each triple once, the same for any number of processes."""

import pytest
import torch

from popgeo.loader import TripleLoader
from popgeo.sampling import EntityShards

NUM_ENTITIES, NUM_SHARDS = 11, 4
SHARDS = EntityShards.deal(NUM_ENTITIES, NUM_SHARDS, seed=2)


def make_triples(number: int = 150) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    limits = NUM_ENTITIES, 3, NUM_ENTITIES
    return torch.stack([torch.randint(n, (number,), generator=generator) for n in limits], dim=1)


def test_an_epoch_has_each_triple_once_where_its_entities_lie():
    loader = TripleLoader(make_triples(), SHARDS, slots=5, num_negatives=3)
    found, shapes = [], set()
    for batch in loader:
        shapes.add(tuple(tuple(tensor.shape) for tensor in batch))
        here = torch.arange(NUM_SHARDS).view(-1, 1, 1).expand_as(batch.head)
        heads = SHARDS.entity[here, batch.head]
        tails = SHARDS.entity[here, batch.tail].transpose(0, 1)  # looked up where they lie, used where the heads lie
        mask = batch.triples_mask
        assert torch.equal(heads[mask], batch.head_entity[mask])
        assert torch.equal(tails[mask], batch.tail_entity[mask])
        assert (batch.weight == mask.sum() / NUM_SHARDS).all()
        found += torch.stack([heads[mask], batch.relation[mask], tails[mask]], dim=1).tolist()
    assert sorted(found) == sorted(make_triples().tolist())
    assert len(shapes) == 1


def test_every_shard_sends_as_many_negatives_to_each_and_they_are_its_own():
    batch = next(iter(TripleLoader(make_triples(), SHARDS, slots=5, num_negatives=200)))
    assert batch.negative.shape == (NUM_SHARDS, NUM_SHARDS, 200)
    for owner in range(NUM_SHARDS):
        for receiver in range(NUM_SHARDS):
            sent = SHARDS.entity[owner, batch.negative[owner, receiver]]
            assert torch.equal(sent, batch.negative_entity[receiver, owner])
            assert set(sent.tolist()) == set(range(NUM_ENTITIES)) & set(SHARDS.entity[owner].tolist())


def test_all_negatives_are_every_row_and_empty_rows_are_told():
    batch = next(iter(TripleLoader(make_triples(), SHARDS, slots=5)))
    assert sorted(batch.negative_entity[1].flatten().tolist()) == [-1, *range(NUM_ENTITIES)]


def test_processes_have_the_parts_of_the_same_batches():
    choices = {"slots": 5, "num_negatives": 3, "seed": 7}
    whole = TripleLoader(make_triples(), SHARDS, **choices)
    parts = [TripleLoader(make_triples(), SHARDS, **choices, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(2):
        for batch, *halves in zip(whole, *parts, strict=True):
            for tensor, one, other in zip(batch, *halves, strict=True):
                assert torch.equal(tensor, torch.cat([one, other]))


def test_epochs_differ_and_a_seed_repeats_them():
    one, other = (TripleLoader(make_triples(), SHARDS, slots=5, num_negatives=3, seed=0) for _ in range(2))
    first, second = [batch.head for batch in one], [batch.head for batch in one]
    assert not torch.equal(torch.stack(first), torch.stack(second))
    assert torch.equal(torch.stack(first), torch.stack([batch.head for batch in other]))


def test_what_cannot_be_shared_or_is_empty_is_refused():
    with pytest.raises(ValueError, match="3 processes cannot share 4 shards evenly"):
        TripleLoader(make_triples(), SHARDS, slots=5, rank=0, world_size=3)
    with pytest.raises(ValueError, match="slots is 0"):
        TripleLoader(make_triples(), SHARDS, slots=0)
    with pytest.raises(ValueError, match="There are no triples"):
        TripleLoader(make_triples(0), SHARDS, slots=1)


@pytest.mark.parametrize("part", ["triples", "shards"])
def test_edits_of_triples_and_shards_end_the_next_epoch_instead_of_mixing_rows(part: str):
    triples, shards = make_triples(), EntityShards.deal(NUM_ENTITIES, NUM_SHARDS, seed=2)
    loader = TripleLoader(triples, shards, slots=4, num_negatives=3, seed=0)
    assert len(list(loader)) == len(list(loader)) == len(loader)
    if part == "triples":
        triples[:, 2] = (triples[:, 2] + 1) % NUM_ENTITIES
    else:
        shards.row.copy_(shards.row.flip(0))
    with pytest.raises(ValueError, match=r"was replaced or edited.*Make the loader after the change"):
        next(iter(loader))
