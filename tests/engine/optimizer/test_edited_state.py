"""Optimizer state that the user edits between updates, and parameters with different step counts."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn, optim

from popgeo import Options
from popgeo.engine.optimizer.update import Update
from tests.support.updates import KINDS, assert_same, assert_same_state, feed, gradients, make, step, weights


def clear(optimizer: optim.Optimizer) -> None:
    optimizer.state.clear()


def clear_one(optimizer: optim.Optimizer) -> None:
    del optimizer.state[optimizer.param_groups[0]["params"][1]]


def empty_one(optimizer: optim.Optimizer) -> None:
    optimizer.state[optimizer.param_groups[0]["params"][1]].clear()


def replace_a_part(optimizer: optim.Optimizer) -> None:
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    state["exp_avg"] = torch.full_like(state["exp_avg"], 0.5)


def write_to_a_part(optimizer: optim.Optimizer) -> None:
    optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"].fill_(0.5)


def set_back_counts(optimizer: optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["step"].zero_()


def set_back_one_count(optimizer: optim.Optimizer) -> None:
    optimizer.state[optimizer.param_groups[0]["params"][2]]["step"].fill_(1)


def set_back_the_count_without_dimensions(optimizer: optim.Optimizer) -> None:
    optimizer.state[optimizer.param_groups[0]["params"][3]]["step"].fill_(1)


def put_state_in_its_place(optimizer: optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    set_back_counts(optimizer)


EDITS = [
    clear, clear_one, empty_one, replace_a_part, write_to_a_part, set_back_counts, set_back_one_count,
    set_back_the_count_without_dimensions, put_state_in_its_place,
]  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_state_that_is_edited_between_updates_is_followed(edit):
    update, mine = make("adam")
    theirs = weights()
    optimizer = KINDS["adam"](theirs.values())
    for number in range(7):
        if number == 4:
            edit(update.optimizer)
            edit(optimizer)
        feed(update, gradients(number))
        update.apply()
        step(optimizer, theirs, gradients(number))
    assert_same(mine, theirs)
    assert_same_state(update.optimizer, optimizer)


@pytest.mark.parametrize("kind", ["adam", "momentum", "adagrad"])
def test_what_was_frozen_for_a_while_goes_on_from_its_own_count(kind: str):
    mine, theirs = weights(), weights()
    own, optimizer = KINDS[kind](mine.values()), KINDS[kind](theirs.values())
    for phase, frozen in enumerate([{"line", "one"}, set(), {"rows"}, set()]):
        # As after `requires_grad_(False)`: the model is compiled again for the trained parameters.
        update = Update(own, {name: p for name, p in mine.items() if name not in frozen}, Options())
        update.follow_memory()
        for number in range(4 * phase, 4 * phase + 4):
            feed(update, gradients(number))
            update.apply()
            for name in frozen:
                theirs[name].grad = None
            step(optimizer, {name: p for name, p in theirs.items() if name not in frozen}, gradients(number))
        assert update.is_captured
    assert_same(mine, theirs)
    assert_same_state(own, optimizer)


@pytest.mark.parametrize("choices", [{"optimizer_state_dtype": torch.float32}, {"shard_optimizer_state": True}])
def test_edits_are_refused_where_parameters_cannot_be_stepped_apart(choices: dict):
    update, held = make("adam", torch.float16, part=(0, 2 if "shard_optimizer_state" in choices else 1), **choices)
    alone = SimpleNamespace(add_up=lambda tensors: None, hand_on=lambda tensors: None)
    for number in range(2):
        feed(update, gradients(number, torch.float16))
        update.apply(alone)
    before = {name: p.detach().clone() for name, p in held.items()}
    set_back_one_count(update.optimizer)
    with pytest.raises(ValueError, match=r"Adam had state edited for some parameters; call reset\(\), or leave out"):
        update.apply(alone)
    assert all(torch.equal(before[name], p) for name, p in held.items())


def test_a_parameter_that_takes_anothers_place_in_a_group_is_refused():
    update, _ = make("adam")
    feed(update, gradients(0))
    update.apply()
    update.optimizer.param_groups[0]["params"][1] = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"other parameters or groups .* call reset\(\) first"):
        update.apply()
