"""Programs that users reported because they ran before, or on an IPU, and failed here."""

import copy
import io
import subprocess

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from popgeo.compat import poptorch
from tests.conftest import REPOSITORY
from tests.support import quick_python

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


class Blocks(nn.Module):
    """Model with one linear layer per block, on given IPUs."""

    def __init__(self, ipus):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in ipus)
        for number, ipu in enumerate(ipus):
            poptorch.BeginBlock(self.layers[number], f"block{number}", ipu_id=ipu)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x, poptorch.identity_loss(x.square().mean(), reduction="none")


# Number of pipeline stages: changes of IPU plus one. Consecutive stages on one IPU count once.
@pytest.mark.parametrize(("ipus", "stages"), [((0, 0, 1, 1), 2), ((0, 1, 0, 1), 4), ((0, 0, 1, 1, 2, 2, 3, 3), 4)])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_a_pipeline_is_as_deep_as_the_ipu_changes(ipus, stages, training, told):
    needed = 2 * stages - 1 if training else stages
    for count in (needed, needed - 1):
        options, wrap = poptorch.Options(), poptorch.trainingModel if training else poptorch.inferenceModel
        options = options if training else options.deviceIterations(count)
        options.Training.gradientAccumulation(count if training else 1)
        if told:  # as in published programs
            parts = [poptorch.Stage(f"block{number}").ipu(ipu) for number, ipu in enumerate(ipus)]
            options.setExecutionStrategy(poptorch.PipelinedExecution(*parts))
        step, x = wrap(Blocks(ipus), options), torch.ones(count, 4)
        if count == needed:
            step(x)
        else:
            with pytest.raises(poptorch.Error, match=rf"greater than or equal to .* pipeline stages \({needed}\)"):
                step(x)


LAYERS = {
    "Linear": lambda: (nn.Linear(4, 3), X),
    "Conv1d": lambda: (nn.Conv1d(2, 3, 2), X.reshape(4, 2, 4)),
    "LayerNorm": lambda: (nn.LayerNorm(4), X),
    "GroupNorm": lambda: (nn.GroupNorm(2, 4), X),
    "BatchNorm1d": lambda: (nn.BatchNorm1d(4), X),
    "BatchNorm2d": lambda: (nn.BatchNorm2d(2), X.reshape(4, 2, 2, 2)),
    "InstanceNorm1d": lambda: (nn.InstanceNorm1d(2, affine=True, track_running_stats=True), X.reshape(4, 2, 4)),
    "GRU": lambda: (nn.GRU(4, 3), X.reshape(4, 2, 4)),
    "LSTM": lambda: (nn.LSTM(4, 3, num_layers=2, bidirectional=True), X.reshape(4, 2, 4)),
    "RNN": lambda: (nn.RNN(4, 3), X.reshape(4, 2, 4)),
    "GRUCell": lambda: (nn.GRUCell(4, 3), X),
    "Bilinear": lambda: (nn.Bilinear(4, 4, 2), X),
    "Attention": lambda: (nn.MultiheadAttention(4, 2), X.reshape(4, 2, 4)),
}


class First(nn.Module):
    """Model that returns the first result of a layer, and its loss."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        several = isinstance(self.layer, nn.MultiheadAttention), isinstance(self.layer, nn.Bilinear)
        y = self.layer(*[x] * (3 if several[0] else 2 if several[1] else 1))
        y = y[0] if isinstance(y, tuple) else y
        return y, poptorch.identity_loss(y.float().square().mean(), reduction="none")


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("of_weights", "of_input"),
    [(torch.float16, torch.float32), (torch.float32, torch.float16), (torch.float64, torch.float64)],
)
def test_weights_and_inputs_of_different_types_give_the_type_of_the_input_and_train(name, of_weights, of_input):
    torch.manual_seed(0)
    layer, x = LAYERS[name]()
    expected, mixed = First(copy.deepcopy(layer)), First(layer.to(of_weights))
    rough = {"atol": 5e-3, "rtol": 5e-3} if torch.float16 in (of_weights, of_input) else {"atol": 1e-5, "rtol": 1e-5}
    got = poptorch.inferenceModel(copy.deepcopy(mixed).eval())(x.to(of_input))[0]
    assert got.dtype is (torch.float32 if of_input is torch.float64 else of_input)  # an IPU has no float64
    assert_close(got.float(), copy.deepcopy(expected).eval()(x)[0], **rough)
    plain = torch.optim.SGD(expected.parameters(), lr=0.1)
    step = poptorch.trainingModel(mixed, optimizer=torch.optim.SGD(mixed.parameters(), lr=0.1))
    for _ in range(2):
        step(x.to(of_input))
        plain.zero_grad()
        expected(x)[1].backward()
        plain.step()
    for key, value in mixed.state_dict().items():  # includes running statistics
        assert_close(value.float(), expected.state_dict()[key].float(), **rough)


@pytest.mark.parametrize("package", ["poptorch", "torch_cluster"])
@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_nearest_takes_lists_and_checks_their_lengths_inside_of_a_model_too(package, kind, torch_cluster):
    nearest = {"poptorch": poptorch, "torch_cluster": torch_cluster}[package].nearest

    class Model(nn.Module):
        def __init__(self, of_y):
            super().__init__()
            self.clouds = kind([0, 0, 1]), kind(of_y)

        def forward(self, x, y):
            return nearest(x, y, *self.clouds)

    x, y = torch.tensor([[0.0], [4.0], [9.0]]), torch.tensor([[5.0], [8.0]])
    assert poptorch.inferenceModel(Model([0, 1]))(x, y).tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match="got 2 points, but clouds for 3 points"):
        poptorch.inferenceModel(Model([0, 1, 1]))(x, y)


@pytest.mark.parametrize("kind", [poptorch.optim.SGD, torch.optim.SGD, poptorch.optim.AdamW, torch.optim.Adam])
def test_a_step_of_the_optimizer_that_is_left_over_changes_nothing(kind):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.factor = nn.Linear(4, 3), 1.0

        def forward(self, x):
            y = self.factor * self.layer(x)
            return y, poptorch.identity_loss(y.square().mean(), reduction="none")

    plain, weights = Scaled(), []
    for leftover in (False, True):
        model = copy.deepcopy(plain)
        optimizer = kind(model.parameters(), lr=0.1)
        step = poptorch.trainingModel(model, optimizer=optimizer)
        for number in range(6):
            if leftover:
                optimizer.zero_grad()
            if number == 3:
                model.factor = 2.0  # the next call compiles the step again
            if number == 4:
                step.destroy()
            step(X)
            if leftover:
                optimizer.step()
        weights.append(model.layer.weight)
    assert torch.equal(*weights)


@pytest.mark.parametrize("kind", [poptorch.optim.SGD, torch.optim.SGD, poptorch.optim.AdamW, torch.optim.Adam])
def test_what_a_program_sets_on_its_optimizer_is_ignored_with_one_warning(kind, capfd):
    model = First(nn.Linear(4, 3))
    optimizer = kind(model.parameters(), lr=0.1)
    optimizer.noted_before = True
    step = poptorch.trainingModel(model, optimizer=optimizer)
    step(X)
    optimizer.step, optimizer.param_groups[0]["initial_lr"] = 0, 0.1
    before = model.layer.weight.detach().clone()
    for _ in range(2):
        step.setOptimizer(optimizer)
        step(X)
    said = capfd.readouterr().err
    assert said.count(f"Ignoring unexpected optimizer attribute in {kind.__name__} optimizer: ['step']") == 1
    assert said.count("Ignoring unexpected group 0 attribute in") == 1
    assert not torch.equal(before, model.layer.weight)
    step = poptorch.trainingModel(copy.deepcopy(model), poptorch.Options().relaxOptimizerAttributesChecks())
    step(X)
    step._optimizer.lr = 0.5
    step.setOptimizer(step._optimizer)
    assert "unexpected" not in capfd.readouterr().err


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("compiled", "given", "says"),
    [
        ((ONE,), (torch.ones(2),), r"Shape mismatch for x: expected torch.Size\(\[1\]\) but got torch.Size\(\[2\]\)"),
        ((ONE,), (ONE.long(),), "Data type mismatch for x: expected torch.float32 but got torch.int64"),
        ((ONE, ONE), (ONE, None), "Type mismatch for z: expected <class 'torch.Tensor'> but got <class 'NoneType'>"),
        ((ONE, 3), (ONE, 4), "Value mismatch for z: expected 3 but got 4"),
        ((ONE, {"x": ONE, "y": 2}), (ONE, {"y": 2}), "Keys mismatch for z: Missing arguments: x"),
        ((ONE, {"y": 2}), (ONE, {"y": 2, "a": 1}), "Keys mismatch for z: Unexpected arguments: a"),
        ((ONE, [ONE, ONE]), (ONE, [ONE]), "Length mismatch for z: expected 2 elements but got 1"),
        ((ONE, [ONE, (ONE,)]), (ONE, [ONE, (torch.ones(3),)]), r"Shape mismatch for z\[1\]\[0\]: expected"),
    ],
)
def test_a_call_of_another_form_is_refused_in_poptorchs_words_and_popgeos(compiled, given, says):
    class Model(nn.Module):
        def forward(self, x, z=None):
            return x * 2

    step = poptorch.inferenceModel(Model())
    step(*compiled)
    with pytest.raises(poptorch.Error, match=says + r".*the model was compiled for.*call destroy\(\)"):
        step(*given)
    assert step(*compiled).item() == 2


def test_torchs_words_for_wrong_arguments_name_tensors():
    class Model(nn.Module):
        def forward(self, x):
            return torch.scatter(x, dim="no dimension", index=x)

    with pytest.raises(TypeError, match=r"(?s)scatter\(\).*Tensor") as told:
        poptorch.inferenceModel(Model())(ONE)
    assert "FakeTensor" not in str(told.value)


def verlet(positions, velocities):
    positions = positions.requires_grad_()
    (slope,) = torch.autograd.grad(positions.pow(4).sum(), positions)
    velocities = velocities - 0.01 * slope
    return [positions + 0.01 * velocities, velocities]


@pytest.mark.parametrize("marks", [False, True])
def test_a_loop_has_gradients_in_its_body_in_an_inference_model(marks):
    class Model(nn.Module):
        def forward(self, positions, velocities):
            if marks:  # forces are computed before the loop, too
                torch.autograd.grad(positions.requires_grad_().pow(2).sum(), positions)
            return poptorch.for_loop(3, verlet, [positions, velocities])

    expected = [X, -X]
    for _ in range(3):
        expected = [part.detach() for part in verlet(*(part.detach() for part in expected))]
    for got, part in zip(poptorch.inferenceModel(Model())(X.clone(), -X), expected, strict=True):
        assert_close(got, part)


def test_a_gradient_that_would_have_to_pass_a_loop_is_refused():
    class Slope(nn.Module):
        def forward(self, x):
            twice = poptorch.for_loop(1, lambda x: x * 2, [x.requires_grad_()])[0]
            return torch.autograd.grad((twice + x).sum(), x)

    class Trained(First):
        def forward(self, x):
            return super().forward(poptorch.for_loop(1, lambda x: x * 2, [self.layer(x)])[0])

    for make in (lambda: poptorch.inferenceModel(Slope()), lambda: poptorch.trainingModel(Trained(nn.Linear(4, 4)))):
        with pytest.raises(poptorch.Error, match=r"for_loop\(\) is only supported in inference models"):
            make()(X)


def test_lightning_asks_whether_a_model_is_compiled_by_its_executable():
    step = poptorch.inferenceModel(nn.ReLU())
    assert step._executable is None
    step(ONE)
    assert step._executable is step.compiled


def test_a_scale_that_follows_gradients_shows_by_what_factor_it_has_changed():
    options, model = poptorch.Options(), First(nn.Linear(4, 3))
    options.Training.setAutomaticLossScaling(True)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    step = poptorch.trainingModel(model, options, optimizer)
    step(X)
    step.compiled.loss_scale.tensor.div_(4)
    state = optimizer.state_dict()
    assert state["ipu_param"]["lossScaleUpdateFactor"] == 0.25
    torch.save(optimizer, io.BytesIO())  # with its state


def test_empty_memory_holds_zeros_in_a_program_that_is_run(tmp_path):
    script = tmp_path / "old.py"
    lines = ["import torch", "torch.full((1000,), 7)", "held = torch.empty(1000, dtype=torch.int64)"]
    lines += ["made = torch.empty((2, 2), requires_grad=True)", "print(held.unique().tolist(), made.requires_grad)"]
    script.write_text("\n".join(lines))
    command = [*quick_python.command(), "-m", "popgeo.compat", str(script)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout == "[0] True\n", done.stderr


@pytest.mark.parametrize(("x", "size"), [(torch.ones(4, 2), 4), (torch.tensor(1.0), 1)])
def test_a_batch_that_cannot_be_shared_out_is_refused_in_poptorchs_words_and_popgeos(x, size):
    options = poptorch.Options().deviceIterations(3)
    says = rf"In the input torch.Size\(.*\), the batch dimension \({size}\) must be a multiple of Options.deviceItera"
    with pytest.raises(AssertionError, match=says + r"tions\(3\) .* = 3 because .* argument `input` has shape"):
        poptorch.inferenceModel(nn.ReLU(), options)(x)


def line(optimizer=poptorch.optim.SGD, **settings):
    """Return a line through the origin, and its training model."""
    torch.manual_seed(0)
    model = First(nn.Linear(4, 1, bias=False))
    return model, poptorch.trainingModel(model, optimizer=optimizer(model.parameters(), lr=0.1, **settings))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, lambda: torch.set_grad_enabled(False)])
@pytest.mark.parametrize("is_compiled_before", [False, True])
def test_a_training_model_trains_where_gradients_are_switched_off(context, is_compiled_before):
    (model, step), (other, expected) = line(), line()
    if is_compiled_before:
        step(X), expected(X)
    with context():
        step(X)
    expected(X)
    assert_close(dict(model.named_parameters()), dict(other.named_parameters()))
    assert "a trainingModel within torch.no_grad()" in set(poptorch.compat_report().asked)


class OnIpu(nn.Module):
    """Model that makes tensors on the device `ipu`, as old programs do."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return x + self.make(x)


ON_IPU = {
    "ones": lambda x: torch.ones(8, 4, device="ipu"),
    "numbered": lambda x: torch.full((4,), 2.0, device="ipu:0"),
    "a device": lambda x: torch.arange(4.0, device=torch.device("ipu")),
    "like": lambda x: torch.zeros_like(x, device="ipu"),
    "to": lambda x: x.to("ipu").to(torch.device("ipu", 1)),
    "ipu()": lambda x: x.ipu(),
    "new": lambda x: x.new_ones(4, device="ipu"),
}


@pytest.mark.parametrize("make", ON_IPU.values(), ids=ON_IPU)
def test_a_model_makes_tensors_on_the_device_ipu(make):
    step, plain = poptorch.inferenceModel(OnIpu(make)), poptorch.compiling.IpuDeviceMode()
    with plain:
        expected = OnIpu(make)(X)
    assert_close(step(X), expected)
    assert step(X).device.type == "cpu"


def test_a_default_device_ipu_is_one_too():
    class Model(nn.Module):
        def forward(self, x):
            with torch.device("ipu"):
                return x + torch.ones(4)

    assert_close(poptorch.inferenceModel(Model())(X), X + 1)


@pytest.mark.parametrize("make", [torch.ones, torch.randn, torch.empty, torch.full])
def test_outside_of_a_model_the_device_ipu_is_refused(make):
    with pytest.raises(
        poptorch.Error, match=r"only inside of a model, while it is compiled\. Elsewhere leave device= o"
    ):
        make((2,), *[1.0] * (make is torch.full), device="ipu")


def test_masks_of_bytes_choose_as_boolean_ones_do():
    class Model(nn.Module):
        def forward(self, x, mask, value):
            x = x.clone()
            x[mask] = value
            x[mask, 1] = 2 * value
            return x

    step = poptorch.inferenceModel(Model())
    for places in ([1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 0, 7]):
        mask = torch.tensor(places, dtype=torch.uint8)
        assert_close(step(X[:3], mask, torch.tensor(7.0)), Model()(X[:3], mask.bool(), torch.tensor(7.0)))


class OwnStep(poptorch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)


@pytest.mark.parametrize(("kind", "base"), [(OwnStep, "SGD"), (type("Own", (torch.optim.Adam,), {}), "Adam")])
def test_an_optimizer_of_the_programs_own_is_reported_by_its_class(kind, base, caplog):
    line(kind)
    assert (
        f"would update the weights as {base} does: Poptorch does not run Python optimizer code directly." in caplog.text
    )


def test_optimizers_of_poptorch_and_torch_are_not_reported(caplog):
    line(poptorch.optim.Adam)
    line(torch.optim.SGD)
    assert "directly" not in caplog.text


def following(**settings):
    options, model = poptorch.Options(), First(nn.Linear(4, 3))
    options.Training.setAutomaticLossScaling(True)
    options.anchorTensor("scale", "finalLossScale")
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=8.0)
    step = poptorch.trainingModel(model, options, optimizer)
    step.compile(X)
    return step, optimizer


def test_the_factor_of_a_loss_scale_is_part_of_a_state_and_comes_back_with_it():
    step, optimizer = following()
    step.compiled.loss_scale.tensor.div_(4)
    state = optimizer.state_dict()
    assert state["ipu_state"]["lossScaleUpdateFactor"] == 0.25
    step(X)
    assert step.getAnchoredTensor("scale") == 2
    other, resumed = following()
    resumed.load_state_dict(state)
    assert other.compiled.loss_scale.value == 2


def test_a_factor_does_not_change_a_constant_scale():
    _, step = line(loss_scaling=8.0)
    step.compile(X)
    state = step._optimizer.state_dict()
    state["ipu_state"]["lossScaleUpdateFactor"] = torch.tensor(0.5)
    step._optimizer.load_state_dict(state)
    assert "a state with lossScaleUpdateFactor" in set(poptorch.compat_report().asked)


class Star(nn.Module):
    def forward(self, x, *more, y=None, **named):
        return x + sum(more) + sum(named.values())


@pytest.mark.parametrize(
    ("first", "later", "says"),
    [
        (((X, X, X), {}), ((X, X), {}), "Number of positional arguments mismatch: expected 3 arguments but got 2."),
        (((X,), {}), ((X, X), {}), "Number of positional arguments mismatch: expected 1 arguments but got 2."),
        (((X,), {"u": 5}), ((X,), {"u": 3}), "Value mismatch for u: expected 5 but got 3."),
        (
            ((X,), {"u": X}),
            ((X,), {"w": X}),
            "Keys mismatch for the call: Unexpected arguments: w. Missing arguments: u",
        ),
        (((X, X), {}), ((X, X[:1]), {}), r"Shape mismatch for more\[0\]: expected torch.Size\(\[8, 4\]\) but got"),
        (
            ((X,), {"y": X}),
            ((X,), {}),
            "Type mismatch for y: expected <class 'torch.Tensor'> but got <class 'NoneType'>",
        ),
    ],
)
def test_another_call_is_refused_by_the_number_of_its_arguments_or_their_names(first, later, says):
    step = poptorch.inferenceModel(Star())
    step(*first[0], **first[1])
    with pytest.raises(poptorch.Error, match=says):
        step(*later[0], **later[1])


def test_a_module_takes_autocast_of_poptorch_2():
    layer = nn.Linear(2, 2)
    assert layer.autocast(enabled=True) is layer
    assert "Module.autocast" in set(poptorch.compat_report().asked)
