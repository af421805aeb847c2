"""Updates written down and run as graphs: what goes in and comes out, and that the optimizer stays as it is."""

import copy

import pytest
import torch
from torch import nn, optim

from popgeo.capture.op_graph import Input, Role
from popgeo.engine.optimizer.capture_update import (
    capture_later_update,
    capture_scaling,
    capture_update,
    has_state,
    parameters_of,
    tensors_of,
    with_parameters,
)
from popgeo.engine.optimizer.gradient_scaling import GradientScaling
from popgeo.engine.optimizer.mixed_optimizer import MixedOptimizer
from popgeo.engine.optimizer.precision import Precision
from popgeo.engine.optimizer.run_update import UpdateRunner

NONE, TWICE = GradientScaling(), GradientScaling(divisor=2.0)


def weights(*shapes: tuple[int, ...], device: str = "cpu") -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


def grouped(kind: type[optim.Optimizer], parameters: list[nn.Parameter], **settings) -> optim.Optimizer:
    return kind([{"params": [p]} for p in parameters], **settings)


LOOKS = GradientScaling(looks_for_overflow=True)


def names(graph) -> list[str]:
    return [str(given) for given in graph.inputs]


def test_inputs_are_what_an_update_reads_and_outputs_its_state():
    parameters = weights((3, 2), (4,), ())
    parameters[1].grad = None
    optimizer = grouped(optim.Adam, parameters, lr=0.5)
    optimizer.step()
    update = capture_update(optimizer)
    state = ["step", "exp_avg", "exp_avg_sq"]
    of = {number: [f"state:{number}.{key}" for key in state] for number in (0, 2)}
    assert names(update.graph) == [
        "parameter:0", "gradient:0", *of[0], "parameter:1", "parameter:2", "gradient:2", *of[2]
    ]  # fmt: skip
    expected = {Input(Role.STATE, f"{number}.{key}"): number for number in (0, 2) for key in state}
    assert list(update.state.items()) == list(expected.items())
    assert update.num_numbers == 0
    assert len(update.graph.outputs) == 6
    assert [update.graph.values[v].shape for v in update.graph.outputs] == [(), (3, 2), (3, 2), (), (), ()]
    assert all(op.phase == "update" for op in update.graph.ops)
    assert optimizer.state[parameters[0]]["step"] == 2  # it does step


def test_what_is_done_to_gradients_before_is_part_of_it():
    optimizer = grouped(optim.SGD, weights((3,)), lr=0.5)
    assert [op.target for op in capture_update(optimizer, TWICE).graph.ops if "div" in op.target] == [
        "aten.div_.Tensor"
    ]  # fmt: skip
    assert not any("div" in op.target for op in capture_update(optimizer).graph.ops)
    before = parameters_of(optimizer)[0].grad.clone()
    only = capture_scaling(optimizer, TWICE)
    assert names(only) == ["gradient:0"]
    assert [op.target for op in only.ops] == ["aten.div_.Tensor"]
    assert only.outputs == ()
    looks = [op.target for op in capture_scaling(optimizer, LOOKS).ops]
    assert looks[0] == "aten.linalg_vector_norm.default"
    assert "aten.div_.Tensor" not in looks
    assert torch.equal(parameters_of(optimizer)[0].grad, before)


@pytest.mark.parametrize("began", [False, True])
def test_a_later_update_has_its_state_and_changes_nothing(began: bool):
    parameters = weights((3, 2), (4,))
    optimizer = grouped(optim.SGD, parameters, lr=0.5, momentum=0.9)
    parameters[1].grad = None
    if began:
        optimizer.step()
    before = copy.deepcopy([parameters, [p.grad for p in parameters], dict(optimizer.state)])
    graph = capture_later_update(optimizer, TWICE)
    assert names(graph) == ["parameter:0", "gradient:0", "state:0.momentum_buffer", "parameter:1"]
    assert graph.outputs == ()
    targets = [op.target for op in graph.ops if not op.target.startswith("aten.detach")]
    assert targets == ["aten.div_.Tensor", "aten.mul_.Tensor", "aten.add_.Tensor", "aten.add_.Tensor"]
    torch.testing.assert_close([parameters, [p.grad for p in parameters]], before[:2], rtol=0, atol=0)
    assert list(optimizer.state) == ([parameters[0]] if began else [])
    for p, state in zip(optimizer.state, before[2].values(), strict=True):
        assert torch.equal(optimizer.state[p]["momentum_buffer"], state["momentum_buffer"])


class Reading(optim.Optimizer):
    """Reads a number of its gradient."""

    def __init__(self, params, fails: bool = False) -> None:
        super().__init__(params, {"lr": 0.5})
        self.fails = fails

    @torch.no_grad()
    def step(self) -> None:
        if self.fails:
            raise RuntimeError("broken")
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=p.grad.max().item())


def test_shapes_alone_are_enough_unless_numbers_are_read():
    on_meta = weights((3, 2), device="meta")
    assert names(capture_later_update(grouped(optim.AdamW, on_meta), NONE))[:2] == ["parameter:0", "gradient:0"]
    with pytest.raises(ValueError, match=r"Reading's update cannot be planned from shapes alone: .*such as AdamW"):
        capture_later_update(grouped(Reading, on_meta), NONE)
    with pytest.raises(ValueError, match=r"Reading's update cannot be planned"):
        capture_later_update(MixedOptimizer(grouped(Reading, on_meta), Precision()), NONE)
    with pytest.raises(RuntimeError, match=r"^broken$"):
        capture_later_update(grouped(Reading, weights((3, 2)), fails=True), NONE)


def test_state_is_there_once_a_step_has_made_it():
    parameters = [nn.Parameter(torch.ones(2).half()), nn.Parameter(torch.ones(2).half())]
    plain = grouped(optim.Adam, parameters)
    assert not has_state(plain)
    around = MixedOptimizer(plain, Precision(master_weights=True))
    around.begin(0)
    assert not has_state(around)  # master weights are no state of a step
    parameters[1].grad = torch.ones(2).half()
    around.step()
    assert has_state(around)
    assert has_state(plain)


def test_the_same_optimizer_over_others_has_its_settings_and_no_state():
    mine, theirs = weights((3, 2), (4,)), weights((1,), (1,))
    optimizer = grouped(optim.Adam, mine, lr=0.25)
    optimizer.step()
    other = with_parameters(optimizer, theirs)
    assert type(other) is optim.Adam
    assert parameters_of(other) == theirs
    assert [group["lr"] for group in other.param_groups] == [0.25, 0.25]
    assert other.state == {}
    assert len(optimizer.state) == 2
    assert all(p is q for p, q in zip(parameters_of(optimizer), mine, strict=True))
    other.step()
    assert len(optimizer.state) == 2


def test_state_that_is_no_tensor_is_no_input():
    (parameter,) = weights((2,))
    optimizer = grouped(optim.SGD, [parameter], lr=0.1)
    optimizer.state[parameter].update(count=3, mean=torch.ones(2))
    assert [str(given) for given in tensors_of(optimizer)] == ["parameter:0", "gradient:0", "state:0.mean"]


def stepped(kind: type[optim.Optimizer], **settings) -> optim.Optimizer:
    optimizer = grouped(kind, weights((3, 2), (4,)), **settings)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("kind", "settings", "rehearsed"), [
    (optim.SGD, {"momentum": 0.9}, 2), (optim.SGD, {}, 2), (optim.Rprop, {}, 5), (optim.Adam, {}, 5),
    (optim.SGD, {"lr": torch.tensor(0.5)}, 5),
])  # fmt: skip
def test_updates_that_count_nothing_are_rehearsed_when_a_setting_changes(monkeypatch, kind, settings, rehearsed):
    mine, theirs = (stepped(kind, **{"lr": 0.5, **settings}) for _ in range(2))
    runner = UpdateRunner(mine)
    rehearsals = []
    following = runner._rehearsal.next
    monkeypatch.setattr(runner._rehearsal, "next", lambda given: rehearsals.append(given) or following(given))
    assert runner.is_captured is None
    for number in range(5):
        for optimizer in (mine, theirs):
            optimizer.param_groups[1]["lr"] = optimizer.param_groups[1]["lr"] * (0.5 if number == 3 else 1)
        if not runner.run():
            mine.step()
        theirs.step()
    for p, q in zip(parameters_of(mine), parameters_of(theirs), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
    assert len(rehearsals) == rehearsed


class MakesAnew(optim.SGD):
    """Its state is another tensor after each step."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["mean"] = self.state[p].get("mean", 0) * group["lr"] + p.grad
                p.sub_(self.state[p]["mean"])


class MakesATensorOfANumber(optim.SGD):
    """Whose value would stay that of the first update."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * torch.tensor(group["lr"]))


@pytest.mark.parametrize("kind", [MakesAnew, MakesATensorOfANumber])
def test_what_a_graph_would_lose_is_not_captured_and_nothing_is_done(kind):
    optimizer = stepped(kind, lr=0.5)
    before = copy.deepcopy(parameters_of(optimizer))
    runner = UpdateRunner(optimizer)
    assert [runner.run(), runner.run()] == [False, False]
    assert runner.is_captured is False
    assert all(map(torch.equal, parameters_of(optimizer), before))
    fine = UpdateRunner(stepped(optim.Adam))
    assert fine.run()
    assert fine.is_captured is True


def test_a_copy_keeps_the_attributes_of_another_s_optimizer_but_no_scheduler_and_no_hook():
    optimizer = grouped(Reading, weights((2,)), fails=False)
    optim.lr_scheduler.StepLR(optimizer, step_size=1)  # which puts a step of its own into the optimizer
    optimizer.register_step_pre_hook(lambda *given: pytest.fail("the hook of the one that was copied"))
    other = with_parameters(optimizer, weights((3,)))
    (before,) = copy.deepcopy(parameters_of(other))
    other.step()
    assert not other.fails
    assert not torch.equal(parameters_of(other)[0], before)
