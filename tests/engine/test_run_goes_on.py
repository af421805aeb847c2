"""A step that is compiled again, after `reset()` or a change of its model, continues the same run."""

import copy

import pytest
import torch
from torch import Tensor, nn, optim

import popgeo
from popgeo import LossScaling, StepOptions
from tests.support.fake_cuda import FakeCuda


class Drawing(nn.Module):
    """A model with statistics, random numbers, and layers to freeze."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(self.dropout(self.norm(x))))).square().mean()


def batch(number: int, rows: int = 8) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(number))


OPTIONS = {
    "alone": StepOptions(random_seed=1),
    "replicas": StepOptions(random_seed=1, replication_factor=2),
    "scale": StepOptions(random_seed=1, loss_scaling=LossScaling(initial=8.0, growth_interval=2)),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_reset_restarts_neither_counts_nor_scales_nor_random_numbers_nor_buffers(name: str):
    steps = []
    for _ in range(2):
        model = Drawing()
        adam = optim.Adam(model.parameters())
        rate = lambda number: 0.1 / (1 + number)  # noqa: E731
        steps.append(popgeo.compile_step(model, adam, options=OPTIONS[name], learning_rate=rate))
    for number in range(6):
        if number == 3:
            steps[1].reset()
        losses = [step(batch(number)) for step in steps]
        assert torch.equal(*losses)
    one, other = ([*step.model.state_dict().values()] for step in steps)
    assert all(map(torch.equal, one, other))
    assert [step.update.num_updates for step in steps] == [6, 6]
    for mine, theirs in zip(*(step.replica_states() for step in steps), strict=True):
        assert all(torch.equal(mine.buffers[key], theirs.buffers[key]) for key in mine.buffers)
        assert torch.equal(mine.generator.get_state(), theirs.generator.get_state())
    if name == "scale":
        assert [step.loss_scale.value for step in steps] == [64, 64]


def test_buffers_of_replicas_outlive_a_time_in_which_they_are_only_read():
    model = Drawing()
    step = popgeo.compile_step(model, optim.SGD(model.parameters(), lr=0.1), options=OPTIONS["replicas"])
    step(batch(0))
    before = [state.buffers["norm.running_mean"].clone() for state in step.replica_states()]
    assert not torch.equal(*before)
    model.norm.eval()
    step(batch(1))
    model.norm.train()
    step.compile(batch(2))
    after = [state.buffers["norm.running_mean"] for state in step.replica_states()]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("compiled", [False, True])
def test_buffers_that_are_loaded_are_those_of_every_replica(compiled: bool):
    model = Drawing()
    step = popgeo.compile_step(model, optim.SGD(model.parameters(), lr=0.1), options=OPTIONS["replicas"])
    step(batch(0))
    state = copy.deepcopy(model.state_dict())
    state["norm.running_mean"].fill_(7.0)
    if not compiled:
        step.reset()
    step.load_state_dict(state)
    step.compile(batch(1))
    for replica in step.replica_states():
        assert replica.buffers["norm.running_mean"].tolist() == [7.0] * 4


@pytest.mark.parametrize("kind", [optim.Adam, optim.NAdam, lambda given: optim.SGD(given, lr=0.1, momentum=0.9)])
def test_a_layer_that_is_frozen_and_freed_trains_as_in_eager(kind):
    mine, theirs = Drawing().eval(), Drawing().eval()
    own, reference = kind(mine.parameters()), kind(theirs.parameters())
    step = popgeo.compile_step(mine, own)
    for number in range(9):
        if number in (3, 6):
            for model in (mine, theirs):
                model.first.requires_grad_(number == 6)
        step(batch(number))
        reference.zero_grad()
        theirs(batch(number)).backward()
        reference.step()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert [float(own.state[p].get("step", 0)) for p in mine.first.parameters()] == [
        float(reference.state[p].get("step", 0)) for p in theirs.first.parameters()
    ]


class Falling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def test_rates_of_a_function_go_on_after_a_reset_on_a_gpu(cuda: FakeCuda):
    model = Falling()
    sgd = optim.SGD(model.parameters(), lr=9.0)
    step = popgeo.compile_step(model, sgd, backend="cuda", learning_rate=float)
    for number in range(6):
        if number == 3:
            step.reset()
        step(torch.ones(1))
    assert model.weight.item() == -(0 + 1 + 2 + 3 + 4 + 5)


def test_hooks_that_a_replay_would_leave_out_are_refused_on_a_gpu(cuda: FakeCuda):
    model = Falling()
    sgd = optim.SGD(model.parameters(), lr=1.0)
    step = popgeo.compile_step(model, sgd, torch.ones(1), backend="cuda")
    step(torch.ones(1))
    handle = sgd.register_step_post_hook(lambda *given: None)
    with pytest.raises(ValueError, match=r"SGD has hooks around its step.* Remove them"):
        step(torch.ones(1))
    handle.remove()
    step(torch.ones(1))
    assert model.weight.item() == -2
