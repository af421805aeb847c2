"""Updates in parts: the part of each process, the shared seed, and the names of parameters."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from popgeo import Options
from popgeo.capture.op_graph import Role
from popgeo.engine.optimizer.update import Update
from popgeo.engine.replicas import Replicas
from tests.support.updates import KINDS, assert_same, feed, gradients, make, step, weights


def test_all_tensors_that_it_holds_are_told():
    held = weights()
    update = Update(KINDS["momentum"](held.values()), held, Options())
    update.follow_memory()
    own = held["last"]
    assert [one.numel() for one in update.totals()] == [16, 1]
    assert [one.numel() for one in update.tensors()] == [16, 1]
    feed(update, gradients(0))
    update.apply()
    assert [one.numel() for one in update.tensors()] == [16, 1, 16, 1]
    assert update.members() == [["rows", "line", "one", "last"], ["scalar"]]
    assert update.sharded() == frozenset()
    own.is_sharded = True
    sharded = Update(KINDS["adam"](held.values()), held, Options(), part=(1, 2))
    assert sharded.members() == [["rows", "line", "one"], ["scalar"], ["last"]]
    assert sharded.sharded() == frozenset({"2"})
    assert [one.numel() for one in sharded.totals()] == [12, 1, 4]
    sharded.follow_memory()
    added, handed = [], []
    sharded.apply(SimpleNamespace(add_up=added.extend, hand_on=handed.extend))
    assert [one.numel() for one in added] == [12, 1]
    assert [one.shape for one in handed] == [(12,)]
    assert torch.equal(handed[0], torch.cat([held[name].detach().flatten() for name in ("rows", "line", "one")]))


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("parts", [2, 3])
def test_processes_that_update_a_part_each_do_together_what_one_does(kind: str, parts: int):
    theirs = weights()
    optimizer = KINDS[kind](theirs.values())
    made = [make(kind, part=(number, parts), shard_optimizer_state=True) for number in range(parts)]
    for number in range(4):
        step(optimizer, theirs, gradients(number))
        handed: list[list[Tensor]] = []

        def hand_on(tensors: list[Tensor], handed: list[list[Tensor]] = handed) -> None:
            """Copy to the last process the parts that the other processes have sent."""
            handed.append(tensors)
            for own in zip(*handed, strict=True) if len(handed) == parts else ():
                for rank, mine in enumerate(own):
                    here = slice(mine.numel() * rank // parts, mine.numel() * (rank + 1) // parts)
                    for other in own:
                        other[here] = mine[here]

        for update, _ in made:
            feed(update, gradients(number))
            update.apply(SimpleNamespace(add_up=lambda gradients: None, hand_on=hand_on))
        for _, mine in made[:-1]:  # the other processes get the weights of the last one
            for name, parameter in mine.items():
                parameter.data.copy_(made[-1][1][name].detach())
        for _, mine in made:
            assert_same(mine, theirs)
        if number == 1:  # each process continues from a whole state of another optimizer
            for update, mine in made:
                following = KINDS[kind](mine.values())
                following.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                update.set_optimizer(following)
    assert all(update.is_captured for update, _ in made)


def test_a_captured_update_is_that_of_the_largest_part():
    update, held = make("momentum", gradient_accumulation=2, max_grad_norm=1.0)
    own = nn.Parameter(torch.ones(6, dtype=torch.float64))
    own.is_sharded = True
    held["own"] = own
    mixed = Update(KINDS["momentum"](held.values()), held, Options())

    def sizes(graph) -> list[int]:
        return [graph.values[v].numel for v in graph.inputs_of(Role.PARAMETER).values()]

    assert sizes(update.capture()) == [16, 1]
    assert sizes(update.capture(1)) == [16, 1]
    assert sizes(update.capture(2)) == [8, 1]
    assert sizes(update.capture(3)) == [6, 1]
    assert sizes(update.capture(16)) == [1, 1]
    assert sizes(mixed.capture(4)) == [4, 1, 6]
    graph = mixed.capture(4)
    assert [graph.values[v].shape for v in graph.inputs_of(Role.GRADIENT).values()] == [(4,), (), (6,)]
    assert [graph.values[v].shape for v in graph.inputs_of(Role.STATE).values()] == [(4,), (), (6,)]
    assert graph.outputs == ()
    divided, _ = make("momentum", part=(0, 2))
    assert sizes(divided.capture()) == [16, 1]
    assert update.capture_scaling() is not None
    assert make("momentum")[0].capture_scaling() is None
    targets = {op.target for op in update.capture_scaling().ops}
    assert "aten.linalg_vector_norm.default" in targets
    assert not any("_foreach" in target for target in targets)
    assert all(op.phase == "update" for op in update.capture_scaling().ops)
    # Neither call changes anything.
    assert_same(held | weights(), weights() | {"own": own})
    assert not update.optimizer.state


def test_the_worker_has_the_settings_of_the_next_update_and_the_state_so_far():
    update, held = make("momentum", rate=lambda number: 0.5 + number)
    feed(update, gradients(0))
    update.apply()
    update.optimizer.param_groups[0]["momentum"] = 0.25
    optimizer = update.worker().optimizer
    assert [group["lr"] for group in optimizer.param_groups] == [1.5, 1.5]
    assert [group["momentum"] for group in optimizer.param_groups] == [0.25, 0.25]
    velocity = optimizer.state[optimizer.param_groups[1]["params"][0]]["momentum_buffer"]
    torch.testing.assert_close(velocity, update.optimizer.state[held["scalar"]]["momentum_buffer"])


def rounding(**choices):
    return make("momentum", torch.float16, stochastic_rounding=True, random_seed=3, **choices)


def test_counting_on_from_an_update_draws_its_random_numbers():
    first, expected = rounding()
    second, mine = rounding()
    for number in range(6):
        feed(first, gradients(number, torch.float16))
        first.apply()
        if number == 2:
            for name, parameter in mine.items():
                parameter.data.copy_(expected[name].detach())
            kept = KINDS["momentum"](mine.values())
            for name, parameter in expected.items():
                kept.state[mine[name]].update(copy.deepcopy(dict(first.optimizer.state[parameter])))
            second.set_optimizer(kept)
            assert first.state() == {"num_updates": 3, "rounding_seed": 3}
            second.restore(first.state())
            assert second.num_updates == 3
        if number > 2:
            feed(second, gradients(number, torch.float16))
            second.apply()
    assert second.num_updates == 6
    assert all(torch.equal(mine[name], parameter) for name, parameter in expected.items())
    assert first.seed == second.seed == 3


def test_a_seed_is_shared_where_processes_round():
    told = []

    def share(tensors: list[Tensor]) -> None:
        told.extend(tensors)
        tensors[0].fill_(11)

    replicas = SimpleNamespace(world_size=2, share_weights=share)
    update, mine = rounding()
    update.share_seed(SimpleNamespace(world_size=1, share_weights=None))
    assert update.seed == 3
    update.share_seed(replicas)
    assert update.seed == 11
    other, theirs = make("momentum", torch.float16, stochastic_rounding=True, random_seed=11)
    for one in (update, other):
        feed(one, gradients(0, torch.float16))
        one.apply()
    assert all(torch.equal(mine[name], parameter) for name, parameter in theirs.items())
    plain, _ = make("momentum")
    plain.share_seed(replicas)
    assert len(told) == 1
    huge, _ = make("momentum", torch.float16, stochastic_rounding=True, random_seed=2**63 + 5)
    seen = []
    huge.share_seed(SimpleNamespace(world_size=2, share_weights=lambda tensors: seen.append(int(tensors[0]))))
    assert seen == [5]
    assert huge.seed == 5


def test_state_keeps_its_types_when_it_is_loaded_after_the_parameters_are_taken_over():
    update, held = make("momentum", torch.float16, optimizer_state_dtype=torch.float32)
    feed(update, gradients(0, torch.float16))
    update.apply()
    saved = copy.deepcopy(update.optimizer.state_dict())
    assert saved["state"][0]["momentum_buffer"].dtype is torch.float32
    another = KINDS["momentum"](held.values())
    for one in (update.optimizer, another):
        if one is another:
            update.set_optimizer(another)
        one.load_state_dict(saved)
        assert torch.equal(one.state[held["rows"]]["momentum_buffer"], saved["state"][0]["momentum_buffer"])


def test_processes_that_keep_nothing_of_one_another_share_nothing():
    assert Replicas((0,), 1).hand_on([torch.ones(2)]) is None
