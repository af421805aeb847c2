"""Captured steps on a GPU train as eager ones do. Without a GPU, they run on a fake of the CUDA calls."""

import contextlib
import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import popgeo
from popgeo import ops
from popgeo.nn import GPS, PaiNN, PairInteractionGraph, l1_loss
from popgeo.ops.scatter_plan import EdgePlan
from tests.support.captured_on_ranks import Forces, make_call
from tests.support.fake_cuda import NoWaits, install
from tests.support.small_models import make_batch

# A warning of torch or Triton that is new is no failure.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore:norm of the model takes means")]
GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CHOSEN = {} if GPU.type == "cuda" else {"backend": "cuda"}  # a model on a GPU needs no choice


@pytest.fixture(autouse=True)
def _a_fake_replaces_a_gpu_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    if GPU.type == "cpu":
        install(monkeypatch)


@contextlib.contextmanager
def no_waits(is_asked: bool = True) -> Iterator[None]:
    """Raise an error for each wait for the device, if this is asked for."""
    if not is_asked:
        yield
    elif GPU.type == "cpu":
        with NoWaits():
            yield
    else:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


class Net(nn.Module):
    """A small SchNet made of popgeo's ops, with dropout and a batch norm."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.filters, self.norm = nn.Embedding(10, 8), nn.Linear(1, 8), nn.BatchNorm1d(8)
        self.readout, self.dropout = nn.Linear(8, 1), dropout

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        plan = EdgePlan.from_edge_index(edge_index, z.shape[0])
        length = (pos[edge_index[0]] - pos[edge_index[1]]).square().sum(-1, keepdim=True)
        h = self.embedding(z)
        h = h + ops.cfconv(h, self.filters(length).tanh().to(h.dtype), *edge_index, z.shape[0], plan)
        h = nn.functional.dropout(self.norm(h), self.dropout, self.training)
        energy = ops.scatter(self.readout(h).to(y.dtype), batch, 0, dim_size=y.shape[0]).squeeze(-1)
        return energy, (energy - y).abs().mean()


def on_gpu(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {name: tensor.to(GPU) for name, tensor in make_batch(seed, dtype).items()}


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adadelta", "ASGD"])
def test_captured_steps_train_as_eager_ones_do(kind: str):
    # In float64, since optimizers that divide by a gradient's size turn rounding in float32 into 1 % within ten steps.
    # The captured optimizer keeps its learning rate and its step count in float32.
    torch.manual_seed(0)
    model = Net().double().to(GPU)
    twin = copy.deepcopy(model)
    own, optimizer = (getattr(torch.optim, kind)(one.parameters(), lr=1e-2) for one in (model, twin))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in (own, optimizer)]
    step = popgeo.compile_step(model, own, make_batch(0, torch.float64), "cuda")
    for seed in range(10):
        loss = step(**make_batch(seed, torch.float64))[1]  # inputs in the processor's memory
        optimizer.zero_grad()
        wanted = twin(**on_gpu(seed, torch.float64))[1]
        wanted.backward()
        optimizer.step()
        for schedule in schedules:
            schedule.step()
        torch.testing.assert_close(loss, wanted.detach(), rtol=1e-4, atol=1e-5)
    assert "one CUDA graph, captured once" in repr(step)
    torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean, rtol=1e-3, atol=1e-5)


class Molecular(nn.Module):
    """One of popgeo's models with its loss, on molecules."""

    def __init__(self, model: nn.Module, finds_edges: bool) -> None:
        super().__init__()
        self.model, self.finds_edges = model, finds_edges

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> Tensor:
        if not isinstance(self.model, popgeo.SchNet | PaiNN):
            out = self.model(torch.cat([pos, pos.cos()], 1), edge_index, batch=batch, num_graphs=y.shape[0])
        elif self.finds_edges:
            out = self.model(z, pos, batch, num_graphs=y.shape[0])
        else:
            src, dst = edge_index
            dst = torch.where(src == dst, (dst + 1) % z.shape[0], dst)  # no atom is its own neighbor
            both = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
            out = self.model(z, pos, batch, both, num_graphs=y.shape[0])
        return l1_loss(out.flatten(), y)


MODELS = {
    "SchNet, edges": lambda: popgeo.SchNet(8, 8, 2, 6, 5.0),
    "SchNet, knn": lambda: popgeo.SchNet(8, 8, 2, 6, 5.0, interaction_graph=popgeo.KNNInteractionGraph(4, 5.0)),
    "PaiNN, pairs": lambda: PaiNN(8, 1, 6, 5.0, PairInteractionGraph(5.0)),
    "GCN": lambda: popgeo.GCN(6, 8, 2, out_channels=1, readout="add"),
    "GIN": lambda: popgeo.GIN(6, 8, 2, out_channels=1, readout="add", norm="batch_norm"),
    "GPS": lambda: GPS(6, 8, 1, out_channels=1, heads=2, conv="gin", readout="add", max_num_nodes=16),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_in_captured_steps_as_in_eager_ones(name: str):
    torch.manual_seed(0)
    model = Molecular(MODELS[name](), finds_edges="edges" not in name).double().to(GPU)
    twin = copy.deepcopy(model)
    own, optimizer = (torch.optim.SGD(one.parameters(), lr=1e-3) for one in (model, twin))
    step = popgeo.compile_step(model, own, make_batch(0, torch.float64), "cuda")
    for seed in range(6):
        loss = step(**make_batch(seed, torch.float64))
        optimizer.zero_grad()
        wanted = twin(**on_gpu(seed, torch.float64))
        wanted.backward()
        optimizer.step()
        torch.testing.assert_close(loss, wanted.detach(), rtol=1e-5, atol=1e-6)
    assert "one CUDA graph, captured once" in repr(step)


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=str)
def test_in_half_precision_the_loss_falls(autocast: torch.dtype):
    torch.manual_seed(0)
    model = Net().to(GPU)
    options = popgeo.StepOptions(loss_scaling=1024.0 if autocast is torch.float16 else 1.0)
    step = popgeo.compile_step(
        model, torch.optim.Adam(model.parameters(), lr=1e-2), backend="cuda", options=options, autocast=autocast
    )
    losses = [step(**on_gpu(0))[1].item() for _ in range(60)]
    assert losses[-1] < 0.7 * losses[0]


def test_random_numbers_advance_with_each_replay():
    model = Net(dropout=0.5).to(GPU)
    step = popgeo.compile_step(model, torch.optim.SGD(model.parameters(), lr=0.0), backend="cuda")
    assert len({step(**on_gpu(0))[1].item() for _ in range(8)}) == 8


def test_forces_clipping_and_an_average_are_in_the_graph_and_no_call_waits():
    torch.manual_seed(0)
    model = Forces().to(GPU)
    twin = copy.deepcopy(model)
    averages = [AveragedModel(one, multi_avg_fn=get_ema_multi_avg_fn(0.75)) for one in (model, twin)]
    own, optimizer = (torch.optim.Adam(one.parameters(), lr=2**-5) for one in (model, twin))
    options = popgeo.StepOptions(max_grad_norm=0.3, loss_scaling=64.0, gradient_accumulation=2)
    step = popgeo.compile_step(model, own, options=options, average=averages[0], **CHOSEN)
    for number in range(8):
        parts = make_call(number, 2)
        given = [*map(torch.cat, zip(*parts, strict=True))]
        with no_waits(number > 4):
            loss = step(*given)
        optimizer.zero_grad()
        losses = torch.stack([twin(*(tensor.to(GPU) for tensor in part)) for part in parts])
        losses.mean().backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.3)
        optimizer.step()
        averages[1].update_parameters(twin)
        torch.testing.assert_close(loss, losses[-1].detach(), rtol=1e-3, atol=1e-4)
    assert "backend cuda" in repr(step)
    assert "one CUDA graph, captured once" in repr(step)
    for ours, theirs in zip(*(average.parameters() for average in averages), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_what_cannot_be_captured_is_named_with_the_models_line():
    class Copying(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return (self.weight * x * torch.tensor([1.0, 2.0]).to(x.device)).sum()

    model = Copying().to(GPU)
    step = popgeo.compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="cuda")
    for _ in range(3):
        step(torch.ones(2))
    with pytest.raises(ValueError, match=r"torch\.tensor\(\[1\.0, 2\.0\]\).*cannot be part of a captured step"):
        step(torch.ones(2))


@pytest.mark.parametrize("kind", [popgeo.SchNet, PaiNN])
def test_a_captured_step_has_filters_on_a_grid_and_replays_do_not_wait(kind: type):
    torch.manual_seed(0)
    model = Molecular(kind(32, num_interactions=2, cutoff=3.0), finds_edges=True).to(GPU)
    twin = copy.deepcopy(model)
    twin.model.filters = "edges"
    batch = {
        "z": torch.randint(1, 9, (640,)).to(GPU),
        "pos": 3 * torch.rand(640, 3).to(GPU),
        "edge_index": torch.zeros(2, 1, dtype=torch.long).to(GPU),  # the model finds its own
        "batch": torch.arange(40).repeat_interleave(16).to(GPU),
        "y": torch.randn(40).to(GPU),
    }
    own, optimizer = (torch.optim.SGD(one.parameters(), lr=1e-4) for one in (model, twin))
    step = popgeo.compile_step(model, own, backend="cuda")
    for number in range(7):
        with no_waits(number > 4):
            loss = step(**batch)
        optimizer.zero_grad()
        wanted = twin(**batch)
        wanted.backward()
        optimizer.step()
        torch.testing.assert_close(loss, wanted.detach(), rtol=1e-4, atol=1e-4)
    assert model.model.filter_points
