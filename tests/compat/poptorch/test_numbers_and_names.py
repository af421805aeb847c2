"""64-bit numbers, seeds, losses without parameters, and private names that published programs use."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

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
    with pytest.raises(poptorch.Error, match=r"does not fit torch.*; an IPU computes in 32 bits"):
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


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_half_activations_has_single_weights(training):
    model, x = nn.BatchNorm1d(4).train(training), torch.randn(8, 4).half()
    y = poptorch.inferenceModel(model)(x)
    assert y.dtype is torch.float16
    torch.testing.assert_close(y, nn.BatchNorm1d(4).train(training)(x))
    assert model.running_mean.dtype is torch.float32


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.named, self.other = nn.Buffer(torch.tensor([1.0])), nn.Buffer(torch.tensor([2.0]))

    def forward(self, x):
        self.other += 0.5
        return x + self.named + self.other


def test_a_buffer_that_is_not_named_stays_what_it_was_until_all_are_copied():
    model, x = Buffers(), torch.tensor([10.0])
    step = poptorch.inferenceModel(model, poptorch.Options().updatableNamedBuffers(["named"]))
    assert step(x) == 13.5
    model.named.fill_(100)
    model.other.fill_(1000)
    assert step(x) == 14
    step.copyNamedBuffersToDevice()
    assert step(x) == 113.5
    assert model.other == 1000
    step.copyWeightsToDevice()
    assert step(x) == 1110.5
    step.load_state_dict({"named": torch.tensor([0.0]), "other": torch.tensor([0.0])})
    assert (step(x).item(), model.other.item()) == (10.5, 0.5)


def test_replicas_take_over_buffers_that_are_copied_to_them():
    model, options = Buffers(), poptorch.Options().replicationFactor(2).broadcastBuffers(False)
    step = poptorch.inferenceModel(model, options)
    step(torch.zeros(2, 1))
    model.other.fill_(1000)
    step.copyWeightsToDevice()
    assert step(torch.zeros(2, 1)).tolist() == [[1001.5], [1001.5]]


def test_several_convolutions_may_not_be_none_or_nested_while_a_model_is_compiled():
    def nested(x):
        with poptorch.MultiConv(), poptorch.MultiConv():
            return torch.nn.functional.conv1d(x, x)

    def empty(x):
        with poptorch.MultiConv():
            return x**2

    def right(x):
        with poptorch.MultiConv():
            return torch.nn.functional.conv1d(x, x)

    x = torch.ones(1, 1, 3)
    assert nested(x) == poptorch.inferenceModel(Runs(right))(x) == 3
    with pytest.raises(poptorch.Error, match=r"Nested poptorch\.MultiConv is not supported"):
        poptorch.inferenceModel(Runs(nested))(x)
    with pytest.raises(poptorch.Error, match="Unexpected end_multi_conv"):
        poptorch.inferenceModel(Runs(empty))(x)
    assert poptorch.inferenceModel(Runs(right))(x) == 3
    for refused in (lambda several: several.partialsTypes("half"), lambda several: several.planType("parallel")):
        with pytest.raises(AssertionError, match="Invalid"):
            refused(poptorch.MultiConv())


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
    with pytest.raises(poptorch.Error, match=r"pass the names of changed buffers to Options\.updatableNamedBuffers"):
        step.copyNamedBuffersToDevice()


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.GRUCell(4, 3), 1),
        (nn.MultiheadAttention(4, 2), 3),
        (nn.PReLU(), 1),
        (functional.scaled_dot_product_attention, 3),
    ],
)
def test_cells_and_attention_take_float16_beside_weights_of_float32_too(layer, inputs):
    given = [torch.randn(2, 4).half() for _ in range(inputs)]
    if not isinstance(layer, nn.Module):
        layer, given[1] = Runs(layer), given[1].float()
    result = poptorch.inferenceModel(layer)(*given)
    assert (result[0] if isinstance(result, tuple) else result).dtype is torch.float16


def times_six(x):
    return x * 6


def test_a_function_that_begins_a_block_can_be_saved_and_no_module_begins_two():
    block = pickle.loads(pickle.dumps(poptorch.BeginBlock(times_six, "times", ipu_id=1)))
    assert block._user_id == "times"
    assert poptorch.inferenceModel(Runs(block))(torch.ones(1)) == 6
    layer = poptorch.BeginBlock(nn.Linear(1, 1), ipu_id=0)
    with pytest.raises(poptorch.Error, match="module has already been assigned to a block"):
        poptorch.BeginBlock(layer, ipu_id=1)


def test_options_have_the_private_names_that_other_packages_subclass_and_cycles_are_logged(caplog):
    class OfSomebody(poptorch.options._DistributedOptions): ...

    options = poptorch.Options().logCycleCount(True)
    options.Distributed.__class__ = OfSomebody
    poptorch.setLogLevel("INFO")
    step = poptorch.inferenceModel(Runs(torch.relu), options)
    step(torch.ones(1))
    poptorch.setLogLevel("WARN")
    assert f"Total number of IPU cycles: {step.cycleCount()}" in caplog.text
