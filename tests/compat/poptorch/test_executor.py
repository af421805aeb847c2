"""`trainingModel` and `inferenceModel`: calls, weights, optimizers and times as in PopTorch."""

import io

import pytest
import torch
from torch import nn

from popgeo.compat import poptorch
from tests.support.poptorch_models import Add, Line, trained


def test_a_training_call_updates_the_module():
    line = Line()
    out, loss = trained(line)(torch.tensor([2.0]), torch.tensor([3.0]))
    assert out.tolist() == [0.0]
    assert loss.item() == 9.0  # (0 * 2 - 3)^2
    assert line.slope.item() == 6.0  # 0 - 0.5 * 2 * (0 - 3) * 2


@pytest.mark.parametrize(
    ("mode", "period", "expected"),
    [
        (poptorch.OutputMode.All, None, [1.0, 2.0, 3.0, 4.0]),
        (poptorch.OutputMode.Default, None, [1.0, 2.0, 3.0, 4.0]),
        (poptorch.OutputMode.Final, None, [4.0]),
        (poptorch.OutputMode.EveryN, 2, [2.0, 4.0]),
        (poptorch.OutputMode.Sum, None, [10.0]),
    ],
)
def test_the_output_mode_decides_which_steps_return_results(mode, period, expected):
    options = poptorch.Options().deviceIterations(4).outputMode(mode, period)
    assert poptorch.inferenceModel(Line(1.0), options)(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == expected


def test_training_returns_its_last_step_unless_asked_for_more():
    x = torch.tensor([1.0, 1.0])
    options = poptorch.Options().deviceIterations(2)
    out, loss = trained(Line(), options=options)(x, x)  # 0, then 0 - 0.5 * 2 * (0 - 1) = 1
    assert (out.tolist(), loss.item()) == ([1.0], 0.0)
    out, loss = trained(Line(), options=options.clone().outputMode(poptorch.OutputMode.All))(x, x)
    assert (out.tolist(), loss.tolist()) == ([0.0, 1.0], [1.0, 0.0])


def test_arguments_of_any_nest_are_divided_into_micro_batches():
    class Nested(nn.Module):
        def forward(self, pair, named):
            assert isinstance(pair, tuple)
            return {"sum": pair[0] + pair[1][0], "twice": [2 * named["z"]]}

    x, y, z = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]), torch.tensor([3.0, 4.0])
    model = poptorch.inferenceModel(Nested(), poptorch.Options().deviceIterations(2))
    results = model((x, [y]), named={"z": z})
    assert results["sum"].tolist() == [11.0, 22.0]
    assert results["twice"][0].tolist() == [6.0, 8.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m((torch.ones(3), torch.ones(2))), r"`pair\[0\]` is float32\[3\], but .* compiled for float32\[2\]"),
        (lambda m: m((torch.ones(2).int(), torch.ones(2))), r"is int32\[2\], but .* compiled for float32\[2\]"),
        (lambda m: m([torch.ones(2), torch.ones(2)]), "`pair` is list of 2, but .* compiled for tuple of 2"),
        (lambda m: m((torch.ones(2),)), r"`pair` is tuple of 1, but .* compiled for tuple of 2"),
        (lambda m: m((torch.ones(2), torch.ones(2)), scale=3), "`scale` is 3, but .* compiled for 2"),
        (lambda m: m((torch.ones(2), torch.ones(2)), scale=torch.ones(1)), r"`scale` is float32\[1\], but"),
        (lambda m: m((torch.ones(2), torch.ones(2)), b=1), "`named` is dict of 1, but .* call destroy"),
        (lambda m: m((torch.ones(2), torch.ones(2)), 2, torch.ones(2)), "`more` is tuple of 1, but"),
        (lambda m: m(), "Mandatory parameter pair missing"),
    ],
)
def test_a_call_unlike_the_compiled_one_is_refused_by_its_first_difference(call, words):
    class Scaled(nn.Module):
        def forward(self, pair, scale=2, *more, **named):
            return (pair[0] + pair[1]) * scale

    model = poptorch.inferenceModel(Scaled())
    assert model((torch.ones(2), torch.ones(2))).tolist() == [4.0, 4.0]
    with pytest.raises(poptorch.Error, match=words):
        call(model)
    assert model((torch.ones(2), torch.ones(2)), 2).tolist() == [4.0, 4.0]


def test_wrong_arguments_are_refused_as_poptorch_refuses_them():
    model = poptorch.inferenceModel(Add())
    with pytest.raises(AssertionError, match=r"takes \(x, y.*too many positional arguments"):
        model(*[torch.ones(1)] * 4)
    with pytest.raises(AssertionError, match="unexpected keyword argument 'z'"):
        model(torch.ones(1), z=torch.ones(1))
    with pytest.raises(AssertionError, match="multiple values for argument 'x'"):
        model(torch.ones(1), x=torch.ones(1))
    with pytest.raises(poptorch.Error, match="Mandatory parameter y missing"):
        model(torch.ones(1))


def test_a_tensor_default_may_be_given_in_a_later_call():
    class Weighted(nn.Module):
        def forward(self, x, y=torch.ones(1), z=torch.zeros(1)):  # noqa: B008
            return x * y + z

    model, x = poptorch.inferenceModel(Weighted()), torch.tensor([3.0])
    assert model(x).item() == 3.0
    assert model(x, z=torch.tensor([4.0])).item() == 7.0
    assert model(z=torch.tensor([4.0]), x=x).item() == 7.0


def test_results_are_of_32_bits_and_refuse_a_backward_pass():
    class Types(nn.Module):
        def forward(self, x):
            return x.argmax(), x.double(), x.half()

    results = poptorch.inferenceModel(Types())(torch.tensor([0.0, 1.0]))
    assert [result.dtype for result in results] == [torch.int32, torch.float32, torch.float16]
    with pytest.raises(poptorch.Error, match=r"backward\(\) cannot be called explicitly"):
        results[1].backward()
    kept = io.BytesIO()
    torch.save(results[1], kept)
    kept.seek(0)
    assert torch.load(kept).tolist() == [0.0, 1.0]


def test_an_input_that_needs_a_gradient_is_detached():
    out = poptorch.inferenceModel(Line(2.0))(torch.ones(1, requires_grad=True))
    assert out.item() == 2.0
    assert not out.requires_grad


def test_training_and_inference_share_their_weights():
    line = Line()
    training, inference = trained(line), poptorch.inferenceModel(line)
    x = torch.ones(1)
    assert inference(x).item() == 0.0
    training(x, x)
    assert inference(x).item() == 1.0
    assert training.state_dict()["slope"].item() == line.state_dict()["slope"].item() == 1.0
    training.load_state_dict({"slope": torch.tensor([5.0])})
    assert inference(x).item() == 5.0
    with torch.no_grad():
        line.slope.fill_(7.0)
    training.copyWeightsToDevice()
    assert training(x, 7 * x)[1].item() == 0.0
    assert training.copyWeightsToHostIfNeeded() is line.copyWeightsToHostIfNeeded() is False


def test_unknown_attributes_are_the_modules():
    line = Line()
    line.unit = "eV"
    training = trained(line)
    assert training.unit == "eV"
    assert [name for name, _ in training.named_parameters()] == ["slope"]
    assert training.train() is line
    assert repr(training) == repr(line)
    with pytest.raises(AttributeError, match="nothing"):
        _ = training.nothing


def test_a_new_optimizer_goes_on_with_the_momentum_of_the_last():
    def run(optimizers):
        line = Line()
        made = [make(line.parameters()) for make in optimizers]
        training = poptorch.trainingModel(line, optimizer=made[0])
        x = torch.ones(1)
        training(x, x)
        training.setOptimizer(made[-1])
        training(x, x)
        return line.slope.item()

    def sgd(rate):
        return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.5)

    # 0 - 0.25 * -2 = 0.5; momentum -2 * 0.5 + gradient -1 = -2
    assert run([sgd(0.25)]) == 1.0
    assert run([sgd(0.25), sgd(0.5)]) == 1.5
    # another class: compiled again; Adam's first step is its rate
    assert run([sgd(0.25), lambda p: torch.optim.Adam(p, lr=0.125)]) == pytest.approx(0.625)


def test_an_inference_model_has_no_optimizer_and_accumulates_nothing():
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    with pytest.raises(poptorch.Error, match="gradientAccumulation to 1"):
        poptorch.inferenceModel(Line(), options)
    line = Line()
    with pytest.raises(poptorch.Error, match="has no optimizer"):
        poptorch.inferenceModel(line).setOptimizer(torch.optim.SGD(line.parameters(), lr=1.0))
    with pytest.raises(poptorch.Error, match=r"Expected poptorch\.Options"):
        poptorch.inferenceModel(line, {"deviceIterations": 2})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (poptorch.CommGroupType.Consecutive, [1.0, 1.0, 2.0, 2.0]),
        (poptorch.CommGroupType.Orthogonal, [1.0, 2.0, 1.0, 2.0]),
    ],
)
def test_groups_of_replicas_share_their_inputs(kind, expected):
    options = poptorch.Options().replicationFactor(4).inputReplicaGrouping(2, kind)
    assert poptorch.inferenceModel(Line(1.0), options)(torch.tensor([1.0, 2.0])).tolist() == expected


def test_times_come_by_tensor_and_step():
    options = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.EveryN, 2)
    model = poptorch.inferenceModel(Add(), options)
    assert model.getLatency() == (0.0, 0.0, 0.0)
    assert model.getPerfCounters()["input"] == [[]]
    model(torch.ones(4), torch.ones(4))
    counters = model.getPerfCounters()
    assert {key: (len(times), len(times[0])) for key, times in counters.items()} == {
        "input": (2, 4),
        "input_complete": (2, 4),
        "output": (1, 2),
        "output_complete": (1, 2),
    }
    shortest, longest, mean = model.getLatency()
    assert 0 < shortest <= mean <= longest
    assert model.getComputeLatency() == model.getLatency()
    assert model.getHostIpuLatency() == model.getIpuHostLatency() == (0.0, 0.0, 0.0)
