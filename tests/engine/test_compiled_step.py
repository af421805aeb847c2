"""A compiled step on the processor: its calls, its description, its state and its errors."""

import sys
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo.capture.arguments import Arguments
from popgeo.engine import bind_step
from popgeo.engine.backend import Backend, backend_of, device_of, devices_of
from popgeo.engine.compile_step import compile_forward, compile_step
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.step_options import StepOptions
from popgeo.engine.step_recipe import Recipe
from tests.support.fake_cuda import FakeCuda


class Line(nn.Module):
    """A trained slope, a frozen one, and one that the optimizer does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.frozen, self.other = (nn.Parameter(torch.ones(())) for _ in range(3))
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return ((self.trained + self.frozen + self.other) * x - y).mean()


def line_step(**given: object) -> tuple[Line, CompiledStep]:
    model = Line()
    optimizer = torch.optim.SGD([model.trained, model.frozen], lr=0.25)
    return model, compile_step(model, optimizer, **given)


def test_a_step_is_called_trains_what_the_optimizer_holds_and_says_so():
    x, y = torch.full((4,), 2.0), torch.zeros(4)
    model, step = line_step()
    assert repr(step) == "CompiledStep(Line: training, backend cpu, not compiled yet, micro-batches per call: 1)"
    assert (step.calls, step.compile_seconds, step.loss_scale) == (0, 0.0, None)
    assert step.compile(y=y, x=x) is step
    assert 0 < step.compile_seconds < 600
    assert type(step.bound.runner.usual) is GraphRunner
    compiled_in = step.compile_seconds
    assert step.compile(x, y) is step
    assert step.compile_seconds == compiled_in  # it was compiled already
    assert repr(step).startswith("CompiledStep(Line: training, backend cpu, 0 calls")
    assert step(x, y).item() == 6.0
    assert repr(step).startswith("CompiledStep(Line: training, backend cpu, 1 call, ")
    assert step(y=y, x=x).item() == 5.0  # the slope has gone down by 0.25 x 2
    assert repr(step).startswith("CompiledStep(Line: training, backend cpu, 2 calls, ")
    assert ", ," not in repr(step)
    assert [p.item() for p in (model.trained, model.frozen, model.other)] == [0.0, 1.0, 1.0]
    assert step.loss_scale is None
    with pytest.raises(ValueError, match=r"`x` is float32\[5\], but the model was compiled for float32\[4\]\. .*reset"):
        step.compile(torch.zeros(5), torch.zeros(5))
    with pytest.raises(ValueError, match=r"call reset\(\) and compile again"):
        step(torch.zeros(5), torch.zeros(5))
    assert step.calls == 2
    held = model.trained.data_ptr()
    step.reset()
    assert model.trained.data_ptr() == held  # it is its owner's, before and after
    assert repr(step) == "CompiledStep(Line: training, backend cpu, not compiled yet, micro-batches per call: 1)"
    step(torch.full((5,), 2.0), torch.zeros(5))
    assert model.trained.item() == -0.5


def test_a_single_argument_and_a_mapping_of_any_kind_are_examples_too():
    class Named(Mapping):
        def __getitem__(self, name: str) -> Tensor:
            return {"input": torch.zeros(2, 3)}[name]

        def __iter__(self):
            return iter(["input"])

        def __len__(self) -> int:
            return 1

    linear = nn.Linear(3, 2)
    for example in (torch.zeros(2, 3), (torch.zeros(2, 3),), Named()):
        step = compile_forward(linear, example)
        assert repr(step).startswith("CompiledStep(Linear: forward, backend cpu, 0 calls")
    x = torch.randn(2, 3)
    torch.testing.assert_close(step(x), linear(x).detach())
    assert compile_forward(linear).compile_seconds == 0.0  # compiled when it is first called


@pytest.mark.parametrize(
    ("function", "given", "named"),
    [
        (lambda x, y, *more: x - y + sum(more), 4, {}),
        (lambda x, *more, scale=2.0, shift=None: scale * x - sum(more), 3, {}),
        (lambda x, *more, scale, shift=None: x - sum(more) + shift - scale, 1, {"shift": 3, "scale": 2}),
        (lambda *more: more[0] - sum(more[1:]), 3, {}),
        (lambda x, y=None: x if y is None else x - y, 1, {}),
    ],
)
def test_later_calls_are_not_bound_to_the_signature_again(monkeypatch: pytest.MonkeyPatch, function, given, named):
    step = CompiledStep(Recipe(function=function, options=StepOptions()))

    def call(number: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        return list(torch.rand(given, 2) + number), {name: torch.rand(2) + at for name, at in named.items()}

    args, kwargs = call(0)
    torch.testing.assert_close(step(*args, **kwargs), function(*args, **kwargs))
    args, kwargs = call(1)
    monkeypatch.setattr(Arguments, "of", None)
    torch.testing.assert_close(step(*args, **kwargs), function(*args, **kwargs))


def test_the_order_of_a_dictionarys_parts_does_not_matter():
    class Difference(nn.Module):
        def forward(self, parts: dict[str, Tensor]) -> Tensor:
            return parts["a"] - parts["b"]

    a, b = torch.full((2,), 5.0), torch.full((2,), 3.0)
    step = compile_forward(Difference(), ({"a": a, "b": b},))
    assert step({"b": b, "a": a}).tolist() == step({"a": a, "b": b}).tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"call reset\(\) and compile again"):
        step({"a": a})


def test_replicas_share_a_call_and_a_scale_that_follows_the_gradients_is_shown():
    options = popgeo.Options(replication_factor=2, loss_scaling="dynamic", output_mode="all")
    x, y = torch.tensor([1.0, 1.0, 3.0, 3.0]), torch.zeros(4)
    model, step = line_step(example_batch=(x, y), options=options)
    assert str(step.loss_scale) in repr(step)
    assert step(x, y).tolist() == [3.0, 9.0]
    assert model.trained.item() == 1.0 - 0.25 * 2.0


def test_the_mode_of_a_step_is_that_in_which_the_model_was_given():
    class Dropped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if self.training else x

    model = Dropped()
    training, evaluating = compile_forward(model.train()), compile_forward(model.eval())
    assert [training(torch.zeros(1)).item(), evaluating(torch.zeros(1)).item()] == [1, 0]
    assert not model.training


@pytest.mark.parametrize("backend", ["cpu", "inductor", Backend.CPU])
def test_all_tensors_lie_on_the_processor(backend):
    assert device_of(nn.Identity(), Backend(backend)) == torch.device("cpu")
    assert device_of(nn.BatchNorm1d(2), Backend(backend)) == torch.device("cpu")
    name = Backend(backend).value
    message = (
        rf"^The model is on meta, and backend='{name}' runs on cpu\. Call model\.to\('cpu'\) before the optimizer is "
        r"made; without backend=, compile_step and compile_forward run it on its GPU\.$"
    )
    with pytest.raises(ValueError, match=message):
        compile_forward(nn.Linear(1, 1, device="meta"), backend=backend)
    with pytest.raises(ValueError, match=r"^The model is on cpu, meta, and"):
        device_of(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta")), Backend(backend))


def on(*devices: str) -> SimpleNamespace:
    """Return a stand-in for a model on devices that this machine may not have."""
    tensors = [SimpleNamespace(device=torch.device(device)) for device in devices]
    return SimpleNamespace(parameters=lambda: tensors[:1], buffers=lambda: tensors[1:])


def test_a_captured_step_lies_on_one_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of(on("cuda:1", "cuda:1"), Backend.CUDA) == torch.device("cuda:1")
    assert device_of(on(), Backend.CUDA) == torch.device("cuda")
    message = r"^The model is on cpu, and backend='cuda' runs on cuda\. Call model\.to\('cuda'\) before .* is made\.$"
    with pytest.raises(ValueError, match=message):
        device_of(on("cpu"), Backend.CUDA)
    with pytest.raises(ValueError, match=r"^The model is on cuda:0, cuda:1, and"):
        device_of(on("cuda:0", "cuda:1"), Backend.CUDA)


def test_the_models_device_chooses_the_backend(monkeypatch: pytest.MonkeyPatch):
    assert backend_of(None, devices_of(on("cpu"))) is Backend.CPU
    assert backend_of(None, devices_of(on("cuda:1", "cuda:1"))) is Backend.CUDA
    assert backend_of("inductor", devices_of(on("cuda:1"))) is Backend.INDUCTOR
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match=r"^The model is on cpu, cuda:0, and backend='cuda' runs on cuda\. Call"):
        device_of(on("cpu", "cuda:0"), backend_of(None, devices_of(on("cpu", "cuda:0"))))


def test_every_compiled_step_asks_for_the_models_device(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch):
    for module in ("popgeo.engine.compile_step", "popgeo.ipu.wrap_model"):
        monkeypatch.setattr(sys.modules[module], "devices_of", lambda model: {torch.device("cuda:0")})
    model = Squares()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = [
        popgeo.compile_step(model, optimizer),
        popgeo.compile_forward(model),
        popgeo.training_model(model, optimizer=optimizer),
        popgeo.inference_model(model),
    ]
    assert {step.backend for step in made} == {Backend.CUDA}
    assert popgeo.compile_forward(model, backend="cpu").backend is Backend.CPU
    made[2](torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"runs on a GPU, so no simulated machine .* model\.cpu\(\)"):
        _ = made[2].report
    with pytest.raises(ValueError, match=r"^A step on a GPU .* does not support master_weights\. .* model\.cpu\(\)"):
        popgeo.compile_step(model, optimizer, options=StepOptions(master_weights=True))


class Squares(nn.Linear):
    """A linear layer and the mean of its squares."""

    def __init__(self) -> None:
        super().__init__(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean()


@pytest.mark.parametrize(
    ("version", "reason"), [(None, "this build .* without CUDA"), ("12.0", "the driver shows none")]
)
def test_why_there_is_no_gpu_is_said(monkeypatch: pytest.MonkeyPatch, version: str | None, reason: str):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", version)
    with pytest.raises(ValueError, match=rf"^torch finds no CUDA device: {reason}\. Use backend='cpu'"):
        device_of(on("cpu"), Backend.CUDA)


def test_what_only_this_executor_serves_is_refused_together():
    options = popgeo.Options(replication_factor=2, floating_point_exceptions=True)
    message = (
        r"^backend='inductor' does not support floating_point_exceptions, replication_factor\. Leave it out, or use "
        r"backend='cpu'\.$"
    )
    with pytest.raises(ValueError, match=message):
        compile_forward(nn.Linear(1, 1), backend="inductor", options=options)
    assert compile_forward(nn.Linear(1, 1), backend="cpu", options=options).backend is Backend.CPU
    assert compile_forward(nn.Linear(1, 1), backend="inductor", options=StepOptions(random_seed=3)).calls == 0


def test_a_forward_pass_takes_one_step_at_least():
    with pytest.raises(
        ValueError, match=r"^A forward pass has no gradients to accumulate; set gradient_accumulation to 1, not 2\.$"
    ):
        compile_forward(nn.Linear(1, 1), options=popgeo.Options(gradient_accumulation=2))


def test_each_backend_of_the_processor_has_its_runner(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("popgeo.engine.step_runner.InductorRunner", lambda *given: "inductor's own")
    assert compile_forward(nn.Identity(), torch.zeros(1), "inductor").bound.runner.usual == "inductor's own"
    assert type(compile_forward(nn.Identity(), torch.zeros(1), "cpu").bound.runner.usual) is GraphRunner


@pytest.mark.parametrize("asked", ["report", "pipeline"])
def test_a_step_of_this_computer_alone_has_no_report_and_says_who_has(asked: str):
    step = compile_forward(nn.Linear(1, 1), torch.zeros(2, 1))
    with pytest.raises(ValueError, match=r"no machine accounts for it\. Use popgeo\.training_model"):
        getattr(step, asked)
    with pytest.raises(ValueError, match="has not been compiled"):
        getattr(compile_forward(nn.Linear(1, 1)), asked)


def test_a_step_of_this_computer_alone_is_kept_for_the_next_start(tmp_path, monkeypatch: pytest.MonkeyPatch):
    x, options = torch.randn(2, 1), StepOptions(cache_dir=tmp_path)
    linear = nn.Linear(1, 1)
    expected = compile_forward(linear, options=options)(x)

    def capture_again(*given: object, **named: object) -> None:
        raise AssertionError("It was kept.")

    monkeypatch.setattr(bind_step, "capture_step", capture_again)
    assert torch.equal(compile_forward(linear, options=options)(x), expected)
    with pytest.raises(AssertionError, match="It was kept"):  # autocast makes another step of it
        compile_forward(linear, options=options, autocast=torch.bfloat16)(x)


def test_a_step_of_this_computer_alone_goes_on_from_its_checkpoint(tmp_path):
    x, y = torch.full((4,), 2.0), torch.zeros(4)
    model, step = line_step()
    step(x, y)
    step.save(tmp_path / "one")
    step(x, y)
    other, again = line_step()
    again.load(tmp_path / "one")
    again(x, y)
    assert other.trained.item() == model.trained.item()


def test_another_optimizer_leaves_the_mode_in_which_the_model_was_given():
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return (self.slope * x).sum() + (1 if self.training else 0)

    model = Dropped().train()
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.0))
    model.eval()
    step.set_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    assert step(torch.ones(1)).item() == 2.0
    assert model.slope.item() == 0.5
    assert not model.training
