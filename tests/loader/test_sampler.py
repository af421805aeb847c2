"""The number of the running epoch, and the position in it."""

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
    [{"shuffle": False}, {"strategy": "Window"}],
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


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1), (3, 2), (2, 4)])
def test_a_run_goes_on_with_another_number_of_ranks_and_uses_every_graph_once(first, then):
    ranks = [loader_of(shuffle=True, rank=rank, world_size=first) for rank in range(first)]
    iterators = [iter(loader) for loader in ranks]
    used = seeds([next(items) for items in iterators] + [next(items) for items in iterators])
    state = ranks[0].state_dict()
    assert all(loader.state_dict() == state for loader in ranks)
    others = [loader_of(shuffle=True, rank=rank, world_size=then) for rank in range(then)]
    for loader in others:
        loader.load_state_dict(state)
    assert len({len(loader) for loader in others}) == 1
    iterators = [iter(loader) for loader in others]
    used += seeds([next(items) for items in iterators])
    state = others[0].state_dict()  # and once more, back to the first number
    ranks = [loader_of(shuffle=True, rank=rank, world_size=first) for rank in range(first)]
    for loader in ranks:
        loader.load_state_dict(state)
        used += seeds(loader)
        assert loader.epoch == 1
    assert sorted(used) == list(range(40))


def test_a_state_of_an_earlier_version_in_the_middle_of_an_epoch_is_refused():
    loader = loader_of(shuffle=True)
    with pytest.raises(ValueError, match=r"in the middle of epoch 3 by an earlier version.*set_epoch\(4\)"):
        loader.load_state_dict({"epoch": 3, "position": 2, "seed": 0, "num_graphs": 40, "batches": 1})


def test_the_state_is_the_same_for_all_ranks():
    loaders = [loader_of(shuffle=True, rank=rank, world_size=2) for rank in range(2)]
    for loader in loaders:
        next(iter(loader))
    assert loaders[0].state_dict() == loaders[1].state_dict()
