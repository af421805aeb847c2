"""After a step, each tensor that an owner sees has its own storage, so files and copies hold just its elements."""

import copy
import io
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import popgeo
from popgeo import StepOptions
from popgeo.native import library


class Net(nn.Module):
    """A small encoder next to a large head, with a buffer and a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.encoder, self.head = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 300)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (self.head(self.encoder(self.norm(x)).tanh()) * self.scale - 1).square().mean()


X = torch.linspace(-1, 1, 32).view(8, 4)


def trained(options: StepOptions | None = None, dtype: torch.dtype = torch.float32, kind=torch.optim.AdamW):
    model = Net().to(dtype)
    optimizer = kind(model.parameters(), lr=0.01)
    step = popgeo.compile_step(model, optimizer, options=options)
    for _ in range(3):
        step(X.to(dtype))
    return model, optimizer, step


CHOICES = {
    "usual": {},
    "sums": {"options": StepOptions(gradient_accumulation=2, max_grad_norm=1.0)},
    "mixed": {"options": StepOptions(master_weights=True), "dtype": torch.bfloat16},
    "narrow": {"options": StepOptions(optimizer_state_dtype=torch.bfloat16)},
    "whole": {"kind": torch.optim.Adafactor},
    "double": {"dtype": torch.float64, "kind": torch.optim.RMSprop},
}


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("choice", CHOICES)
def test_each_tensor_has_a_storage_of_its_own(choice: str, kernels: bool, monkeypatch):
    if not kernels:
        monkeypatch.setattr(library, "_switched_off", True)
    model, optimizer, _ = trained(**CHOICES[choice])
    state = [part for one in optimizer.state_dict()["state"].values() for part in one.values()]
    tensors = [*model.state_dict().values(), *(part for part in state if isinstance(part, Tensor))]
    assert len(state) >= 7
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_parameters_and_who_holds_them_keep_their_memory():
    model = Net()
    held = [p.data_ptr() for p in model.parameters()]
    seen = model.head.weight.detach()
    step = popgeo.compile_step(model, torch.optim.AdamW(model.parameters()))
    step(X)
    step.reset()
    step(X)
    assert [p.data_ptr() for p in model.parameters()] == held
    assert torch.equal(seen, model.head.weight)


def test_files_of_a_part_hold_the_part_alone():
    model, optimizer, _ = trained()
    file, fresh = io.BytesIO(), io.BytesIO()
    torch.save(model.encoder.state_dict(), file)
    torch.save(nn.Linear(4, 4).state_dict(), fresh)
    assert file.getbuffer().nbytes == fresh.getbuffer().nbytes
    file, fresh = io.BytesIO(), io.BytesIO()
    torch.save(optimizer.state[model.encoder.bias], file)
    torch.save({key: part.clone() for key, part in optimizer.state[model.encoder.bias].items()}, fresh)
    assert file.getbuffer().nbytes == fresh.getbuffer().nbytes
    again = copy.deepcopy((model, optimizer))
    for mine, theirs in zip(model.parameters(), again[0].parameters(), strict=True):
        assert mine.data_ptr() != theirs.data_ptr()
        assert torch.equal(optimizer.state[mine]["exp_avg"], again[1].state[theirs]["exp_avg"])


def test_safetensors_has_all_of_a_model(tmp_path: Path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, optimizer, _ = trained()
    safetensors.save_model(model, tmp_path / "model.safetensors")
    loaded = safetensors.load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
    state = {f"{n}.{key}": part for n, one in optimizer.state_dict()["state"].items() for key, part in one.items()}
    safetensors.save_file(state, tmp_path / "state.safetensors")
    assert all(
        torch.equal(part, state[key]) for key, part in safetensors.load_file(tmp_path / "state.safetensors").items()
    )


@pytest.fixture
def accelerate():
    module = pytest.importorskip("accelerate")
    yield module
    for state in (module.state.AcceleratorState, module.state.GradientState, module.state.PartialState):
        state._reset_state()


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor])
def test_accelerate_prepares_saves_and_loads(accelerate, kind, precision: str, tmp_path: Path):
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    model = Net()
    prepared = accelerator.prepare(model, kind(model.parameters(), lr=0.01))
    step = popgeo.compile_step(*prepared)
    for _ in range(3):
        step(X)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    accelerator.save_state(str(tmp_path / "state"))
    accelerator.save_model(prepared[0], str(tmp_path / "model"))
    later = [step(X) for _ in range(3)]
    accelerator.load_state(str(tmp_path / "state"))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    again = [step(X) for _ in range(3)]
    assert torch.equal(torch.stack(again), torch.stack(later))
    files = list((tmp_path / "model").glob("*.safetensors"))
    loaded = pytest.importorskip("safetensors.torch").load_file(files[0])
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    with pytest.raises(RuntimeError, match=r"Leave out optimizer\.step\(\)"):
        prepared[1].step()
    step.set_optimizer(prepared[1])
    assert torch.isfinite(step(X))


def test_what_a_step_would_lose_of_accelerate_is_refused(accelerate):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = Net()
    with pytest.raises(ValueError, match=r"options=StepOptions\(gradient_accumulation=4\)"):
        popgeo.compile_step(*accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1)))

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state

    with pytest.raises(ValueError, match=r"Wrapper has not called torch.optim.Optimizer.__init__.* that it wraps"):
        popgeo.compile_step(model, Wrapper(torch.optim.SGD(model.parameters(), lr=0.1)))


@pytest.mark.filterwarnings("ignore")  # of Lightning's own
def test_a_checkpoint_of_lightning_holds_the_weights_once(tmp_path: Path):
    lightning = pytest.importorskip("lightning.pytorch")
    from popgeo.lightning import CompiledModule

    class Lit(CompiledModule):
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    module = Lit(Net())
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, **quiet)
    trainer.fit(module, torch.utils.data.DataLoader([X, X, X], batch_size=None))
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    held = torch.load(tmp_path / "whole.ckpt", weights_only=False)
    state = [part for one in held["optimizer_states"][0]["state"].values() for part in one.values()]
    tensors = [*held["state_dict"].values(), *state]
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)
    assert all(torch.equal(held["state_dict"][name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(
    "options", [StepOptions(master_weights=True), StepOptions(optimizer_state_dtype=torch.float32)]
)
def test_weights_of_narrow_types_are_their_owners_too(options: StepOptions):
    model, _, step = trained(options, torch.bfloat16)
    average = copy.deepcopy(model)
    for own, other in zip(model.parameters(), average.parameters(), strict=True):
        own.data, other.data = other.data.zero_(), own.data
    before = [p.detach().clone() for p in average.parameters()]
    step(X.bfloat16())
    assert all(map(torch.equal, before, average.parameters()))
    assert all(p.abs().max() < 0.1 for p in model.parameters())
    model.head.bias.data = model.head.weight.data[:, 0]
    with pytest.raises(ValueError, match="steps parameters that share memory; untie them"):
        step(X.bfloat16())
