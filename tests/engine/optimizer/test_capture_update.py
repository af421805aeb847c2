"""Captured updates: inputs, outputs and operations of the graphs; captures leave the optimizer unchanged."""

import copy

import pytest
import torch
from torch import nn, optim

from popgeo.capture.op_graph import Input, Role
from popgeo.engine.optimizer.capture_update import capture_later_update, capture_scaling, capture_update
from popgeo.engine.optimizer.flat_worker import FlatWorker
from popgeo.engine.optimizer.gradient_scaling import GradientScaling
from popgeo.engine.optimizer.worker import Worker, settings_of
from popgeo.engine.step_options import StepOptions

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
    update = capture_update(Worker(optimizer))
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
    assert optimizer.state[parameters[0]]["step"] == 2  # capturing has stepped


def test_what_is_done_to_gradients_before_is_part_of_it():
    optimizer = grouped(optim.SGD, weights((3,)), lr=0.5)
    assert [op.target for op in capture_update(Worker(optimizer), TWICE).graph.ops if "div" in op.target] == [
        "aten.div_.Tensor"
    ]  # fmt: skip
    assert not any("div" in op.target for op in capture_update(Worker(optimizer)).graph.ops)
    (parameter,) = optimizer.param_groups[0]["params"]
    before = parameter.grad.clone()
    only = capture_scaling(Worker(optimizer), TWICE)
    assert names(only) == ["gradient:0"]
    assert [op.target for op in only.ops] == ["aten.div_.Tensor"]
    assert only.outputs == ()
    looks = [op.target for op in capture_scaling(Worker(optimizer), LOOKS).ops]
    assert looks[0] == "aten.linalg_vector_norm.default"
    assert "aten.div_.Tensor" not in looks
    assert torch.equal(parameter.grad, before)


@pytest.mark.parametrize("began", [False, True])
def test_a_later_update_has_its_state_and_changes_nothing(began: bool):
    parameters = weights((3, 2), (4,))
    optimizer = grouped(optim.SGD, parameters, lr=0.5, momentum=0.9)
    parameters[1].grad = None
    if began:
        optimizer.step()
    before = copy.deepcopy([parameters, [p.grad for p in parameters], dict(optimizer.state)])
    graph = capture_later_update(Worker(optimizer), TWICE)
    assert names(graph) == ["parameter:0", "gradient:0", "state:0.momentum_buffer", "parameter:1"]
    assert graph.outputs == ()
    targets = [op.target for op in graph.ops if not op.target.startswith("aten.detach")]
    assert targets == ["aten.div_.Tensor", "aten.mul_.Tensor", "aten.add_.Tensor", "aten.add_.Tensor"]
    torch.testing.assert_close([parameters, [p.grad for p in parameters]], before[:2], rtol=0, atol=0)
    assert list(optimizer.state) == ([parameters[0]] if began else [])
    for p, state in zip(optimizer.state, before[2].values(), strict=True):
        assert torch.equal(optimizer.state[p]["momentum_buffer"], state["momentum_buffer"])


class Reading(optim.Optimizer):
    """Optimizer that reads a number from its gradient."""

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
    assert names(capture_later_update(Worker(grouped(optim.AdamW, on_meta)), NONE))[:2] == ["parameter:0", "gradient:0"]
    with pytest.raises(ValueError, match=r"Reading's update cannot be planned from shapes alone: .*such as AdamW"):
        capture_later_update(Worker(grouped(Reading, on_meta)), NONE)
    with pytest.raises(ValueError, match=r"Reading's update cannot be planned"):
        capture_later_update(FlatWorker(grouped(Reading, on_meta), StepOptions()), NONE)
    with pytest.raises(ValueError, match=r"Reading's update cannot be captured for an account: broken\."):
        capture_later_update(Worker(grouped(Reading, weights((3, 2)), fails=True)), NONE)


def test_state_is_there_once_a_step_has_made_it():
    parameters = [nn.Parameter(torch.ones(2).half()), nn.Parameter(torch.ones(2).half())]
    plain = Worker(grouped(optim.Adam, parameters))
    assert not plain.has_stepped
    mixed = FlatWorker(plain.optimizer, StepOptions(master_weights=True))
    mixed.begin(0, seed=0)
    assert not mixed.has_stepped  # master weights are not made by a step
    parameters[1].grad = torch.ones(2).half()
    mixed.step()
    assert mixed.has_stepped
    assert plain.has_stepped


def test_the_same_worker_over_others_has_its_settings_and_no_state():
    mine, theirs = weights((3, 2), (4,)), weights((1,), (1,))
    worker = Worker(grouped(optim.Adam, mine, lr=0.25))
    worker.step()
    other = worker.for_parameters(theirs)
    assert (type(other), type(other.optimizer)) == (Worker, optim.Adam)
    assert other.parameters == theirs
    assert [group["lr"] for group in other.optimizer.param_groups] == [0.25, 0.25]
    assert other.optimizer.state == {}
    assert len(worker.optimizer.state) == 2
    assert all(p is q for p, q in zip(worker.parameters, mine, strict=True))
    other.step()
    assert len(worker.optimizer.state) == 2


def test_state_that_is_no_tensor_is_no_input():
    (parameter,) = weights((2,))
    optimizer = grouped(optim.SGD, [parameter], lr=0.1)
    optimizer.state[parameter].update(count=3, mean=torch.ones(2))
    assert [str(given) for given in Worker(optimizer).tensors()] == ["parameter:0", "gradient:0", "state:0.mean"]


@pytest.mark.parametrize(("kind", "settings", "captured"), [
    (optim.SGD, {"momentum": 0.9}, True), (optim.SGD, {}, True), (optim.Rprop, {}, True), (optim.Adam, {}, True),
    (optim.SGD, {"lr": torch.tensor(0.5)}, False),
])  # fmt: skip
def test_whether_updates_are_captured_is_known_after_the_second_one(kind, settings, captured):
    mine, theirs = (grouped(kind, weights((3, 2), (4,)), **{"lr": 0.5, **settings}) for _ in range(2))
    worker = FlatWorker(mine)
    worker.begin(0, seed=0)
    for number in range(6):
        assert (worker.is_captured is None) is (number < 2)
        for optimizer in (mine, theirs):
            optimizer.param_groups[1]["lr"] = optimizer.param_groups[1]["lr"] * (0.5 if number == 4 else 1)
        if number == 4:
            worker.take_settings(settings_of(mine))
        worker.step()
        theirs.step()
    assert worker.is_captured is captured
    for p, q in zip(Worker(mine).parameters, Worker(theirs).parameters, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


class MakesAnew(optim.SGD):
    """Optimizer whose state is a new tensor after each step."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["mean"] = self.state[p].get("mean", 0) * group["lr"] + p.grad
                p.sub_(self.state[p]["mean"])


class MakesATensorOfANumber(optim.SGD):
    """Optimizer that copies a learning rate to a tensor."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * torch.tensor(group["lr"]))


class MakesATensorOfNumbers(optim.SGD):
    """Optimizer whose captured graph would keep the learning rate of the first update as a constant."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * torch.tensor([group["lr"]]))


@pytest.mark.parametrize(
    ("kind", "captured"), [(MakesAnew, False), (MakesATensorOfANumber, True), (MakesATensorOfNumbers, False)]
)
def test_what_a_graph_would_lose_is_done_by_the_optimizer_itself(kind, captured):
    mine, theirs = (grouped(kind, weights((3, 2), (4,)), lr=0.5) for _ in range(2))
    worker = FlatWorker(mine)
    worker.begin(0, seed=0)
    for number in range(4):
        for optimizer in (mine, theirs):
            optimizer.param_groups[0]["lr"] = 0.5 / (1 + number)
            for p in Worker(optimizer).parameters:
                optimizer.state[p]["began"] = torch.ones(2)
        worker.take_settings(settings_of(mine))
        worker.step()
        theirs.step()
    assert worker.is_captured is captured
    assert all(map(torch.equal, Worker(mine).parameters, Worker(theirs).parameters))


def test_a_copy_keeps_the_attributes_of_another_s_optimizer_but_no_scheduler_and_no_hook():
    optimizer = grouped(Reading, weights((2,)), fails=False)
    optim.lr_scheduler.StepLR(optimizer, step_size=1)  # replaces the optimizer's step
    optimizer.register_step_pre_hook(lambda *given: pytest.fail("the hook of the original optimizer was called"))
    other = Worker(optimizer).for_parameters(weights((3,)))
    (before,) = copy.deepcopy(other.parameters)
    other.step()
    assert not other.optimizer.fails
    assert not torch.equal(other.parameters[0], before)
