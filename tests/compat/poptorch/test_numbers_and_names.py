"""Numbers of 64 bits, seeds, losses without parameters, and private names that published programs use."""

import pytest
import torch
from torch import nn

from popgeo.compat import poptorch


class Runs(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x: x + 0, torch.tensor([2**33 + 5])),
        (lambda x: x * 2**20, torch.tensor([2**20])),
        (lambda x: x + 0, torch.tensor([1e200], dtype=torch.float64)),
    ],
)
def test_a_number_that_has_no_room_in_32_bits_is_refused(function, given):
    with pytest.raises(poptorch.Error, match="has no room for, and an IPU computes in 32 bits"):
        poptorch.inferenceModel(Runs(function))(given)


def test_double_numbers_are_narrowed_when_they_go_in_and_written_back():
    given, single = torch.tensor([550.4], dtype=torch.float64), torch.tensor([550.4])
    assert poptorch.inferenceModel(Runs(torch.eq))(given, single).all()
    assert poptorch.inferenceModel(Runs(lambda x: x.add_(1) * 2))(given).dtype is torch.float32
    assert given.item() == pytest.approx(551.4)


def test_a_seed_set_inside_the_model_gives_the_same_numbers_in_each_call():
    def draws(x):
        torch.manual_seed(42)
        return torch.distributions.Normal(x, 10.0).sample((3,))

    model, x = Runs(draws), torch.zeros(1)
    step = poptorch.inferenceModel(model)
    assert torch.equal(step(x), model(x))
    assert torch.equal(step(x), model(x))


def test_a_model_whose_loss_depends_on_no_parameter_runs_without_an_update():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused, self.norm = nn.Linear(1, 1), nn.BatchNorm1d(3, affine=False)

        def forward(self, x):
            y = self.norm(x)
            return y, poptorch.identity_loss(y.square(), reduction="mean")

    model, options = Norm(), poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    y, loss = poptorch.trainingModel(model, options)(torch.randn(12, 3))
    assert y.shape == (3, 3)
    assert loss.item() == pytest.approx(1, abs=0.01)
    assert model.norm.num_batches_tracked == 4


def test_a_transformer_takes_a_mask():
    class Encodes(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x, mask):
            return self.layers(x, mask)

    model, x = Encodes(), torch.randn(3, 2, 4)
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x, mask), model(x, mask))


def test_programs_find_what_they_ask_for_by_poptorchs_names():
    assert isinstance(poptorch.Options()._execution_strategy, poptorch.PipelinedExecution)
    assert issubclass(poptorch.optim.Adam, poptorch.optim.Optimizer)
    assert poptorch.poptorch_core.isCompilingWithDispatcher() is False
    assert (
        poptorch.inferenceModel(Runs(lambda x: x + poptorch.poptorch_core.isCompilingWithDispatcher()))(torch.ones(1))
        == 2
    )
    assert poptorch.BeginBlock(lambda x: x, "f", ipu_id=1)._user_id == "f"
    model = Runs(torch.relu)
    poptorch._impl.unwrapIfWrapped(model)
    assert type(model) is Runs
    options = poptorch.Options().updatableNamedBuffers(["mean"])
    with pytest.raises(poptorch.Error, match="no buffer named 'mean'"):
        poptorch.inferenceModel(model, options)(torch.ones(1))
    step = poptorch.inferenceModel(model)
    step(torch.ones(1))
    with pytest.raises(poptorch.Error, match=r"name those that change in Options\.updatableNamedBuffers"):
        step.copyNamedBuffersToDevice()
