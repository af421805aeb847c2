"""Optimizers outside of torch, and hooks: the user's own optimizer makes the updates."""

import copy
import importlib

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import popgeo
from popgeo import LossScaling, StepOptions
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_recipe import Recipe
from tests.support.updates import gradients, step, weights


class Progress(optim.Optimizer):
    """Optimizer whose rate is a number in its group that grows with the group's gradients, as in Prodigy."""

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "d": 1e-2, "k": 0})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            held = [p for p in group["params"] if p.grad is not None]
            group["k"] += 1
            group["d"] += 0.01 * float(sum(p.grad.square().sum() for p in held)) ** 0.5 / group["k"]
            for p in held:
                p.sub_(p.grad, alpha=group["lr"] * group["d"])


class ByNumber(Progress):
    """Optimizer that keeps the rate of each group in an attribute, as AdaBound does."""

    def __init__(self, params) -> None:
        super().__init__(params)
        self.rates = [0.1 / (1 + number) for number in range(len(self.param_groups))]

    def step(self, closure=None) -> None:
        for rate, group in zip(self.rates, self.param_groups, strict=True):
            group["lr"] = rate
        super().step()


class Turns(Progress):
    """Optimizer that counts in an attribute and updates every second parameter per step."""

    turn = 0

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.turn += 1
        for place, p in enumerate(p for group in self.param_groups for p in group["params"]):
            if (place + self.turn) % 2:
                p.sub_(p.grad, alpha=0.1)


class LooksBack(Progress):
    """Optimizer that keeps the gradient tensor until the next step."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(0.1 * (p.grad - 0.5 * self.state[p].get("before", 0.0)))
            self.state[p]["before"] = p.grad


KINDS = [Progress, ByNumber, Turns, LooksBack]


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.last(torch.tanh(self.first(x))) - x.sum(1, keepdim=True)).square().mean()


def batch(number: int, rows: int = 6) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(number))


def groups(model: Squares) -> list[dict]:
    return [{"params": list(model.first.parameters())}, {"params": list(model.last.parameters())}]


def eager(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, parts: int = 1, limit: float | None = None) -> None:
    optimizer.zero_grad()
    for part in x.chunk(parts):
        (model(part) / parts).backward()
    if limit is not None:
        nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()


def pair(kind) -> tuple[nn.Module, optim.Optimizer, nn.Module, optim.Optimizer]:
    mine, theirs = Squares(), Squares()
    return mine, kind(groups(mine)), theirs, kind(groups(theirs))


def assert_same(mine: nn.Module, theirs: nn.Module) -> None:
    torch.testing.assert_close(dict(mine.named_parameters()), dict(theirs.named_parameters()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_of_others_does_what_it_does_in_eager(kind: type[optim.Optimizer]):
    mine, own, theirs, reference = pair(kind)
    training = popgeo.compile_step(mine, own)
    for number in range(6):
        training(batch(number))
        eager(theirs, reference, batch(number))
    assert_same(mine, theirs)
    assert [group["d"] for group in own.param_groups] == pytest.approx([g["d"] for g in reference.param_groups])
    assert not training.update.is_captured
    assert all(p.grad is None for p in mine.parameters())


class Lamb(Progress):
    """Optimizer that scales each update by norms of whole tensors, with the number of updates in the group."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                state = self.state[p]
                mean = state.setdefault("mean", torch.zeros_like(p)).mul_(0.9).add_(p.grad, alpha=0.1)
                update = mean / (1 - 0.9 ** group["k"]) / (p.grad.abs() + 1e-3)
                p.sub_(update * (p.norm() / update.norm()), alpha=group["lr"])


class ScheduleFree(Progress):
    """Optimizer with a second point per weight and a sum of squared rates in the group."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            weight = group["k"] ** 2 * group["lr"] ** 2
            group["d"] += weight
            for p in group["params"]:
                point = self.state[p].setdefault("point", p.clone())
                p.lerp_(point, weight / group["d"])
                p.add_(p.grad, alpha=group["lr"] * (0.9 * (1 - weight / group["d"]) - 1))
                point.sub_(p.grad, alpha=group["lr"])


class Rotated(Progress):
    """Optimizer that steps in the basis of eigenvectors of a matrix's gradients, as SOAP does."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for p in (p for group in self.param_groups for p in group["params"]):
            held = self.state[p].setdefault("products", [torch.zeros(len(p), len(p))])
            rows = p.grad.reshape(len(p), -1)
            held[0] = 0.9 * held[0] + rows @ rows.t()
            _, basis = torch.linalg.eigh(held[0] + 1e-3 * torch.eye(len(p)))
            turned = basis.t() @ rows
            p.sub_((basis @ (turned / (turned.abs() + 0.1))).view_as(p), alpha=1e-3)


@pytest.mark.parametrize("kind", [Lamb, ScheduleFree, Rotated])
def test_an_optimizer_of_whole_tensors_does_what_it_does_in_eager(kind: type[optim.Optimizer]):
    mine, own, theirs, reference = pair(kind)
    training = popgeo.compile_step(mine, own)
    for number in range(8):
        training(batch(number))
        eager(theirs, reference, batch(number))
    assert_same(mine, theirs)
    assert [group["k"] for group in own.param_groups] == [group["k"] for group in reference.param_groups]
    assert not training.update.is_captured


@pytest.mark.parametrize("kind", [Progress, ByNumber])
def test_it_does_so_with_accumulation_clipping_and_a_dynamic_scale(kind: type[optim.Optimizer]):
    mine, own, theirs, reference = pair(kind)
    rule = LossScaling(initial=2.0**127, backoff_factor=2.0**-20)
    options = StepOptions(gradient_accumulation=2, max_grad_norm=0.5, loss_scaling=rule)
    training = popgeo.compile_step(mine, own, options=options)
    training(batch(0))  # overflows, so the update is skipped
    assert training.loss_scale.skipped == 1
    assert own.param_groups[0]["k"] == 0
    for number in range(1, 5):
        training(batch(number))
        eager(theirs, reference, batch(number), parts=2, limit=0.5)
    assert_same(mine, theirs)


def test_replicas_and_rates_that_follow_the_updates_reach_it():
    mine, own, theirs, reference = pair(Progress)
    options = StepOptions(replication_factor=2)
    training = popgeo.compile_step(mine, own, options=options, learning_rate=lambda number: 0.1 / (1 + number))
    for number in range(4):
        training(batch(number))
        for group in reference.param_groups:
            group["lr"] = 0.1 / (1 + number)
        eager(theirs, reference, batch(number), parts=2)
    assert_same(mine, theirs)


def test_a_checkpoint_keeps_its_progress(tmp_path):
    mine, own, other, another = pair(Progress)
    training = popgeo.compile_step(mine, own)
    for number in range(3):
        training(batch(number))
    training.save(tmp_path / "run")
    again = popgeo.compile_step(other, another)
    again.load(tmp_path / "run")
    for one in (training, again):
        one(batch(3))
    assert another.param_groups[0] == {**own.param_groups[0], "params": another.param_groups[0]["params"]}
    assert_same(mine, other)


def test_its_state_may_be_cleared_and_loaded_between_calls():
    mine, own, theirs, reference = pair(LooksBack)
    training = popgeo.compile_step(mine, own)
    for number in range(6):
        if number == 2:
            own.state.clear(), reference.state.clear()
        if number == 4:
            own.load_state_dict(copy.deepcopy(reference.state_dict()))
        training(batch(number))
        eager(theirs, reference, batch(number))
    assert_same(mine, theirs)


def test_it_is_accounted_for_without_being_changed():
    model = Squares()
    own = ByNumber(groups(model))
    training = popgeo.training_model(model, optimizer=own)
    training(batch(0))
    before = copy.deepcopy(own.param_groups[0]["d"]), [p.clone() for p in model.parameters()]
    assert any(cost.phase == "update" for cost in training.report.costs)
    assert own.param_groups[0]["d"] == before[0]
    assert all(map(torch.equal, model.parameters(), before[1]))


class Closure(Progress):
    def step(self, closure) -> None:
        closure()


def test_what_it_cannot_do_is_refused_at_the_door():
    model = Squares()
    with pytest.raises(ValueError, match=r"Closure evaluates the model several times .* needs \['closure'\]"):
        popgeo.compile_step(model, Closure(model.parameters()), batch(0))
    half = Squares().half()
    with pytest.raises(ValueError, match=r"Progress may keep progress outside .* Leave out .* elementwise"):
        popgeo.compile_step(
            half, Progress(half.parameters()), batch(0).half(), options=StepOptions(master_weights=True)
        )
    with pytest.raises(ValueError, match="Progress looks at whole rows or tensors"):
        popgeo.compile_step(model, Progress(model.parameters()), options=StepOptions(shard_optimizer_state=True))(
            batch(0)
        )


class Twice(Progress):
    def step(self, closure=None) -> None:
        loss = sum(p.grad.sum() for group in self.param_groups for p in group["params"])
        torch.autograd.grad(loss, self.param_groups[0]["params"])


def test_an_optimizer_that_asks_for_more_than_gradients_says_so_and_leaves_the_model():
    model = Squares()
    before = copy.deepcopy(model.state_dict())
    step = popgeo.compile_step(model, Twice(model.parameters()))
    with pytest.raises(RuntimeError, match=r"Twice's own step\(\) failed: .*gives it gradients alone"):
        step(batch(0))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(p.grad is None for p in model.parameters())


def freeze_last(optimizer: optim.Optimizer, args, kwargs) -> None:
    optimizer.param_groups[1]["params"][0].grad.zero_()


def count(counts: list[int]):
    return lambda optimizer, args, kwargs: counts.append(len(optimizer.state))


@pytest.mark.parametrize("when", ["before", "later", "for a while"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_of_an_optimizers_step_are_called(when: str, everywhere: bool):
    mine, own, theirs, reference = pair(lambda groups: optim.Adam(groups, lr=0.05))
    registers = [
        (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
        if everywhere
        else (one.register_step_pre_hook, one.register_step_post_hook)
        for one in (own, reference)
    ][: 1 if everywhere else 2]
    counts: list[int] = []
    training = popgeo.compile_step(mine, own)
    handles = []
    for number in range(6):
        if number == (0 if when == "before" else 2):
            for before, after in registers:
                handles += [before(freeze_last), after(count(counts))]
        if number == 4 and when == "for a while":
            for handle in handles:
                handle.remove()
        training(batch(number))
        eager(theirs, reference, batch(number))
    for handle in handles:
        handle.remove()
    assert len(counts) == {"before": 12, "later": 8, "for a while": 4}[when]
    assert set(counts) == {4}
    assert_same(mine, theirs)
    torch.testing.assert_close(own.state_dict()["state"], reference.state_dict()["state"], rtol=1e-5, atol=1e-6)


def test_a_step_put_in_the_place_of_an_optimizers_own_is_called():
    mine, own, theirs, reference = pair(lambda groups: optim.Adam(groups, lr=0.05))
    training = popgeo.compile_step(mine, own)
    called = []
    for number in range(4):
        if number == 1:
            schedules = [optim.lr_scheduler.ExponentialLR(one, 0.5) for one in (own, reference)]
        if number == 2:
            usual = own.step
            own.step = lambda usual=usual: called.append(usual())
        training(batch(number))
        eager(theirs, reference, batch(number))
        for schedule in schedules if number else ():
            schedule.step()
        assert training.update.is_captured is (True if number else None)
    assert len(called) == 2
    assert_same(mine, theirs)


def test_hooks_are_refused_where_the_update_is_worked_out_in_other_types():
    model = Squares().half()
    sgd = optim.SGD(model.parameters(), lr=0.1)
    training = popgeo.compile_step(model, sgd, options=StepOptions(master_weights=True))
    training(batch(0).half())
    before = [p.clone() for p in model.parameters()]
    handle = sgd.register_step_pre_hook(lambda *given: None)
    with pytest.raises(ValueError, match=r"SGD has hooks; remove them, or leave out .* master_weights"):
        training(batch(1).half())
    assert all(map(torch.equal, model.parameters(), before))
    handle.remove()
    training(batch(1).half())


def test_hooks_of_a_parameters_gradient_are_called(tmp_path):
    mine, own, theirs, reference = pair(lambda groups: optim.SGD(groups, lr=0.1, momentum=0.5))
    mask = torch.arange(32.0).view(8, 4) % 2
    for model in (mine, theirs):
        model.first.weight.register_hook(lambda gradient: gradient * mask)
        model.first.weight.register_hook(lambda gradient, first=model.first: gradient + 0.1 * first.weight.detach())
        model.last.bias.register_hook(lambda gradient: None)
    options = StepOptions(cache_dir=tmp_path)
    plain = Squares()  # a step kept from a model without hooks must not be used
    popgeo.compile_step(plain, optim.SGD(plain.parameters(), lr=0.1), batch(0), options=options)
    training = popgeo.compile_step(mine, own, options=options)
    for number in range(4):
        training(batch(number))
        eager(theirs, reference, batch(number))
    assert_same(mine, theirs)


def test_a_weight_that_is_read_past_its_module_is_refused():
    model = Squares()
    model.first.weight.register_hook(lambda gradient, weight=model.first.weight: gradient + weight)
    with pytest.raises(ValueError, match=r"a hook, reads first\.weight from a closure.* such as self\.weight"):
        popgeo.compile_step(model, optim.SGD(model.parameters(), lr=0.1), batch(0))


def test_hooks_behind_the_sum_of_gradients_are_refused_with_what_helps():
    model = Squares()
    model.last.weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(ValueError, match=r"post_accumulate_grad_hook, which last\.weight has.*register_hook"):
        popgeo.compile_step(model, optim.SGD(model.parameters(), lr=0.1), batch(0))


FOREIGN = {
    "pytorch_optimizer": ["Prodigy", "DAdaptAdam", "ScheduleFreeAdamW", "AdaBound", "AvaGrad", "SPAM", "SOAP", "ASGD"],
    "schedulefree": ["AdamWScheduleFree", "SGDScheduleFree"],
    "prodigyopt": ["Prodigy"],
    "dadaptation": ["DAdaptAdam"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in FOREIGN for name in FOREIGN[module]])
def test_published_optimizers_step_as_in_eager(module: str, name: str):
    kind = getattr(pytest.importorskip(module, reason=f"{module} is not installed"), name)
    update_of = importlib.import_module("popgeo.engine.optimizer.update").Update
    mine, theirs = weights(torch.float32), weights(torch.float32)
    own, reference = kind(list(mine.values())), kind(list(theirs.values()))
    update = update_of(own, mine, StepOptions())
    update.follow_memory()
    for number in range(8):
        for one in (own, reference):
            if hasattr(one, "train") and number in (0, 4):
                one.train()
            if hasattr(one, "eval") and number == 3:
                one.eval(), one.train()
        for key, place in update.gradients.items():
            place.copy_(gradients(number, torch.float32)[key])
        update.apply()
        step(reference, theirs, gradients(number, torch.float32))
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_what_looks_at_a_whole_group_is_refused_where_each_process_has_a_part_of_it():
    model = Squares()
    model.last.weight.is_sharded = True
    for optimizer, message in (
        (Progress(model.parameters()), r"Each process has a part of last\.weight alone, but Progress looks at whole"),
        (optim.SGD(model.parameters(), lr=0.1), r"1\.0, but each process has only a part of last\.weight"),
    ):
        recipe = Recipe(function=model, optimizer=optimizer, options=StepOptions(max_grad_norm=1.0))
        with pytest.raises(ValueError, match=message):
            CompiledStep(recipe, Replicas((0,), 2)).compile(batch(0))
