"""A loader without a seed follows `torch.manual_seed`, as torch's loaders do; a loader with a seed does not."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from popgeo import FixedSizeDataLoader, FixedSizeOptions
from popgeo.loader import FixedSizeBatchSampler, FixedSizeNeighborLoader, TripleLoader
from popgeo.loader.epoch_seed import agreed
from tests.loader.test_every_loader import LOADERS, noted
from tests.support.large_graphs import random_graph
from tests.support.loaders import GRAPHS, OPTIONS, seeds

SIZES = FixedSizeOptions(num_nodes=30, num_edges=60, num_graphs=8)


def sampler_of(**choices: Any) -> FixedSizeBatchSampler:
    return FixedSizeBatchSampler([2 + i % 5 for i in range(60)], fixed_size_options=SIZES, **choices)


SEEDED: dict[str, Callable[..., Any]] = {**LOADERS, "sampler": lambda **choices: sampler_of(**choices)}


def epoch_of(loader: Any) -> list[Any]:
    return list(loader) if isinstance(loader, FixedSizeBatchSampler) else noted(loader)


def epochs(kind: str, of_torch: int, count: int = 1, ahead: int = 0, **choices: Any) -> list[list[Any]]:
    torch.manual_seed(of_torch)
    loader = SEEDED[kind](**{"seed": None, **choices})
    torch.rand(ahead)
    return [epoch_of(loader) for _ in range(count)]


@pytest.mark.parametrize("kind", SEEDED)
def test_without_a_seed_an_epoch_follows_torchs(kind: str):
    first = epochs(kind, 0, count=2)
    assert first == epochs(kind, 0, count=2)
    assert first[0] != epochs(kind, 1)[0]
    assert first[0] != epochs(kind, 0, ahead=3)[0]  # it is drawn when the first epoch begins
    assert epochs(kind, 0, seed=4) == epochs(kind, 1, seed=4)
    torch.manual_seed(0)
    one, other = (SEEDED[kind](seed=None) for _ in range(2))
    assert epoch_of(one) != epoch_of(other)


@pytest.mark.parametrize("kind", SEEDED)
def test_the_seed_that_was_drawn_is_in_state_and_repr_and_gives_the_same_epochs(kind: str):
    torch.manual_seed(3)
    loader = SEEDED[kind](seed=None)
    before = torch.get_rng_state()
    assert loader.seed is None
    assert loader.state_dict()["seed"] is None
    length, shown = len(loader), repr(loader)
    assert torch.equal(torch.get_rng_state(), before)  # neither asks for it
    found = [epoch_of(loader) for _ in range(2)]
    assert len(found[0]) == length
    drawn = loader.state_dict()["seed"]
    assert f"; seed {drawn})" in repr(loader)
    assert "; seed " not in shown
    numbered = SEEDED[kind](seed=drawn)
    assert [epoch_of(numbered) for _ in range(2)] == found
    assert f"seed {drawn}" not in repr(numbered)


@pytest.mark.parametrize("kind", SEEDED)
@pytest.mark.parametrize("used", [0, 2])
def test_a_run_that_continues_has_its_seed_and_the_random_numbers_of_the_whole_run(kind: str, used: int):
    torch.manual_seed(3)
    whole = SEEDED[kind](seed=None)
    epoch_of(whole)
    items = iter(whole)
    for _ in range(used):
        next(items)
    state, of_torch = whole.state_dict(), torch.get_rng_state()
    rest = [noted(items) if not isinstance(whole, FixedSizeBatchSampler) else list(items)]
    rest += [epoch_of(whole), torch.rand(1)]
    torch.manual_seed(8)
    again = SEEDED[kind](seed=None)
    again.load_state_dict(pickle.loads(pickle.dumps(state)))
    torch.set_rng_state(of_torch)
    assert [epoch_of(again), epoch_of(again), torch.rand(1)] == rest


def test_a_state_from_before_the_first_epoch_lets_that_draw_the_seed():
    loader = SEEDED["graphs"](seed=7)
    loader.load_state_dict(SEEDED["graphs"](seed=None).state_dict())
    torch.manual_seed(0)
    assert [noted(loader)] == epochs("graphs", 0)
    with pytest.raises(ValueError, match="'seed' is None"):
        loader.load_state_dict({**loader.state_dict(), "seed": None, "used": [[1, 1, 2]], "position": 2, "batches": 1})


@pytest.mark.parametrize("choices", [{"num_workers": 2}, {"background": True}, {"num_workers": 1, "options": 2}])
def test_workers_and_threads_have_the_seed_too(choices: dict[str, Any]):
    plain = {name: value for name, value in choices.items() if name == "options"}
    assert epochs("neighbors", 5, **choices) == epochs("neighbors", 5, **plain)


def test_another_dataloader_around_a_sampler_without_a_seed_follows_torchs():
    def order(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return [i for batch in DataLoader(range(60), batch_sampler=sampler_of(), collate_fn=list) for i in batch]

    assert order(0) == order(0) != order(1)


def test_a_loader_that_draws_nothing_takes_no_number_and_is_the_same_in_each_run():
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        loader = FixedSizeDataLoader(GRAPHS, fixed_size_options=OPTIONS, fixed_size_strategy="Window")
        found.append([seeds(loader), list(sampler_of(shuffle=False))])
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]
    trims = FixedSizeDataLoader(GRAPHS, 4, num_nodes=12, num_edges=9, over_size_strategy="TrimNodesAndEdges")
    assert trims.seed is None


@pytest.mark.parametrize(
    "make",
    [
        lambda **shard: FixedSizeDataLoader(GRAPHS, 4, shuffle=True, **shard),
        lambda **shard: FixedSizeNeighborLoader(random_graph(), [2], batch_size=8, **shard),
        lambda **shard: sampler_of(**shard),
    ],
)
def test_processes_without_a_group_need_a_number(make: Callable[..., Any]):
    with pytest.raises(ValueError, match=r"A loader for 2 of the processes has no seed.* no group.*seed=0"):
        next(iter(make(rank=0, world_size=2)))
    assert next(iter(make(rank=0, world_size=2, seed=1))) is not None
    assert next(iter(make(rank=0, world_size=1))) is not None


def test_processes_of_a_group_have_the_seed_of_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda found, src: found.__setitem__(0, 11))
    loader = SEEDED["graphs"](seed=None)
    next(iter(loader))
    assert loader.seed == 11
    triples = TripleLoader(*triples_of(), slots=3, num_negatives=2)
    next(iter(triples))
    assert triples.seed == 11  # although each process goes through all batches
    assert SEEDED["graphs"](seed=5).seed == 5
    with pytest.raises(ValueError, match=r"for 3 of the processes has no seed.* a group of 2"):
        agreed(1, 3)
    with pytest.raises(ValueError, match=r"for 1 of the processes has no seed.* a group of 2"):
        next(iter(SEEDED["graphs"](seed=None, rank=0, world_size=1)))  # others may need the same batches
    listed = FixedSizeDataLoader(GRAPHS, fixed_size_options=OPTIONS, rank=0, world_size=1)
    assert len(seeds(listed)) == 40


def triples_of() -> tuple[Any, Any]:
    from popgeo.sampling import EntityShards

    return torch.randint(0, 8, (20, 3)) % torch.tensor([8, 2, 8]), EntityShards.deal(8, num_shards=2)


def test_fairchems_way_to_resume_needs_a_seed():
    with pytest.raises(ValueError, match=r"3 batches of epoch 1 are left out, but the seed .* Pass seed="):
        sampler_of().set_epoch_and_start_iteration(1, 3)
    sampler_of().set_epoch_and_start_iteration(1, 0)
    sampler_of(seed=0).set_epoch_and_start_iteration(1, 3)
