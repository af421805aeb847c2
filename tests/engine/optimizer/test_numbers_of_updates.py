"""The numbers of captured updates are exactly those of the optimizer's own code."""

import math
from math import sqrt as square_root
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from popgeo.engine.optimizer.coming_updates import ComingUpdates
from popgeo.engine.optimizer.flat_worker import FlatWorker
from popgeo.engine.optimizer.update import Update
from popgeo.engine.optimizer.worker import Worker, settings_of
from popgeo.engine.step_options import StepOptions
from popgeo.native import library


def weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(()))]
    for p in made:
        p.grad = torch.zeros_like(p)
    return made


@pytest.fixture
def captured(monkeypatch) -> list[object]:
    """Return a list that gets an entry per capture of an update."""
    found = []
    capture = ComingUpdates._capture

    def noted(*args, **kwargs):
        found.append(capture(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(ComingUpdates, "_capture", noted)
    return found


KINDS = [
    (optim.Adam, {"amsgrad": True, "maximize": True, "weight_decay": 0.1}), (optim.AdamW, {}), (optim.Adam, {}),
    (optim.NAdam, {}), (optim.RAdam, {}), (optim.RMSprop, {"momentum": 0.9, "centered": True}), (optim.RMSprop, {}),
    (optim.Adagrad, {"lr_decay": 0.01}), (optim.Adadelta, {}), (optim.Adamax, {}), (optim.ASGD, {"t0": 20}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True}), (optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    (optim.Rprop, {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_weights_are_those_of_plain_torch_to_the_last_bit_with_a_scheduler(captured, kind, options):
    mine, theirs = weights(), weights()
    ours, own = (kind([{"params": [p]} for p in some], lr=0.01, foreach=False, **options) for some in (mine, theirs))
    schedulers = [optim.lr_scheduler.CosineAnnealingLR(each, 70) for each in (ours, own)]
    worker = FlatWorker(ours)
    worker.begin(0, seed=0)
    for number in range(60):
        for p, q in zip(mine, theirs, strict=True):
            p.grad.normal_()
            q.grad.copy_(p.grad)
        if number == 30 and kind is not optim.Rprop:
            for group in (ours.param_groups[1], own.param_groups[1]):
                group["weight_decay"] = 0.25
        ours._opt_called = True
        worker.take_settings(settings_of(ours))
        with library.without_native():  # compiled chains round the last bit differently
            for each in (worker, own, *schedulers):
                each.step()
        assert all(map(torch.equal, mine, theirs)), number
        for p, q in zip(mine, theirs, strict=True):
            assert all(torch.equal(part, own.state[q][key]) for key, part in ours.state[p].items()), number
    assert worker.is_captured
    assert len(captured) <= 5  # RAdam adapts its rate and ASGD begins to average after some updates


def test_a_rate_out_of_numpy_is_followed():
    mine, theirs = weights(), weights()
    ours, own = (optim.Adam(some, lr=np.float64(0.01), foreach=False) for some in (mine, theirs))
    worker = FlatWorker(ours)
    worker.begin(0, seed=0)
    for number in range(40):
        for p, q in zip(mine, theirs, strict=True):
            p.grad.normal_()
            q.grad.copy_(p.grad)
        for optimizer in (ours, own):
            optimizer.param_groups[0]["lr"] = np.float64(0.01 / (1 + number))
        worker.take_settings(settings_of(ours))
        with library.without_native():
            worker.step()
            own.step()
        assert all(map(torch.equal, mine, theirs)), number


class Elementwise(optim.Optimizer):
    """Elementwise optimizer with a rate that a subclass computes from the step count."""

    elementwise = True
    count: object = 0.0

    def __init__(self, params, lr=0.5) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "step": 0})
        self.calls = 0

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(self.count) if type(self.count) is float else 0
                state["step"] += 1
                p.add_(p.grad, alpha=-self.rate(group, state["step"]))

    def rate(self, group: dict, count: Any) -> float:
        raise NotImplementedError


class Rooted(Elementwise):
    """Rate from Python's `math`."""

    def rate(self, group, count):
        return math.sqrt(group["lr"] / count.item()) * 2.0


class RootedElsewhere(Elementwise):
    """Rate from a function of `math` under another name, which computes with the float itself."""

    def rate(self, group, count):
        return square_root(group["lr"] / count.item())


class RootedInNumPy(Elementwise):
    """Rate from NumPy."""

    def rate(self, group, count):
        return float(np.sqrt(group["lr"] / count.item()))


class Counting(Elementwise):
    """Rate from a count in an attribute."""

    def rate(self, group, count):
        self.calls += 1
        return group["lr"] / (self.calls // 9 + 1)


class CountingInGroups(Elementwise):
    """Rate from a count in the group."""

    def rate(self, group, count):
        group["step"] += 1
        return group["lr"] / (1 - group["betas"][0] ** group["step"])


class Warmed(Elementwise):
    """Rate with a branch on the count, and a maximum."""

    def rate(self, group, count):
        return group["lr"] / max(1, 30 - count.item()) if count.item() < 25 else abs(-group["lr"]) % 0.3


class Ended(Elementwise):
    """Rate with a branch on a tensor."""

    def rate(self, group, count):
        return group["lr"] if count > 9 else 2 * group["lr"]


class ByValue(Elementwise):
    """Rate from the count as an integer."""

    def rate(self, group, count):
        return group["lr"] / int(count)


class ByFloat(Elementwise):
    """Rate from the count as a float."""

    def rate(self, group, count):
        return group["lr"] * (1 - group["betas"][1] ** float(count))


class InPython(Elementwise):
    """Rate from a count that is no tensor, rounded down."""

    count = 0

    def rate(self, group, count):
        return group["lr"] / (1 + math.floor(count / 7))


class OfIntegers(InPython):
    """Rate that depends on the type of the count."""

    def rate(self, group, count):
        return group["lr"] / (2 if isinstance(count, int) else 1)


@pytest.mark.parametrize(
    ("kind", "captured"),
    [(Rooted, True), (RootedElsewhere, False), (RootedInNumPy, False), (Counting, False), (CountingInGroups, False),
     (Warmed, True), (Ended, False), (ByValue, False), (ByFloat, True), (InPython, True), (OfIntegers, False)],
)  # fmt: skip
def test_an_optimizer_of_others_steps_as_in_eager_and_is_captured_if_all_its_numbers_are_known(kind, captured):
    mine, theirs = (dict(zip("ab", weights(), strict=True)) for _ in range(2))
    ours, own = (kind([{"params": [p]} for p in held.values()]) for held in (mine, theirs))
    schedulers = [optim.lr_scheduler.CosineAnnealingLR(each, 50) for each in (ours, own)]
    update = Update(ours, mine, StepOptions())
    update.follow_memory()
    for number in range(40):
        for name, p in theirs.items():
            update.gradients[name].copy_(p.grad.normal_())
        with library.without_native():
            for step in (update.apply, own.step):
                step()
        for scheduler in schedulers if number % 3 == 0 else ():
            scheduler.step()
        assert all(map(torch.equal, mine.values(), theirs.values())), number
        assert [ours.state[p].get("step") for p in mine.values()] == [own.state[p]["step"] for p in theirs.values()]
        assert [group["step"] for group in ours.param_groups] == [group["step"] for group in own.param_groups]
    assert update.is_captured is captured


def test_numbers_go_on_from_a_loaded_state_and_follow_other_settings_than_floats():
    optimizer = optim.Adam(weights()[:1], lr=0.5, foreach=False)
    from_start = ComingUpdates(Worker(optimizer))
    graphs = []
    for number in range(40):
        optimizer.param_groups[0]["maximize"] = number > 30
        graph, numbers = from_start.next(settings_of(optimizer))
        graphs.append(graph)
    assert len(set(map(id, graphs))) == 3  # first update (makes the state), later updates, maximize
    for _ in range(39):
        optimizer.step()
    assert ComingUpdates(Worker(optimizer)).next(settings_of(optimizer))[1] == numbers


@pytest.mark.parametrize("rates", [(1, 1, 2, 0.5, 3, 1), (0.5, 0.5, 1, 1, 2)])
def test_a_rate_may_be_a_whole_number(rates):
    (mine, _), (theirs, _) = weights(), weights()
    ours, own = optim.SGD([mine], lr=rates[0]), optim.SGD([theirs], lr=rates[0])
    worker = FlatWorker(ours)
    worker.begin(0, seed=0)
    for p in (mine, theirs):
        p.grad.fill_(0.7)
    for rate in rates:
        ours.param_groups[0]["lr"] = own.param_groups[0]["lr"] = rate
        worker.take_settings(settings_of(ours))
        worker.step()
        own.step()
        assert torch.equal(mine, theirs), rate


def test_each_way_of_updating_is_captured_once():
    optimizer = optim.Adam(weights()[:1], lr=0.5, foreach=False)
    optimizer.step()
    coming, upwards = ComingUpdates(Worker(optimizer)), {}
    for number in range(60):
        optimizer.param_groups[0]["maximize"] = turned = number % 4 > 1
        graph, _ = coming.next(settings_of(optimizer))
        assert graph is upwards.setdefault(turned, graph), number
    assert len(set(map(id, upwards.values()))) == 2


def test_a_scheduler_that_changes_several_settings_keeps_the_graph(captured):
    optimizer = optim.Adam(weights()[:1], lr=0.5, foreach=False)
    optimizer.step()
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=60)
    coming = ComingUpdates(Worker(optimizer))
    for _ in range(50):
        coming.next(settings_of(optimizer))
        optimizer._opt_called = True
        scheduler.step()
    assert len(captured) == 1


def test_weight_decay_and_momentum_may_begin_and_end(captured):
    mine, theirs = weights(), weights()
    ours, own = (optim.SGD([{"params": [p]} for p in some], lr=0.1) for some in (mine, theirs))
    worker = FlatWorker(ours)
    worker.begin(0, seed=0)
    for number in range(24):
        for p, q in zip(mine, theirs, strict=True):
            p.grad.normal_()
            q.grad.copy_(p.grad)
        if number % 4 == 0:
            for group in (*ours.param_groups, *own.param_groups):
                group.update(weight_decay=0.1 * (number % 8 == 0), momentum=0.9 * (number > 11))
            worker.take_settings(settings_of(ours))
        with library.without_native():
            worker.step()
            own.step()
        assert all(map(torch.equal, mine, theirs)), number
    assert worker.is_captured
    assert len(captured) <= 6  # the update that makes the buffers of momentum is one of them


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_rates_in_tensors_are_followed_in_place(kind):
    mine, theirs = weights(), weights()
    rates = torch.tensor(0.1), torch.tensor(0.1)
    ours, own = (kind(some, lr=rate) for some, rate in zip((mine, theirs), rates, strict=True))
    worker = FlatWorker(ours)
    worker.begin(0, seed=0)
    for number in range(5):
        for p, q, rate in zip(mine, theirs, rates, strict=True):
            q.grad.copy_(p.grad.normal_())
            rate.mul_(0.5)
        worker.step()
        own.step()
        assert all(map(torch.equal, mine, theirs)), number
    assert worker.is_captured is False
