"""Graphs of coming updates, and their numbers as plain PyTorch computes them."""

import copy

import pytest
import torch
from torch import nn, optim

from popgeo.capture.op_graph import Role
from popgeo.engine.optimizer.coming_updates import ComingUpdates
from popgeo.engine.optimizer.flat_worker import FlatWorker
from popgeo.engine.optimizer.gradient_scaling import set_gradient
from popgeo.engine.optimizer.worker import Worker
from popgeo.engine.step_options import StepOptions


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
    coming = ComingUpdates(Worker(optimizer))
    updates = [coming.next(settings(optimizer))[0] for _ in range(9)]
    assert None not in updates
    assert len(set(map(id, updates))) == num_graphs


def test_numbers_are_those_of_each_update():
    optimizer = optim.SGD(weights((2,)), lr=0.5)
    coming = ComingUpdates(Worker(optimizer))
    for rate in (0.5, 0.25):
        _, numbers = coming.next([{"lr": rate}])
        assert numbers == [-rate]
    # By hand: after one update Adam's momentum is 1 - 0.9 of the gradient, so its step size is divided by that.
    adam = optim.Adam(weights((2,)), lr=0.5, betas=(0.9, 0.99))
    _, numbers = ComingUpdates(Worker(adam)).next(settings(adam))
    assert numbers[-1] == pytest.approx(-0.5 / (1 - 0.9))


def test_the_optimizer_and_its_parameters_stay_as_they_are():
    parameters = weights((3, 2), ())
    before = copy.deepcopy(parameters)
    optimizer = optim.Adam([{"params": [p]} for p in parameters], lr=0.1)
    coming = ComingUpdates(Worker(optimizer))
    for _ in range(3):
        coming.next(settings(optimizer))
    assert not optimizer.state
    assert all(map(torch.equal, parameters, before))


def test_it_goes_on_from_the_state_that_there_is():
    optimizer = optim.Adam(weights((3, 2)), lr=0.1)
    from_start = ComingUpdates(Worker(optimizer))
    foretold = [from_start.next(settings(optimizer))[1] for _ in range(4)]
    for _ in range(3):
        optimizer.step()
    update, numbers = ComingUpdates(Worker(optimizer)).next(settings(optimizer))
    assert numbers == foretold[3]
    assert [str(given) for given in update.graph.inputs_of(Role.STATE)] == [
        "state:0.step", "state:0.exp_avg", "state:0.exp_avg_sq"
    ]  # fmt: skip
    assert set(update.state.values()) == {0}


class Whole(optim.SGD):
    """Optimizer with a rate that depends on weights."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.5 if p.sum() > 0 else 0.25)


class Averaged(optim.SGD):
    """Optimizer with a rate that NumPy computes from a gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-float(p.grad.numpy().mean()))


@pytest.mark.parametrize("kind", [Whole, Averaged])
def test_what_depends_on_data_is_not_foretold(kind):
    optimizer = kind(weights((3, 2)), lr=0.1)
    assert ComingUpdates(Worker(optimizer)).next(settings(optimizer))[0] is None


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
    coming = ComingUpdates(Worker(optimizer))
    assert [coming.next(settings(optimizer))[1] for _ in range(2)] == [[-0.5], [-0.25]]


def test_gradients_are_of_the_type_that_they_are_joined_in():
    for joined in (torch.float16, torch.float32):
        (half,) = [nn.Parameter(torch.ones(2).half())]
        set_gradient(half, torch.ones(2, dtype=joined))
        optimizer = optim.SGD([half], lr=0.5)
        graph = ComingUpdates(Worker(optimizer)).next(settings(optimizer))[0].graph
        (gradient,) = graph.inputs_of(Role.GRADIENT).values()
        assert graph.values[gradient].dtype is joined


@pytest.mark.parametrize(
    ("rate", "state", "counts"),
    [(0.5, {}, False), (0.5, {"momentum_buffer": torch.ones(3, 2)}, False), (0.5, {"step": torch.tensor(3.0)}, True),
     (0.5, {"count": 3}, True), (torch.tensor(0.5), {}, True)],
)  # fmt: skip
def test_numbers_are_kept_while_nothing_counts_and_no_setting_changes(rate, state, counts):
    optimizer = optim.SGD(weights((3, 2)), lr=rate)
    for p in optimizer.param_groups[0]["params"]:
        optimizer.state[p].update(state)
    coming, held = ComingUpdates(Worker(optimizer)), settings(optimizer)
    first, second = coming.next(held), coming.next(held)
    assert first == second
    assert (first[0] is None) is isinstance(rate, torch.Tensor)  # an operation reads the tensor, so it stays eager
    assert (first is not second) is counts or first[0] is None
    assert coming.next(settings(optimizer)) is not second


def test_the_types_of_mixed_precision_are_part_of_the_graph():
    """The update widens weights, steps in float32, rounds the results and counts the random numbers of rounding."""
    half = nn.Parameter(torch.randn(6).half())
    set_gradient(half, torch.randn(6))
    options = StepOptions(optimizer_state_dtype=torch.float16, stochastic_rounding=True)
    worker = FlatWorker(optim.Adam([half], lr=0.1), options)
    worker.begin(0, seed=0)
    worker.step()
    update, numbers = ComingUpdates(worker).next(settings(worker.optimizer))
    assert update is not None
    assert numbers == foretold(optim.Adam, 2)
    assert "popgeo.round_stochastic.default" in [op.target for op in update.graph.ops]


def foretold(kind, count: int, **options) -> list[float]:
    """Return the numbers of a later update of float32 weights."""
    optimizer = kind(weights((2,)), lr=0.1, **options)
    coming = ComingUpdates(Worker(optimizer))
    return [coming.next(settings(optimizer))[1] for _ in range(count)][-1]


def test_random_numbers_of_the_caller_stay_as_they_are():
    class Noisy(optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.add_(torch.randn_like(p), alpha=-self.param_groups[0]["lr"])

    optimizer = Noisy(weights((3, 2)), lr=0.1)
    before = torch.get_rng_state()
    update, numbers = ComingUpdates(Worker(optimizer)).next(settings(optimizer))
    assert torch.equal(torch.get_rng_state(), before)
    assert (update is not None, numbers) == (True, [-0.1])
