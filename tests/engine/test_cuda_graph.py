"""Steps captured as CUDA graphs, on a fake of the CUDA calls: replays, copies, refusals and new captures."""

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from popgeo.byte_block import ByteBlock
from popgeo.datasets import Molecules
from popgeo.engine.compile_step import compile_forward, compile_step
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.cuda_graph import StaticInputs
from popgeo.engine.step_options import StepOptions
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import KNNInteractionGraph, SchNet, l1_loss
from tests.support.count_copies import CountCopies
from tests.support.fake_cuda import FakeCuda, NoWaits
from tests.support.small_models import ContinuousFilters, GraphConvolutions, make_batch

# Rates that float32 holds exactly, in which they lie on the device.
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=2**-5, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=2**-7),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=2**-7, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=2**-7, momentum=0.5, centered=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=2**-7),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=2**-7),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=2**-7),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=2**-7),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=2**-7),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=2**-7),
}


def eager_copy(model: nn.Module, make) -> tuple[nn.Module, torch.optim.Optimizer]:
    twin = copy.deepcopy(model)
    return twin, make(twin.parameters())


def eager_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> Tensor:
    optimizer.zero_grad()
    *_, loss = model(**batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:.*takes means over all rows")
def test_captured_steps_train_as_eager_ones_do(cuda: FakeCuda, name: str):
    torch.manual_seed(0)
    model = GraphConvolutions().double()
    twin, optimizer = eager_copy(model, OPTIMIZERS[name])
    step = compile_step(model, OPTIMIZERS[name](model.parameters()), make_batch(0), "cuda")
    # Captured, the others correct their bias by numbers of float32.
    close = {"rtol": 1e-9, "atol": 1e-12} if name == "SGD" else {"rtol": 1e-4, "atol": 1e-5}
    for seed in range(7):
        loss = step(**make_batch(seed))[1]
        torch.testing.assert_close(loss, eager_step(twin, optimizer, make_batch(seed)), **close)
    assert len(cuda.graphs) == 1
    assert cuda.graphs[0].replays == 4
    for ours, theirs in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, **close)
    assert "one CUDA graph, captured once" in repr(step)


def test_a_schedule_acts_without_another_capture(cuda: FakeCuda):
    torch.manual_seed(0)
    model = ContinuousFilters().double()
    twin, optimizer = eager_copy(model, OPTIMIZERS["SGD"])
    own = OPTIMIZERS["SGD"](model.parameters())
    step = compile_step(model, own, backend="cuda")
    schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in (own, optimizer)]
    for seed in range(6):
        step(**make_batch(seed))
        eager_step(twin, optimizer, make_batch(seed))
        for schedule in schedules:
            schedule.step()
    assert own.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert len(cuda.graphs) == 1
    torch.testing.assert_close(model.readout.weight, twin.readout.weight, rtol=1e-9, atol=1e-12)


def test_rates_of_a_function_count_updates_over_warm_up_and_replays(cuda: FakeCuda):
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    slope = Falling(model)
    step = compile_step(slope, torch.optim.SGD(slope.parameters(), lr=9.0), backend="cuda", learning_rate=float)
    for _ in range(5):
        step(torch.ones(1, 1))
    assert model.weight.item() == -(0 + 1 + 2 + 3 + 4)


class Falling(nn.Module):
    """A model whose only weight has a gradient of 1."""

    def __init__(self, line: nn.Linear) -> None:
        super().__init__()
        self.line = line

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x).sum()


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = nn.functional.dropout(self.weight * x, 0.5, self.training)
        return kept, kept.sum() * 0


def test_random_numbers_advance_with_each_replay(cuda: FakeCuda):
    model = Dropping()
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="cuda")
    kept = [step(torch.ones(64))[0] for _ in range(6)]
    assert len({tuple(one.tolist()) for one in kept}) == 6


def test_gradients_of_micro_batches_are_joined_scaled_and_clipped(cuda: FakeCuda):
    torch.manual_seed(0)
    model = Squares()
    twin, optimizer = eager_copy(model, OPTIMIZERS["SGD"])
    options = StepOptions(
        device_iterations=2, gradient_accumulation=3, loss_scaling=128.0, max_grad_norm=0.1, output_mode="all"
    )
    step = compile_step(model, OPTIMIZERS["SGD"](model.parameters()), backend="cuda", options=options)
    x = torch.randn(4, 24, 3, dtype=torch.float64)
    for call in x:
        losses = step(call)
        assert losses.shape == (6,)
        for number, part in enumerate(call.view(2, 3, 4, 3)):
            optimizer.zero_grad()
            wanted = torch.stack([twin(micro) for micro in part])
            wanted.mean().backward()
            nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
            optimizer.step()
            torch.testing.assert_close(losses[3 * number : 3 * number + 3], wanted.detach())
    torch.testing.assert_close(model.line.weight, twin.line.weight)
    assert cuda.graphs[0].replays == 5


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x).square().mean()


def test_copies_take_turns_and_wait_for_the_step_before(cuda: FakeCuda):
    model = Squares()
    step = compile_step(model, OPTIMIZERS["Adam"](model.parameters()), torch.zeros(4, 3).double(), "cuda")
    cuda.log.clear()
    for _ in range(3):
        step(torch.zeros(4, 3).double())
    # Events 1 and 2 are those of the first stage, 3 and 4 of the second: arrived and free.
    copies = [line for line in cuda.log if "event" in line]
    first = ["host waits for event 1", "stream 1 waits for event 2", "event 1 after stream 1", "main waits for event 1"]
    second = [line.replace("event 1", "event 3").replace("event 2", "event 4") for line in first]
    assert copies == [*first, "event 2 after main", *second, "event 4 after main", *first, "event 2 after main"]


KINDS = [((3, 2), torch.float32), ((5,), torch.int64), ((70,), torch.bool)]


def test_a_batch_on_the_device_in_one_block_is_copied_at_once_and_calls_do_not_pile_up():
    cuda, used = FakeCuda(), slice(1, 3)  # a step may use only some tensors of a batch
    batches = [ByteBlock(KINDS, device="meta").tensors[used] for _ in range(3)]
    inputs = StaticInputs(batches[0], torch.device("meta"), cuda)
    with CountCopies() as copies:
        for batch in batches:
            inputs.fill(batch)
    assert copies.number == len(batches)
    # Events 2 and 4 say that the step's inputs were filled.
    assert cuda.log == ["event 2 after main", "event 4 after main"] + [
        f"{what} {n}{after}"
        for n in (2, 4, 2)
        for what, after in [("host waits for event", ""), ("event", " after main")]
    ]


def test_no_copy_begins_before_work_that_may_still_use_its_memory():
    cuda = FakeCuda()
    inputs = StaticInputs([torch.ones(2)], torch.device("cpu"), cuda)
    for _ in range(3):
        inputs.fill([torch.ones(2)])
    for number, line in enumerate(cuda.log):
        if line.startswith("stream 1 waits for event"):
            assert f"{line.removeprefix('stream 1 waits for ')} after main" in cuda.log[:number]


def other_order(block: ByteBlock) -> list[Tensor]:
    x, y, z = (tensor.clone() for tensor in block.tensors)
    swapped = ByteBlock([KINDS[1], KINDS[0], KINDS[2]])
    for place, tensor in zip(swapped.tensors, (y, x, z), strict=True):
        place.copy_(tensor)
    return [swapped.tensors[1], swapped.tensors[0], swapped.tensors[2]]


LAYOUTS = {
    "one block": (lambda block: block.tensors, 1),
    "other order": (other_order, 3),
    "separate tensors": (lambda block: [tensor.clone() for tensor in block.tensors], 3),
    "other type": (lambda block: [block.tensors[0].view(torch.int32), *block.tensors[1:]], 3),
    "other strides": (lambda block: [block.tensors[0].view(2, 3).t(), *block.tensors[1:]], 3),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_block_is_filled_with_the_same_values_from_every_layout(name: str):
    layout, num_copies = LAYOUTS[name]
    source, block = ByteBlock(KINDS), ByteBlock(KINDS)
    for tensor in source.tensors:
        tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) % 3)
    tensors = layout(source)
    with CountCopies() as copies:
        block.fill(tensors)
    assert copies.number == num_copies
    for place, tensor in zip(block.tensors, tensors, strict=True):
        assert torch.equal(place, tensor.to(place.dtype))


def test_results_and_inputs_of_a_call_stay_when_the_next_runs(cuda: FakeCuda):
    model = nn.Linear(3, 2)
    step = compile_forward(model, backend="cuda")
    inputs = [torch.full((4, 3), float(i)) for i in range(6)]
    results = [step(x) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, model(x).detach())
    assert cuda.graphs[0].replays == 3


def test_loading_weights_and_state_is_noticed(cuda: FakeCuda):
    torch.manual_seed(0)
    model = ContinuousFilters().double()
    own = OPTIMIZERS["Adam"](model.parameters())
    step = compile_step(model, own, backend="cuda")
    for seed in range(5):
        step(**make_batch(seed))
    kept = copy.deepcopy((model.state_dict(), own.state_dict()))
    wanted = [step(**make_batch(seed))[1] for seed in (5, 6, 7)]
    model.load_state_dict(kept[0])
    own.load_state_dict(kept[1])
    again = [step(**make_batch(seed))[1] for seed in (5, 6, 7)]
    torch.testing.assert_close(again, wanted, rtol=1e-9, atol=1e-12)
    assert len(cuda.graphs) == 2


def test_buffers_and_arguments_that_the_model_changes_are_changed(cuda: FakeCuda):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, seen):
            self.calls.add_(1)
            seen.add_(self.calls)
            return (self.weight * 0).sum()

    model = Counting()
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="cuda")
    seen = torch.zeros(1)
    for _ in range(6):
        step(seen)
    assert model.calls.item() == 6
    assert seen.item() == 1 + 2 + 3 + 4 + 5 + 6


def test_what_cannot_be_captured_is_named_with_the_models_line(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch):
    class Copying(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.scale = torch.tensor(3.0)  # no buffer, as it should be

        def forward(self, x):
            return (self.weight * x * self.scale.item()).sum()

    model = Copying()
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="cuda")
    for _ in range(3):
        step(torch.ones(2))
    before = model.weight.clone()
    with pytest.raises(ValueError, match=r"self\.scale\.item\(\).*cannot be part of a captured step.*buffers"):
        step(torch.ones(2))
    torch.testing.assert_close(model.weight, before)


WAITING = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x.sum()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "put": lambda x: x.index_put_((x > 0,), torch.zeros(())),
    "equal": lambda x: torch.equal(x, x),
    "constant": lambda x: x + torch.tensor([1.0, 2.0]),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_capture_refuses_whatever_waits_for_the_device(name: str):
    cuda, x = FakeCuda(), torch.ones(2)
    WAITING[name](x)
    zeros = torch.zeros(())
    refused = pytest.raises(RuntimeError, match="not permitted when stream is capturing")
    with refused, cuda.graph(cuda.CUDAGraph(), cuda.Stream("cuda:0"), "thread_local"):
        WAITING[name](x + zeros)


def test_a_call_that_replays_never_waits(cuda: FakeCuda):
    model = Gap()
    step = compile_step(model, OPTIMIZERS["AdamW"](model.parameters()), backend="cuda")
    losses = []
    for number, batch in enumerate(FixedSizeDataLoader(Molecules()[:64], 9)):
        with NoWaits() if number > 3 else contextlib.nullcontext():
            losses.append(step(batch)[1])
    assert not model.schnet.follow_filters()  # a call looks for no grid
    assert cuda.graphs[0].replays == len(losses) - 3 > 3
    with pytest.raises(RuntimeError, match="capturing"), NoWaits():
        float(losses[0])


class Gap(nn.Module):
    """SchNet on the nearest atoms, with filters as on a GPU, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.schnet = SchNet(8, 8, 2, 6, 5.0, interaction_graph=KNNInteractionGraph(4, 5.0), filters="edges")

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, y: Tensor, graphs_mask: Tensor, num_graphs: int) -> Any:
        gap = self.schnet(z, pos, batch, num_graphs=num_graphs).flatten()
        return gap, l1_loss(gap, y[:, 2], graphs_mask)


def test_what_depends_on_data_is_refused_before_anything_runs(cuda: FakeCuda):
    class Positive(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return (self.weight * x)[x > 0].sum()

    model = Positive()
    with pytest.raises(ValueError, match=r"\[x > 0\].*depends on the data"):
        compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2), "cuda")


def trained_step() -> tuple[CompiledStep, torch.optim.Optimizer]:
    model = Squares()
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    step = compile_step(model, optimizer, backend="cuda")
    for _ in range(4):
        step(torch.zeros(4, 3).double())
    return step, optimizer


def test_only_the_learning_rate_may_change(cuda: FakeCuda):
    step, optimizer = trained_step()
    optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    with pytest.raises(
        ValueError, match=r"betas of parameter group 0 was .* is now \(0\.5, 0\.9\); only lr may change"
    ):
        step(torch.zeros(4, 3).double())
    step.reset()
    step(torch.zeros(4, 3).double())


@pytest.mark.parametrize(
    ("batch", "message"),
    [(torch.zeros(5, 3).double(), r"shape"), (torch.zeros(4, 3), r"dtype|float32"), (None, "x")],
    ids=["shape", "dtype", "none"],
)
def test_a_batch_unlike_the_first_is_refused(cuda: FakeCuda, batch: Tensor | None, message: str):
    step, _ = trained_step()
    with pytest.raises(ValueError, match=message):
        step(batch)


@pytest.mark.parametrize("kind", ["Adagrad", "Adafactor", "LBFGS"])
def test_optimizers_that_cannot_be_captured_are_refused_with_those_that_can(cuda: FakeCuda, kind: str):
    model = Squares()
    with pytest.raises(ValueError, match=f"{kind} keeps numbers.*Use Adam, AdamW"):
        compile_step(model, getattr(torch.optim, kind)(model.parameters()), backend="cuda")


def test_without_a_device_cuda_is_refused_and_others_are_offered():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    model = Squares()
    with pytest.raises(ValueError, match=r"torch finds no CUDA device: .*Use backend='cpu' or backend='inductor'"):
        compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), backend="cuda")
