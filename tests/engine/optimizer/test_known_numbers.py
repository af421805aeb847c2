"""Rehearsals and formulas give the exact numbers of the optimizer's own code."""

import math

import numpy as np
import pytest
import torch
from torch import nn, optim

from popgeo.engine.optimizer.captured_worker import CapturedWorker, Rehearsal
from popgeo.engine.optimizer.worker import Worker, settings_of
from popgeo.native import library


def weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(()))]
    for p in made:
        p.grad = torch.zeros_like(p)
    return made


@pytest.fixture
def rehearsed(monkeypatch) -> list[object]:
    """Return a list that gets an entry per rehearsal."""
    found = []
    rehearse = Rehearsal._rehearse

    def noted(*args, **kwargs):
        found.append(rehearse(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(Rehearsal, "_rehearse", noted)
    return found


KINDS = [
    (optim.Adam, {"amsgrad": True, "maximize": True, "weight_decay": 0.1}, True), (optim.AdamW, {}, True),
    (optim.Adam, {}, True), (optim.NAdam, {}, False), (optim.RAdam, {}, False),
    (optim.RMSprop, {"momentum": 0.9, "centered": True}, True), (optim.RMSprop, {}, True),
    (optim.Adagrad, {"lr_decay": 0.01}, True), (optim.Adadelta, {}, True), (optim.Adamax, {}, True),
    (optim.SGD, {"momentum": 0.9, "nesterov": True}, True), (optim.SGD, {"momentum": 0.9, "dampening": 0.5}, True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "is_known"), KINDS)
def test_weights_are_those_of_plain_torch_to_the_last_bit_with_a_scheduler(rehearsed, kind, options, is_known):
    mine, theirs = weights(), weights()
    ours, own = (kind([{"params": [p]} for p in some], lr=0.01, foreach=False, **options) for some in (mine, theirs))
    schedulers = [optim.lr_scheduler.CosineAnnealingLR(each, 70) for each in (ours, own)]
    worker = CapturedWorker(Worker(ours))
    worker.begin(0, seed=0)
    for number in range(300):
        for p, q in zip(mine, theirs, strict=True):
            p.grad.normal_()
            q.grad.copy_(p.grad)
        if number == 150:
            for group in (ours.param_groups[1], own.param_groups[1]):
                group["weight_decay"] = 0.25
        ours._opt_called = True
        worker.take_settings(settings_of(ours))
        with library.without_native():  # compiled chains round the last bit differently
            for each in (worker, own, *schedulers):
                each.step()
        assert all(map(torch.equal, mine, theirs)), number
    assert worker.is_captured
    assert (len(rehearsed) < 40) is is_known


def test_a_rate_out_of_numpy_is_followed():
    mine, theirs = weights(), weights()
    ours, own = (optim.Adam(some, lr=np.float64(0.01), foreach=False) for some in (mine, theirs))
    worker = CapturedWorker(Worker(ours))
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

    def __init__(self, params, lr=0.5) -> None:
        super().__init__(params, {"lr": lr})
        self.calls = 0

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if not self.state[p]:
                    self.state[p]["step"] = torch.tensor(0.0)
                count = self.state[p]["step"]
                count += 1
                p.add_(p.grad, alpha=-self.rate(group["lr"], count))

    def rate(self, lr: float, count: torch.Tensor) -> float:
        raise NotImplementedError


class Rooted(Elementwise):
    """Rate from Python's `math`, which no dispatch mode sees."""

    def rate(self, lr, count):
        return math.sqrt(lr) * 2.0


class Counting(Elementwise):
    """Rate from a count in an attribute, outside of the state."""

    def rate(self, lr, count):
        self.calls += 1
        return lr / (self.calls // 20 + 1)


class Warmed(Elementwise):
    """Rate with a branch on the count, and a maximum."""

    def rate(self, lr, count):
        return lr / max(1, 30 - count.item()) if count.item() < 25 else abs(-lr) % 0.3


class ByValue(Elementwise):
    """Rate from the count as an integer."""

    def rate(self, lr, count):
        return lr / int(count)


@pytest.mark.parametrize("kind", [Rooted, Counting, Warmed, ByValue])
def test_an_optimizer_without_a_formula_is_rehearsed(kind):
    optimizer, own = kind(weights()[:1]), kind(weights()[:1])
    rehearsal = Rehearsal(Worker(optimizer))
    for number in range(80):
        optimizer.param_groups[0]["lr"] = own.param_groups[0]["lr"] = 0.5 if number < 40 else 20 / number
        expected = -own.rate(own.param_groups[0]["lr"], torch.tensor(number + 1.0))
        assert rehearsal.next(settings_of(optimizer))[1] == [expected], number


def test_a_formula_goes_on_from_a_loaded_state_and_follows_other_settings_than_floats():
    optimizer = optim.Adam(weights()[:1], lr=0.5, foreach=False)
    from_start = Rehearsal(Worker(optimizer))
    graphs = []
    for number in range(40):
        optimizer.param_groups[0]["maximize"] = number > 30
        graph, numbers = from_start.next(settings_of(optimizer))
        graphs.append(graph)
    assert len(set(map(id, graphs))) == 3  # first update (makes the state), later updates, maximize
    for _ in range(39):
        optimizer.step()
    assert Rehearsal(Worker(optimizer)).next(settings_of(optimizer)) != (None, numbers)
    assert Rehearsal(Worker(optimizer)).next(settings_of(optimizer))[1] == numbers


@pytest.mark.parametrize("rates", [(1, 1, 2, 0.5, 3, 1), (0.5, 0.5, 1, 1, 2)])
def test_a_rate_may_be_a_whole_number(rates):
    (mine, _), (theirs, _) = weights(), weights()
    ours, own = optim.SGD([mine], lr=rates[0]), optim.SGD([theirs], lr=rates[0])
    worker = CapturedWorker(Worker(ours))
    worker.begin(0, seed=0)
    for p in (mine, theirs):
        p.grad.fill_(0.7)
    for rate in rates:
        ours.param_groups[0]["lr"] = own.param_groups[0]["lr"] = rate
        worker.take_settings(settings_of(ours))
        worker.step()
        own.step()
        assert torch.equal(mine, theirs), rate


def test_a_formula_is_not_followed_in_a_different_way_of_updating():
    optimizer = optim.Adam(weights()[:1], lr=0.5, foreach=False)
    optimizer.step()
    rehearsal, upwards = Rehearsal(Worker(optimizer)), {}
    for number in range(60):
        optimizer.param_groups[0]["maximize"] = turned = number % 4 > 1
        graph, _ = rehearsal.next(settings_of(optimizer))
        assert graph is upwards.setdefault(turned, graph), number
    assert len(set(map(id, upwards.values()))) == 2


def test_a_scheduler_that_changes_several_settings_keeps_the_formula(rehearsed):
    optimizer = optim.Adam(weights()[:1], lr=0.5, foreach=False)
    optimizer.step()
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=60)
    rehearsal = Rehearsal(Worker(optimizer))
    for _ in range(50):
        rehearsal.next(settings_of(optimizer))
        optimizer._opt_called = True
        scheduler.step()
    assert len(rehearsed) == 1
