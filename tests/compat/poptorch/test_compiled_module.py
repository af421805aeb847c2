"""Wrapped modules: compilation, attachment, files and release as in PopTorch."""

import copy
import pickle

import pytest
import torch
from torch import nn

from popgeo.compat import poptorch
from tests.support.poptorch_models import Add, Counter, Line, trained


def test_a_batch_that_does_not_divide_is_refused_before_compiling():
    options = poptorch.Options().deviceIterations(2).replicationFactor(3)
    model = poptorch.inferenceModel(Line(), options)
    for kind in (AssertionError, ValueError):
        with pytest.raises(kind, match=r"Invalid batch dimension: argument `x` has shape \[4\].* multiple of 6 ="):
            model(torch.zeros(4))
    assert not model.isCompiled()


def test_destroying_lets_a_model_be_compiled_for_other_shapes():
    model = poptorch.inferenceModel(Add())
    assert model(torch.ones(2), torch.ones(2)).tolist() == [2.0, 2.0]
    model.destroy()
    assert not model.isCompiled()
    assert model(torch.ones(3), torch.ones(3), scale=2).tolist() == [4.0, 4.0, 4.0]


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
    training(x, x)  # attaches again
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
    assert model(torch.ones(1)).item() == 1.0  # compiling does not run the model


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
    assert type(line) is Line
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


@pytest.mark.filterwarnings("ignore:The model is in the mode of")
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
    with pytest.raises(poptorch.Error, match=r"executor\.compiled\.graph has"):
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
    loaded(x, x)  # the momentum has been kept, too: 0.5 - 0.25 * (-2 * 0.5 - 1)
    assert loaded.model.slope.item() == line.slope.item() == 1.0
    with pytest.raises(poptorch.Error, match=r"is float32\[2\], but the model was compiled for float32\[1\]"):
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
    model = poptorch.load(filename=path, edit_opts_fn=lambda options: options.deviceIterations(2))
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
    assert line.slope.item() == pytest.approx(0.02)  # the default rate is 0.01
    assert executor.slope is line.slope


def test_captured_steps_are_kept_in_a_folder(tmp_path):
    for _ in range(2):
        line = Line()
        trained(line, options=poptorch.Options().enableExecutableCaching(str(tmp_path)))(torch.ones(1), torch.ones(1))
        assert line.slope.item() == 1.0
    assert len(list(tmp_path.iterdir())) == 1
