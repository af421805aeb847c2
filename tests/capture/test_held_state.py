"""A capture leaves a module unchanged; replaced buffers are written, and losses of other state are refused."""

from types import SimpleNamespace
from typing import Optional

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo.capture.capture import bind, capture
from popgeo.ipu import DynamicShapeError, Options, compile, inference_model, training_model


class Statistics(nn.Module):
    """A running mean, as in PyG's instance norm; the backward pass needs its old value."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([2.0]))
        self.register_buffer("mean", torch.tensor([1.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        old = self.mean
        self.mean = 0.5 * self.mean + 0.5 * x.mean()
        return (self.slope * old * x).sum(), old


def test_a_replaced_buffer_has_its_new_value_and_what_read_the_old_one_keeps_that():
    model = Statistics()
    step = training_model(model, optimizer=torch.optim.SGD([model.slope], lr=0.1))
    loss, old = step(torch.tensor([3.0, 5.0]))
    assert (loss.item(), old.item(), model.mean.item()) == (16, 1, 2.5)
    assert model.slope.item() == pytest.approx(2 - 0.1 * 8)
    loss, old = step(torch.tensor([1.0, 0.0]))
    assert (loss.item(), old.item(), model.mean.item()) == (pytest.approx(1.2 * 2.5), 2.5, 1.5)


def test_each_replica_replaces_a_buffer_of_its_own():
    model = Statistics()
    options = Options(replication_factor=2, device_iterations=2)
    _, old = inference_model(model, options)(torch.tensor([3.0, 11.0, 1.0, 1.0]))
    assert old.tolist() == [1, 1, 2, 6]
    assert model.mean.item() == 1.5


class Swaps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.tensor([1.0]))
        self.register_buffer("second", torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        self.first, self.second = self.second, self.first
        return x + self.first


def test_two_buffers_can_change_places():
    model = Swaps()
    step = inference_model(model)
    assert [step(torch.zeros(1)).item() for _ in range(3)] == [2, 1, 2]
    assert (model.first.item(), model.second.item()) == (2, 1)


class Keeps(nn.Module):
    """A module that puts a tensor in one of several places."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place, self.plain, self.cache = place, torch.zeros(2), None
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("late", None)
        self.register_buffer("narrow", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight + self.plain
        setattr(self, self.place, nn.Parameter(y.detach()) if self.place == "weight" else y)
        return y


@pytest.mark.parametrize("place", ["plain", "weight", "late", "narrow"])
def test_state_that_would_be_lost_is_refused_and_the_model_is_as_before(place):
    model = Keeps(place)
    before = dict(vars(model)), dict(model._parameters), dict(model._buffers)
    with pytest.raises(ValueError, match=f"replaces {place} while it runs"):
        inference_model(model)(torch.ones(2))
    for mine, theirs in zip((vars(model), model._parameters, model._buffers), before, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(mine[name] is theirs[name] for name in theirs)


def test_what_a_model_only_notes_down_is_not_left_behind():
    model = Keeps("cache")
    assert inference_model(model)(torch.ones(2)).tolist() == [1, 1]
    assert model.cache is None


def test_a_capture_writes_replaced_buffers_after_everything_else():
    model = Statistics()
    graph = capture(model, bind(model.forward, torch.ones(2)), trained=["slope"]).graph
    assert [op.target for op in graph.ops][-1] == "aten.copy_.default"


def test_a_seed_set_by_the_model_is_set_at_each_call_as_in_eager_code():
    def seeds(x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return x + torch.rand(2)

    before = torch.get_rng_state()
    compiled = compile(seeds, [torch.ones(2)])
    assert torch.equal(torch.get_rng_state(), before)
    expected, after = seeds(torch.ones(2)), torch.get_rng_state()
    for _ in range(2):
        torch.set_rng_state(before)
        assert torch.equal(compiled(torch.ones(2)), expected)
        assert torch.equal(torch.get_rng_state(), after)


class Scripted(nn.Module):
    """A scripted module with loops, branches, a number, a tensor and, if asked, a decision by data."""

    calls: int
    looks: bool

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.calls, self.looks, self.last = 0, looks, torch.zeros(2)

    def forward(self, x: Tensor, shift: Optional[Tensor] = None) -> Tensor:  # noqa: UP045 - TorchScript reads this
        self.calls += 1
        for _ in range(2):
            x = torch.tanh(self.linear(x))
        if shift is not None:
            x = x + shift
        self.last = x
        if self.looks and bool(x.sum() > 0):
            return x
        return self.norm(x)


class WithScript(nn.Module):
    def __init__(self, looks: bool = False) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(4, 4), []
        self.inner = torch.jit.script(Scripted(looks))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return self.inner(self.linear(x), x).square().mean()


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", ["in another", "alone", "traced"])
@pytest.mark.parametrize("runs_before", [0, 3])  # TorchScript recompiles its program after a few runs
def test_scripted_and_traced_parts_train_as_in_eager(kind: str, runs_before: int):
    def make() -> nn.Module:
        torch.manual_seed(0)
        if kind == "in another":
            return WithScript()
        inner = Scripted(looks=False)
        return nn.Sequential(torch.jit.script(inner) if kind == "alone" else torch.jit.trace(inner, torch.randn(3, 4)))

    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sin().sum()

    x, models = torch.randn(6, 4), (make(), make())
    eager, compiled = (torch.optim.SGD(model.parameters(), lr=0.1) for model in models)
    for model, optimizer in zip(models, (eager, compiled), strict=True):
        for _ in range(runs_before):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    step = training_model(SquaredMean(models[1]), optimizer=compiled)
    for _ in range(3):
        eager.zero_grad()
        loss = loss_of(models[0], x)
        loss.backward()
        eager.step()
        torch.testing.assert_close(step(x), loss.detach())
    for mine, theirs in zip(models[1].state_dict().values(), models[0].state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs)


class SquaredMean(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).sin().sum()


@pytest.mark.parametrize("looks", [False, True])
def test_a_capture_leaves_scripted_parts_and_lists_as_they_were_also_where_it_is_refused(looks: bool):
    model = WithScript(looks)
    model.inner.calls = 7
    before = [model.inner.last, *model.parameters(), *model.buffers()]
    values = [tensor.clone() for tensor in before]
    step = inference_model(model)
    if looks:
        with pytest.raises(DynamicShapeError, match=r"test_held_state.py:\d+ in forward: return self.inner.* Remedy"):
            step.compile(torch.randn(6, 4))
        assert not step.is_compiled
    else:
        step.compile(torch.randn(6, 4))
    after = [model.inner.last, *model.parameters(), *model.buffers()]
    assert all(one is other for one, other in zip(after, before, strict=True))
    assert all(map(torch.equal, after, values))
    assert (model.inner.calls, model.seen) == (7, [])


class Remembers(nn.Module):
    """A module that passes something to its next call, in one of several forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.calls, self.hidden, self.table = form, 0, None, {"hidden": torch.zeros(2)}
        self.shift, self.is_ready = nn.Parameter(torch.zeros(2)), False
        self.counts, self.trail, self.meter = {"of": {"calls": 0}}, [], SimpleNamespace(calls=0)

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "number":
            self.calls += 1
            return x * min(1.0, self.calls / 3)
        if self.form == "number in a dictionary":
            self.counts["of"]["calls"] += 1
            return x * self.counts["of"]["calls"]
        if self.form == "longer list":
            self.trail.append("call")
            return x * len(self.trail)
        if self.form == "number of an object":
            self.meter.calls += 1
            return x * self.meter.calls
        if self.form == "table":
            self.table["hidden"] = torch.tanh(x + self.table["hidden"])
            return self.table["hidden"]
        if self.form == "first call":
            if not self.is_ready:
                self.shift.data.copy_(-x)
                self.is_ready = True
            return x + self.shift
        self.hidden = torch.tanh(x if self.hidden is None else x + self.hidden)
        return self.hidden


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ("number", "reads calls and changes it in each call"),
        ("number in a dictionary", "reads counts and changes it in each call"),
        ("longer list", "reads trail and changes it in each call"),
        ("number of an object", "reads meter and changes it in each call"),
        ("attribute", "reads hidden and changes it in each call"),
        ("table", "replaces a tensor in table"),
        ("first call", "first call of the model changes shift and sets is_ready; later calls do not"),
    ],
)
def test_what_a_call_has_for_the_next_one_outside_of_buffers_is_refused(form: str, why: str):
    model = Remembers(form)
    with pytest.raises(ValueError, match=why):
        inference_model(model)(torch.ones(2))
    assert (model.calls, model.hidden, model.is_ready, model.trail) == (0, None, False, [])
    assert model.table["hidden"].tolist() == model.shift.tolist() == [0, 0]


def test_a_model_that_was_called_once_is_compiled_as_it_is_from_then_on():
    model = Remembers("first call")
    model(torch.ones(2))
    assert inference_model(model)(torch.full((2,), 3.0)).tolist() == [2, 2]


class Caches(nn.Module):
    """A module that makes a table when the number of rows changes, and keeps results in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.table, self.losses = 0, None, [torch.zeros(())]

    def forward(self, x: Tensor) -> Tensor:
        if self.rows != len(x):
            self.rows, self.table = len(x), torch.arange(len(x))
        self.losses.clear()
        self.losses.append((x * self.table).sum())
        self.last = x + self.losses[0]
        return self.last


def test_a_cache_is_filled_in_each_call_and_results_may_be_put_aside():
    model = Caches()
    step = inference_model(model)
    assert [step(x).tolist() for x in (torch.ones(2), torch.tensor([3.0, 4.0]))] == [[2, 2], [7, 8]]
    assert (model.rows, model.table, model.losses) == (0, None, [torch.zeros(())])
    assert not hasattr(model, "last")


class PicksASign(nn.Module):
    def forward(self, x: Tensor, by: float) -> Tensor:
        return x / by


def test_minus_zero_is_another_argument_and_nan_the_same():
    step = inference_model(PicksASign())
    assert step(torch.ones(1), 0.0).item() == float("inf")
    with pytest.raises(ValueError, match="by"):
        step(torch.ones(1), -0.0)
    step.reset()
    assert all(step(torch.ones(1), float("nan")).isnan() for _ in range(2))


@pytest.mark.parametrize(
    "door",
    [
        lambda m, x: popgeo.compile_forward(m)(x),
        lambda m, x: popgeo.compile_step(m, torch.optim.SGD(m.parameters(), lr=0.1))(x),
        lambda m, x: popgeo.inference_model(m)(x),
        lambda m, x: popgeo.ipu.check_static(m, x),
        lambda m, x: popgeo.Predictor(m),
    ],
)
@pytest.mark.parametrize("lazy", [lambda: nn.LazyLinear(2), nn.LazyBatchNorm1d])
def test_lazy_weights_are_refused_with_the_call_that_gives_them_a_shape(door, lazy):
    model = nn.Sequential(lazy())
    with pytest.raises(ValueError, match=r"0\.weight, 0\.bias.* lazy: their shapes come from a first call"):
        door(model, torch.ones(3, 4))
    model(torch.ones(3, 4))
    popgeo.compile_forward(model)(torch.ones(3, 4))
