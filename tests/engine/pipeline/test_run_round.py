"""Rounds of micro-batches in any order of passes give the results of eager PyTorch, one by one."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.capture.op_graph import Value
from popgeo.engine.memory_plan import byte_offset, view_of
from popgeo.engine.pipeline.run_round import RoundRunner
from popgeo.engine.pipeline.staging import Pass, Recompute, Staging
from tests.support.staged import Staged, all_of_one, assert_same, eager, shuffled


class Tripled(nn.Module):
    """A model that changes in place a value that its gradient needs."""

    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.arange(1.0, 5.0, dtype=torch.float64)
        return h.mul_(3).sub_(1).sin()


class Mixed(nn.Module):
    """Dropout, batch norms, operations in place, tied and frozen weights, replaced buffers, and views as results."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.3)),
                nn.Sequential(nn.Linear(4, 4), Tripled(), nn.Tanh()),
                nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
            ]
        )
        self.layers[2][0].weight = self.layers[0][0].weight
        self.layers[1][0].bias.requires_grad_(False)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("fixed", torch.arange(4.0))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = x
        for layer in self.layers:
            h = layer(h)
        self.count.add_(h.detach().sum())
        self.mean = 0.9 * self.mean + 0.1 * h.mean(0).detach()
        loss = ((h - self.mean) * self.fixed).square().mean() + x.mean()
        return loss, h.t(), h[1:], x, self.layers[0][0].weight, self.fixed[1:], torch.arange(3)


torch.manual_seed(0)
MODEL = Mixed().double()
MICRO_BATCHES = 3


def inputs(replicas: int = 1) -> list[list[list[Tensor]]]:
    generator = torch.Generator().manual_seed(3)
    return [
        [[torch.randn(4, 3, generator=generator, dtype=torch.float64).t().repeat(1, 2)[:, :4]] for _ in range(replicas)]
        for _ in range(MICRO_BATCHES)
    ]


@pytest.fixture(scope="module")
def expected() -> dict[int, object]:
    return {replicas: eager(MODEL, inputs(replicas)) for replicas in (1, 2)}


def staged(layers, order, recompute=None) -> Staged:
    return Staged(MODEL, inputs()[0][0], layers, order, recompute)


@pytest.mark.parametrize("recompute", [None, Recompute(), Recompute(layers=("layers.1",))])
@pytest.mark.parametrize(("layers", "seed"), [([1, 1, 1], 1), ([1, 1, 1], 2), ([2, 1], 3), ([1, 2], 4)])
def test_any_order_gives_what_eager_torch_gives(expected, layers, seed, recompute):
    found = staged(layers, shuffled(len(layers), MICRO_BATCHES, seed), recompute)
    for _ in range(2):
        found.model.load_state_dict(MODEL.state_dict())
        assert_same(found.run(inputs()), expected[1])
    assert len(found.runner.parts) == 2 * len(layers)
    if recompute is not None and len(layers) == 3:
        everything = staged(layers, shuffled(len(layers), MICRO_BATCHES, seed))
        everything.run(inputs())
        assert found.runner.most_held < everything.runner.most_held
    assert found.runner.describe()[1] == f"{len(layers)} stages"


def test_replicas_take_turns_within_each_pass(expected):
    order = shuffled(3, MICRO_BATCHES, 5)
    found = staged([1, 1, 1], order)
    seen = found.run(inputs(2))
    assert found.entered == [0, 1] * len(order)
    # What they have in common here, the buffers, they change in another order than one after the other.
    assert seen.results.keys() == expected[2].results.keys()
    assert all(map(torch.equal, seen.random, expected[2].random))
    one = staged([1, 1, 1], all_of_one(3, MICRO_BATCHES))
    one.run(inputs(2))
    assert one.finished == [(micro, replica) for micro in range(MICRO_BATCHES) for replica in range(2)]


def test_one_micro_batch_at_a_time_draws_as_it_goes(expected):
    for layers in ([3], [1, 2]):
        found = staged(layers, all_of_one(len(layers), MICRO_BATCHES))
        assert_same(found.run(inputs()), expected[1])


class Plain(nn.Module):
    """Two layers whose sizes can be counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 3), nn.Linear(3, 2)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.layers[0](x).exp()
        y = self.layers[1](h)
        return y.square().sum(), y


def test_what_waits_is_counted_while_it_waits():
    """Of a batch of 7: the exponentials (21), the result (14), the loss (1), and slopes (21)."""
    x = [[[torch.ones(7, 5)]] for _ in range(3)]
    most = {}
    for name, order in (("one", all_of_one(2, 3)), ("all", sorted(all_of_one(2, 3), key=lambda one: one.backward))):
        found = Staged(Plain(), x[0][0], [1, 1], order)
        assert found.runner.most_held == 0
        before = found.runner.buffer_bytes
        found.run(x)
        assert found.runner.buffer_bytes == before + found.runner.most_held
        most[name] = found.runner.most_held / 4
        graph = found.runner.graph
        sent = {v: graph.values[v].numel for part in found.runner.parts for v in part.sends}
    # With the slopes that come to a stage, the exponentials that they are slopes of have gone.
    exponentials, result, loss = 21, 14, 1
    assert most == {"one": exponentials + result + loss, "all": 3 * (exponentials + result + loss)}
    assert sorted(sent.values()) == [loss, result, exponentials, exponentials]


def test_results_alone_run_forward_only():
    model = Mixed().double().eval()
    for p in model.parameters():
        p.requires_grad_(False)
    found = Staged(model, inputs()[0][0], [1, 1, 1], sorted(all_of_one(3, 3, trains=False)))
    assert [part.backward for part in found.runner.parts] == [False] * 3
    assert_same(found.run(inputs()), eager(model, inputs()))


def test_infinities_are_found_in_a_stage_where_that_is_asked_for():
    x, model = [torch.full((7, 5), 1e30)], Plain()
    for p in model.parameters():
        p.data.abs_()
    careless = Staged(model, x, [1, 1], all_of_one(2, 1))
    careless.run([[x]])
    careful = Staged(model, x, [1, 1], all_of_one(2, 1), checks=True)
    with pytest.raises(FloatingPointError, match=r"exp.* gave infinity"):
        careful.run([[x]])


class Noisy(nn.Module):
    """A model whose layers both draw; the number of the second layer's draws depends on data if asked for."""

    def __init__(self, by_data: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Dropout(0.5), nn.Dropout(0.3)])
        self.by_data = by_data

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers[0](x)
        return self.layers[1](torch.poisson(y.abs()) if self.by_data else y)


def test_draws_are_those_of_one_after_the_other_even_where_a_later_micro_batch_comes_first():
    order = [Pass(0, 2, False), Pass(0, 0, False), Pass(1, 2, False), Pass(0, 1, False), Pass(1, 0, False)]
    found = Staged(Noisy(False), inputs()[0][0], [1, 1], [*order, Pass(1, 1, False)])
    assert found.runner.draws_random_numbers
    assert_same(found.run(inputs()), eager(Noisy(False), inputs()))
    assert found.finished == [(2, 0), (0, 0), (1, 0)]


def test_draws_that_depend_on_data_run_one_micro_batch_at_a_time():
    alone = all_of_one(2, 3, trains=False)
    assert_same(Staged(Noisy(True), inputs()[0][0], [1, 1], alone).run(inputs()), eager(Noisy(True), inputs()))
    with pytest.raises(ValueError, match=r"How many random numbers aten\.poisson\.default draws depends on the data"):
        Staged(Noisy(True), inputs()[0][0], [1, 1], sorted(alone))


def value(offset: int, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Value:
    return Value(shape=shape, stride=stride, offset=offset, dtype=dtype, storage=0, producer=None)


def test_a_view_of_a_part_of_some_memory_is_found_there():
    base = torch.arange(12.0)
    plain = value(0, (8,), (1,), torch.float32)
    view = value(3, (2, 2), (1, 2), torch.float32)
    assert view_of(base[:8], byte_offset(plain), view).tolist() == [[3, 5], [4, 6]]
    assert view_of(base[4:], byte_offset(plain), view).tolist() == [[7, 9], [8, 10]]
    # The owner may itself begin behind the start of its memory, which its views count from.
    assert view_of(base[2:], byte_offset(value(2, (8,), (1,), torch.float32)), view).tolist() == [[3, 5], [4, 6]]
    pairs = torch.view_as_complex(base.view(6, 2))
    whole = value(1, (5,), (1,), torch.complex64)
    assert view_of(pairs[2:], byte_offset(whole), value(3, (3,), (2,), torch.float32)).tolist() == [5, 7, 9]
    assert view_of(pairs[1:], byte_offset(whole), value(3, (3,), (2,), torch.float32)).tolist() == [3, 5, 7]


def test_a_result_that_is_none_keeps_its_place():
    graph = capture_step(torch.exp, bind(torch.exp, torch.ones(2))).graph
    staging = Staging(stage_of=(0,), order=(Pass(0, 0, False),))
    runner, made = RoundRunner(replace(graph, outputs=(None, *graph.outputs)), staging, {}, 2, {}), []
    runner.run(
        [[[torch.tensor([0.0, 1000.0])]]],
        [torch.Generator()],
        on_results=lambda micro, replica, results: made.extend(results),
    )
    assert made[0] is None
    assert made[1].tolist() == [1, torch.inf]  # which nobody asked to be told of
