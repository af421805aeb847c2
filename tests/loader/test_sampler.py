"""Which epoch runs and how far it has come."""

import pytest

from tests.support.loaders import loader_of, seeds


def test_an_epoch_begins_with_its_first_item():
    loader = loader_of(shuffle=True)
    iter(loader)
    iter(loader)
    assert loader.epoch == 0
    assert seeds(loader) == seeds(loader_of(shuffle=True))


def test_choosing_the_epoch_of_a_state_just_loaded_keeps_its_position():
    loader, again = loader_of(shuffle=True), loader_of(shuffle=True)
    orders = [seeds(loader), seeds(loader)]
    loader.set_epoch(1)
    items = iter(loader)
    used = seeds([next(items), next(items)])
    again.load_state_dict(loader.state_dict())
    again.set_epoch(1)
    assert used + seeds(again) == orders[1]
    again.set_epoch(0)
    assert seeds(again) == orders[0]


def test_choosing_the_epoch_that_was_broken_off_begins_it_anew():
    loader = loader_of(shuffle=True)
    next(iter(loader))
    loader.set_epoch(0)
    assert seeds(loader) == seeds(loader_of(shuffle=True))


def test_after_the_last_item_the_state_is_of_the_next_epoch():
    loader = loader_of(shuffle=True)
    items = iter(loader)
    for _ in range(len(loader)):
        next(items)
    assert {name: loader.state_dict()[name] for name in ("epoch", "position")} == {"epoch": 1, "position": 0}


@pytest.mark.parametrize(
    "other",
    [{"shuffle": False}, {"strategy": "Window"}, {"rank": 0, "world_size": 2}, {"options": 2}],
    ids=lambda other: next(iter(other)),
)
def test_a_state_taken_among_other_batches_is_refused(other):
    loader = loader_of(shuffle=True)
    next(iter(loader))
    changed = loader_of(**{"shuffle": True, **other})
    changed.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"after 1 items of epoch 0, which had other batches.*set_epoch\(1\)"):
        next(iter(changed))
    changed.set_epoch(1)
    next(iter(changed))


def test_the_state_is_the_same_for_all_ranks():
    loaders = [loader_of(shuffle=True, rank=rank, world_size=2) for rank in range(2)]
    for loader in loaders:
        next(iter(loader))
    assert loaders[0].state_dict() == loaders[1].state_dict()
