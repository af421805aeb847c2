"""A compiled training step equals PyTorch, step by step."""

import copy

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.engine.step_options import StepOptions
from popgeo.ipu import DynamicShapeError, Options, inference_model, training_model
from tests.support.small_models import ContinuousFilters, GraphConvolutions, eager_step, make_batch


def make_pair(kind: type[nn.Module], dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = kind().to(dtype)
    return model, copy.deepcopy(model)


def assert_same_state(model: nn.Module, reference: nn.Module, **tolerance: float) -> None:
    for (name, mine), theirs in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [
        (ContinuousFilters, torch.float32, {"rtol": 1e-4, "atol": 1e-5}),
        (GraphConvolutions, torch.float64, {"rtol": 1e-9, "atol": 1e-9}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*takes means over all rows")
def test_fifty_training_steps_equal_eager_pytorch(kind, dtype, tolerance):
    model, reference = make_pair(kind, dtype)
    step = training_model(model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-2)
    for seed in range(50):
        batch = make_batch(seed, dtype)
        prediction, loss = step(**batch)
        expected = eager_step(reference, optimizer, batch)
        torch.testing.assert_close((prediction, loss), expected, **tolerance)
    assert_same_state(model, reference, **tolerance)


def test_training_lowers_the_loss_of_a_batch():
    model, _ = make_pair(ContinuousFilters)
    step = training_model(model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))
    losses = [float(step(**make_batch(0))[1]) for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]


def test_an_inference_model_follows_the_training_model():
    model, _ = make_pair(ContinuousFilters)
    step = training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-2))
    infer = inference_model(model)
    before = infer(**make_batch(1))[0]
    step(**make_batch(0))
    after = infer(**make_batch(1))[0]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, model(**make_batch(1))[0].detach())


class ByMask(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()


def test_a_shape_that_depends_on_data_is_refused_with_line_and_remedy():
    with pytest.raises(
        DynamicShapeError, match=r"test_wrap_model.py:\d+ in forward: return x\[x > 0\].sum\(\).*torch.where"
    ):
        inference_model(ByMask())(torch.ones(3))


def test_the_report_accounts_for_a_step():
    model, _ = make_pair(ContinuousFilters)
    step = training_model(model)
    step(**make_batch(0))
    report = step.report
    assert report.families["matmul"].flops > 0
    assert report.total.ops == sum(cost.family not in ("view", "host") for cost in report.costs)
    assert report.calls == 1
    assert report.seconds_per_call > 0
    assert "matmul" in str(report)


def test_a_compiled_model_says_what_it_is():
    training = training_model(ContinuousFilters(), Options(device_iterations=2))
    assert repr(training) == (
        "CompiledStep(ContinuousFilters: training, backend cpu, not compiled yet, micro-batches per call: 2)"
    )


@pytest.mark.parametrize("wrap", [training_model, inference_model])
def test_options_without_a_machine_are_refused_at_the_door(wrap):
    with pytest.raises(ValueError, match=r"options is a StepOptions, which names no machine; pass a popgeo\.Options"):
        wrap(nn.Linear(1, 1), StepOptions())


def test_an_optimizer_in_the_place_of_options_is_named():
    layer = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"options is a SGD, which names no machine; pass it by its name, optimizer="):
        training_model(layer, torch.optim.SGD(layer.parameters()))


def test_a_function_of_torch_that_has_no_signature_is_compiled():
    product, x = ipu.compile(torch.mm, [torch.ones(3, 2), torch.ones(2, 4)]), torch.randn(2, 4)
    assert torch.equal(product(torch.ones(3, 2), x), torch.mm(torch.ones(3, 2), x))
    with pytest.raises(ValueError, match=r"`inputs\[1\]` is float32\[2, 5\]"):
        product(torch.ones(3, 2), torch.ones(2, 5))


class Modes(nn.Module):
    """A model that returns its loss only in training mode, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.drop = nn.Parameter(torch.ones(3)), nn.Dropout(1.0)

    def forward(self, x):
        y = self.drop(self.slope * x)
        return (y, y.square().sum()) if self.training else y


@pytest.mark.filterwarnings("ignore:The model is in the mode of")
def test_a_wrapper_keeps_the_mode_that_the_model_was_in_when_it_was_made():
    model = Modes()
    step = training_model(model)
    model.eval()
    infer = inference_model(model)
    y, loss = step(torch.ones(3))
    assert (y.tolist(), loss.item()) == ([0, 0, 0], 0)
    assert not model.training
    assert not model.drop.training
    model.train()
    assert infer(torch.ones(3)).tolist() == [1, 1, 1]
    assert model.drop.training


@pytest.mark.filterwarnings("ignore:The model is in the mode of")
def test_each_submodule_keeps_its_own_mode():
    model = Modes()
    step = training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    model.drop.eval()
    assert step(torch.ones(3))[0].tolist() == [1, 1, 1]
    model.drop.train()
    assert step(torch.ones(3))[0].tolist() != [1, 1, 1]


def test_the_mode_can_be_chosen_by_the_wrapper():
    step = inference_model(Modes()).eval()
    assert step(torch.ones(3)).tolist() == [1, 1, 1]
    assert step.train() is step
    assert len(step(torch.ones(3))) == 2
    assert step.model.training
    assert step.eval()(torch.ones(3)).tolist() == [1, 1, 1]


def test_a_training_step_has_no_mode_to_evaluate_in():
    model = Modes()
    step = training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"updates the weights in each call.*compile_forward\(model\.eval\(\)\)"):
            step.eval()
        assert step.train() is step
        assert len(step(torch.ones(3))) == 2
