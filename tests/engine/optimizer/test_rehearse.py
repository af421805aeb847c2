"""Rehearsals: graphs of coming updates, and their numbers as plain PyTorch computes them."""

import copy

import pytest
import torch
from torch import nn, optim

from popgeo.capture.op_graph import Role
from popgeo.engine.optimizer.captured_worker import Rehearsal
from popgeo.engine.optimizer.gradient_scaling import set_gradient
from popgeo.engine.optimizer.worker import Worker


def weights(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


def settings(optimizer: optim.Optimizer) -> list[dict]:
    return [{key: choice for key, choice in group.items() if key != "params"} for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("kind", "options", "num_graphs"),
    [(optim.SGD, {}, 1), (optim.SGD, {"momentum": 0.9}, 2), (optim.Adam, {}, 2), (optim.RAdam, {}, 3)],
)
def test_each_way_of_updating_has_one_graph(kind, options, num_graphs):
    """The first update makes the state, if the optimizer has one. RAdam adapts its rate after a few updates."""
    optimizer = kind(weights((3, 2)), lr=0.1, **options)
    rehearsal = Rehearsal(Worker(optimizer))
    updates = [rehearsal.next(settings(optimizer))[0] for _ in range(9)]
    assert None not in updates
    assert len(set(map(id, updates))) == num_graphs


def test_numbers_are_those_of_each_update():
    optimizer = optim.SGD(weights((2,)), lr=0.5)
    rehearsal = Rehearsal(Worker(optimizer))
    for rate in (0.5, 0.25):
        _, numbers = rehearsal.next([{"lr": rate}])
        assert numbers == [-rate]
    # By hand: after one update Adam's momentum is 1 - 0.9 of the gradient, so its step size is divided by that.
    adam = optim.Adam(weights((2,)), lr=0.5, betas=(0.9, 0.99))
    _, numbers = Rehearsal(Worker(adam)).next(settings(adam))
    assert numbers[-1] == pytest.approx(-0.5 / (1 - 0.9))


def test_the_optimizer_and_its_parameters_stay_as_they_are():
    parameters = weights((3, 2), ())
    before = copy.deepcopy(parameters)
    optimizer = optim.Adam([{"params": [p]} for p in parameters], lr=0.1)
    rehearsal = Rehearsal(Worker(optimizer))
    for _ in range(3):
        rehearsal.next(settings(optimizer))
    assert not optimizer.state
    assert all(map(torch.equal, parameters, before))


def test_it_goes_on_from_the_state_that_there_is():
    optimizer = optim.Adam(weights((3, 2)), lr=0.1)
    from_start = Rehearsal(Worker(optimizer))
    foretold = [from_start.next(settings(optimizer))[1] for _ in range(4)]
    for _ in range(3):
        optimizer.step()
    update, numbers = Rehearsal(Worker(optimizer)).next(settings(optimizer))
    assert numbers == foretold[3]
    assert [str(given) for given in update.graph.inputs_of(Role.STATE)] == [
        "state:0.step", "state:0.exp_avg", "state:0.exp_avg_sq"
    ]  # fmt: skip
    assert set(update.state.values()) == {0}


class Whole(optim.SGD):
    """Optimizer that looks at whole parameters."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.mul_(0.5 if p.numel() == 1 else 0.25)


def test_what_differs_for_a_whole_parameter_is_not_foretold():
    optimizer = Whole(weights((3, 2)), lr=0.1)
    assert Rehearsal(Worker(optimizer)).next(settings(optimizer))[0] is None


class CountsInWholeNumbers(optim.Optimizer):
    """Optimizer whose rate is divided by the number of the update, which its state holds as an `int`."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                count = self.state[p]["count"] = self.state[p].get("count", 0) + 1
                p.add_(p.grad, alpha=-group["lr"] / count)


def test_a_state_may_hold_what_is_no_tensor():
    optimizer = CountsInWholeNumbers(weights((3, 2)), lr=0.5)
    rehearsal = Rehearsal(Worker(optimizer))
    assert [rehearsal.next(settings(optimizer))[1] for _ in range(2)] == [[-0.5], [-0.25]]


def test_gradients_are_of_the_type_that_they_are_joined_in_or_the_parameter_s():
    for joined in (None, torch.float16, torch.float32):
        (half,) = [nn.Parameter(torch.ones(2).half())]
        if joined is not None:
            set_gradient(half, torch.ones(2, dtype=joined))
        optimizer = optim.SGD([half], lr=0.5)
        graph = Rehearsal(Worker(optimizer)).next(settings(optimizer))[0].graph
        (gradient,) = graph.inputs_of(Role.GRADIENT).values()
        assert graph.values[gradient].dtype is (joined or torch.float16)


def test_what_counts_and_a_rate_that_is_a_tensor_may_change_the_numbers_of_the_next_update():
    def counts(optimizer: optim.Optimizer, **state: object) -> bool:
        (parameter,) = optimizer.param_groups[0]["params"]
        if state:
            optimizer.state[parameter].update(state)
        return Rehearsal(Worker(optimizer)).counts_steps

    def sgd(lr: float | torch.Tensor = 0.5) -> optim.Optimizer:
        return optim.SGD(weights((3, 2)), lr=lr)

    assert not counts(sgd())
    assert not counts(sgd(), momentum_buffer=torch.ones(3, 2))
    assert not counts(sgd(), momentum_buffer=None)
    assert not counts(sgd(), rounding=torch.tensor(3))  # an integer counter gives no number to an operation
    assert counts(sgd(), step=torch.tensor(3.0))
    assert counts(sgd(), count=3)
    assert counts(sgd(torch.tensor(0.5)))
