"""`trainingModel` and `inferenceModel`: called, compiled, attached, saved and let go as PopTorch's are."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from popgeo.compat import poptorch


class Line(nn.Module):
    """y = slope * x, with the squared error as loss where there is a target."""

    def __init__(self, slope=0.0):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([slope]))

    def forward(self, x, y=None):
        out = self.slope * x
        return out if y is None else (out, (out - y).square().mean())


class Counter(nn.Module):
    """Adds its input to a buffer and returns it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x):
        self.total.add_(x)
        return self.total


class Add(nn.Module):
    def forward(self, x, y, scale=1):
        return (x + y) * scale


def trained(line, rate=0.5, options=None):
    return poptorch.trainingModel(line, options, torch.optim.SGD(line.parameters(), lr=rate))


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


def test_a_batch_that_does_not_divide_is_refused_before_compiling():
    options = poptorch.Options().deviceIterations(2).replicationFactor(3)
    model = poptorch.inferenceModel(Line(), options)
    for kind in (AssertionError, ValueError):
        with pytest.raises(kind, match=r"Invalid batch dimension: In the input torch.Size\(\[4\]\).*\(4\).* = 6 "):
            model(torch.zeros(4))
    assert not model.isCompiled()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m((torch.ones(3), torch.ones(2))), r"Shape mismatch for pair\[0\]: expected torch.Size\(\[2\]\)"),
        (lambda m: m((torch.ones(2).int(), torch.ones(2))), "expected torch.float32 but got torch.int32"),
        (lambda m: m([torch.ones(2), torch.ones(2)]), "Type mismatch for pair: expected <class 'tuple'>"),
        (lambda m: m((torch.ones(2),)), r"Length mismatch for pair: expected 2 elements but got 1"),
        (lambda m: m((torch.ones(2), torch.ones(2)), scale=3), "Value mismatch for scale: expected 2 but got 3"),
        (lambda m: m((torch.ones(2), torch.ones(2)), scale=torch.ones(1)), "Type mismatch for scale"),
        (lambda m: m((torch.ones(2), torch.ones(2)), b=1), "Keys mismatch for named arguments: Unexpected .*: b"),
        (lambda m: m((torch.ones(2), torch.ones(2)), 2, torch.ones(2)), "Number of positional arguments mismatch"),
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


def test_destroying_lets_a_model_be_compiled_for_other_shapes():
    model = poptorch.inferenceModel(Add())
    assert model(torch.ones(2), torch.ones(2)).tolist() == [2.0, 2.0]
    model.destroy()
    assert not model.isCompiled()
    assert model(torch.ones(3), torch.ones(3), scale=2).tolist() == [4.0, 4.0, 4.0]


def test_wrong_arguments_are_refused_as_poptorch_refuses_them():
    model = poptorch.inferenceModel(Add())
    with pytest.raises(AssertionError, match=r"Too many arguments provided: expected \['x', 'y', 'scale'\] \(3\)"):
        model(*[torch.ones(1)] * 4)
    with pytest.raises(AssertionError, match="z is not a valid parameter"):
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


def test_device_is_attached_and_detached_by_turns():
    x = torch.ones(1)
    training, inference = trained(Line()), poptorch.inferenceModel(Line())
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        training.detachFromDevice()
    assert not training.isAttachedToDevice()
    training.compile(x, x)
    assert training.isAttachedToDevice()
    with pytest.raises(poptorch.Error, match="Device is already attached"):
        training.attachToDevice()
    training.detachFromDevice()
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        training.detachFromDevice()
    inference(x)
    training(x, x)  # takes it back by itself
    assert training.isAttachedToDevice()


def test_a_model_that_never_connects_is_compiled_and_not_called(tmp_path):
    model, x = poptorch.inferenceModel(Line(2.0), poptorch.Options().useOfflineIpuTarget()), torch.ones(1)
    model.compile(x)
    assert model.isCompiled()
    assert not model.isAttachedToDevice()
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
        model(x)
    with pytest.raises(AssertionError, match="Trying to attach to an offline device"):
        model.attachToDevice()


def test_compiling_twice_is_left_alone_with_a_warning(caplog):
    model = poptorch.inferenceModel(Counter())
    model.compile(torch.ones(1))
    with caplog.at_level("WARNING", logger="poptorch"):
        model.compile(torch.ones(5))
    assert "already compiled" in caplog.text
    assert model(torch.ones(1)).item() == 1.0  # compiling has run nothing


def test_a_model_without_inputs_is_compiled_without_arguments():
    class Count(Counter):
        def forward(self):
            self.total += 1.0
            return self.total

    model = poptorch.inferenceModel(Count())
    model.compile()
    assert [model().item() for _ in range(3)] == [1.0, 2.0, 3.0]


def test_a_held_module_is_its_own_class_and_can_be_let_go():
    line = Line()
    training = trained(line)
    assert isinstance(line, Line)
    assert training.model is line
    with pytest.raises(RuntimeError, match=r"already been wrapped in 'poptorch.trainingModel'. Call model.destroy\(\)"):
        poptorch.trainingModel(line)
    line.destroy()
    assert type(line) is Line
    again = poptorch.trainingModel(training, optimizer=torch.optim.SGD(line.parameters(), lr=0.5))
    again(torch.ones(1), torch.ones(1))
    assert line.slope.item() == 1.0
    again.destroy()
    assert type(line) is Line


def test_a_held_module_is_copied_and_pickled_as_what_it_was():
    line = Line(3.0)
    training = trained(line)
    for other in (copy.deepcopy(line), copy.copy(line), pickle.loads(pickle.dumps(line))):
        assert type(other) is Line
        assert other.slope.item() == 3.0
    assert training.model is line


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


def test_the_mode_is_the_modules_of_wrapping_and_its_submodules_of_compiling():
    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.999999)

        def forward(self, x):
            return self.drop(x), torch.full((1,), float(self.training))

    moody, x = Moody().train(), torch.ones(4)
    model = poptorch.inferenceModel(moody)
    moody.eval()
    for _ in range(2):
        out, mode = model(x)
        assert mode.item() == 1.0
        assert out.tolist() == x.tolist()
        moody.train()  # too late: the step is compiled


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
    # of another kind: compiled anew, Adam's first step is its rate
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


def test_replicas_that_change_buffers_must_have_their_own():
    x = torch.tensor([1.0, 2.0])
    options = poptorch.Options().replicationFactor(2)
    model = poptorch.inferenceModel(Counter(), options)
    with pytest.raises(poptorch.Error, match=r"does not support broadcasting buffers.*broadcastBuffers\(False\)"):
        model(x)
    assert not model.isCompiled()
    counter = Counter()
    options = options.clone().broadcastBuffers(False).updatableNamedBuffers(["total"])
    model = poptorch.inferenceModel(counter, options)
    assert [model(x).tolist() for _ in range(2)] == [[1.0, 2.0], [2.0, 4.0]]
    counter.total.fill_(10.0)
    model.copyNamedBuffersToDevice()
    assert model(x).tolist() == [11.0, 12.0]


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


def test_cycles_are_those_of_the_modelled_machine_and_of_all_iterations():
    with pytest.raises(poptorch.Error, match="Please set option logCycleCount to True"):
        poptorch.inferenceModel(Line()).cycleCount()

    def cycles(iterations):
        model = poptorch.inferenceModel(Line(), poptorch.Options().logCycleCount(True).deviceIterations(iterations))
        model.compile(torch.ones(iterations))
        with pytest.raises(poptorch.Error, match="run the model at least once"):
            model.cycleCount()
        model(torch.ones(iterations))
        return model.cycleCount()

    assert cycles(3) == 3 * cycles(1) > 0


def test_tensors_by_poparts_names_are_refused_with_the_reason():
    model = poptorch.inferenceModel(Line(1.0))
    model.compile(torch.ones(1))
    assert model.compilationTime().total_seconds() > 0
    with pytest.raises(poptorch.Error, match=r"executor\.compiled\.graph lists"):
        model.getTensorNames()
    with pytest.raises(poptorch.Error, match=r"'loss' is not known.*return it from the model"):
        model.getAnchoredTensor("loss")


def test_losses_are_found_as_poptorch_finds_them():
    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return self.weight.sum(), nn.functional.mse_loss(self.weight * x, x), (3 * self.weight).sum()

    scores = Scores()
    poptorch.trainingModel(scores, optimizer=torch.optim.SGD(scores.parameters(), lr=0.5))(torch.ones(1))
    assert scores.weight.item() == 1.0  # 0 - 0.5 * 2 * (0 - 1)


def test_a_model_takes_its_branch_for_the_machine():
    class Branch(nn.Module):
        def forward(self, x, y):
            return x + y if poptorch.isRunningOnIpu() else x * y

    x, y = torch.tensor([50.0]), torch.tensor([2.0])
    assert poptorch.inferenceModel(Branch())(x, y).item() == 52.0
    assert Branch()(x, y).item() == 100.0


def test_hooks_surround_each_compilation():
    seen = []
    before = poptorch.registerPreCompileHook(lambda: seen.append("before"))
    after = poptorch.registerPostCompileHook(lambda: seen.append("after"))
    model = poptorch.inferenceModel(Line())
    model(torch.ones(1))
    model(torch.ones(1))
    before.remove()
    model.destroy()
    model(torch.ones(1))
    after.remove()
    assert seen == ["before", "after", "after"]
    with pytest.raises(RuntimeError, match="Pre-compile hook must be callable"):
        poptorch.registerPreCompileHook(1)


def test_a_saved_model_is_loaded_compiled_and_goes_on(tmp_path):
    line, x = Line(), torch.ones(1)
    training = poptorch.trainingModel(line, optimizer=torch.optim.SGD(line.parameters(), lr=0.25, momentum=0.5))
    path = str(tmp_path / "new" / "model.poptorch")
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        training.save(path)
    training.compileAndExport(path, x, x)
    training(x, x)
    training.save(path)
    training(x, x)
    loaded = poptorch.load(path)
    assert loaded.isCompiled()
    assert loaded.model.slope.item() == 0.5
    loaded(x, x)  # momentum too has been kept: 0.5 - 0.25 * (-2 * 0.5 - 1)
    assert loaded.model.slope.item() == line.slope.item() == 1.0
    with pytest.raises(poptorch.Error, match="Shape mismatch"):
        loaded(torch.ones(2), torch.ones(2))


def test_an_executable_alone_needs_a_module(tmp_path):
    offline = poptorch.inferenceModel(Line(), poptorch.Options().useOfflineIpuTarget())
    offline.compileAndExport(str(tmp_path), torch.ones(2), export_model=False)
    path = str(tmp_path / "model.poptorch")
    with pytest.raises(AssertionError, match=r"poptorch_model.loadExecutable\("):
        poptorch.load(path)
    model = poptorch.inferenceModel(Line(2.0))
    model.loadExecutable(path)
    assert model(torch.ones(2)).tolist() == [2.0, 2.0]
    (tmp_path / "other").write_bytes(b"text")
    with pytest.raises(poptorch.Error, match="Invalid file"):
        poptorch.load(tmp_path / "other")


def test_a_loaded_model_may_be_given_other_options(tmp_path):
    path = str(tmp_path / "model.poptorch")
    poptorch.inferenceModel(Line(2.0), poptorch.Options().useOfflineIpuTarget()).compileAndExport(path, torch.ones(2))
    model = poptorch.load(path, edit_opts_fn=lambda options: options.deviceIterations(2))
    assert model.options.device_iterations == 2
    assert model(torch.ones(2)).tolist() == [2.0, 2.0]


def test_random_numbers_go_on_where_they_are_set():
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    model = poptorch.inferenceModel(Noise(), poptorch.Options().randomSeed(3).replicationFactor(2))
    model(torch.zeros(2))
    state = model.rng_state
    first = model(torch.zeros(2))
    model.rng_state = state
    assert model(torch.zeros(2)).tolist() == first.tolist()
    assert first[0] != first[1]


def test_an_executor_may_be_made_around_a_module_that_only_holds_another():
    class WithLoss(nn.Module):
        def __init__(self, model):
            super().__init__()
            self._model = model

        def forward(self, args, target):
            raise AssertionError("never called")

        def __call__(self, args, target):
            out = self._model(args)
            return out, (out - target).square().mean()

    line = Line()
    executor = poptorch.PoplarExecutor(
        model=WithLoss(copy.copy(line)), options=None, training=True, optimizer=None, user_model=line
    )
    executor(torch.ones(1), torch.ones(1))
    assert line.slope.item() == pytest.approx(0.02)  # the rate is 0.01 where no optimizer is given
    assert executor.slope is line.slope


def test_captured_steps_are_kept_in_a_folder(tmp_path):
    for _ in range(2):
        line = Line()
        trained(line, options=poptorch.Options().enableExecutableCaching(str(tmp_path)))(torch.ones(1), torch.ones(1))
        assert line.slope.item() == 1.0
    assert len(list(tmp_path.iterdir())) == 1
