"""With one replica, random numbers inside and outside a step equal those of eager code, bit for bit."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader, StepOptions, compile_forward, compile_step


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)


class Dropout(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.dropout(self.a(x).relu(), 0.5, self.training)).square().mean()


class Noise(Layers):
    """A model that draws in many ways, once without use."""

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(3)
        chosen = torch.multinomial(torch.softmax(self.b(x).detach(), -1), 2).sum()
        noise = torch.randn_like(x) + torch.bernoulli(torch.sigmoid(x)) + torch.randperm(6) + torch.randint(0, 6, (6,))
        return F.rrelu(self.a(x) * noise + chosen, training=True).square().mean()


class Recomputed(Layers):
    """A model that draws again in the backward pass, and has another seed in between."""

    def half(self, x: Tensor) -> Tensor:
        return F.dropout(self.a(x), 0.5).relu()

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(7)
            noise = torch.rand(6)
        x = F.dropout(checkpoint(self.half, x, use_reentrant=False), 0.3)
        return (checkpoint(self.half, x, use_reentrant=False) * noise).square().mean()


class Seeded(Layers):
    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(6)
        torch.manual_seed(7)
        return (self.b(self.a(x)) * noise).square().mean()


def run(kind: type[Layers], calls: int, trained_by: Callable[..., Callable[[Tensor], object]], rows: int = 8) -> list:
    """Return all numbers drawn outside, the losses, the weights, and the final state of torch's generator."""
    torch.manual_seed(5)
    model, seen = kind(), [torch.rand(3)]
    call = trained_by(model)
    for _ in range(calls):
        x = torch.randn(rows, 6)
        seen += [torch.rand(2), call(x), torch.rand(2)]
    return [*seen, *(p.detach() for p in model.parameters()), torch.get_rng_state()]


def eager(iterations: int = 1, joined: int = 1) -> Callable[[Layers], Callable[[Tensor], Tensor]]:
    def prepare(model: Layers) -> Callable[[Tensor], Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train(x: Tensor) -> Tensor:
            for update in x.chunk(iterations):
                optimizer.zero_grad()
                for part in update.chunk(joined):
                    loss = model(part)
                    (loss / joined).backward()
                optimizer.step()
            return loss.detach()

        return train

    return prepare


def compiled(reset: bool = False, **options: object) -> Callable[[Layers], Callable[[Tensor], Tensor]]:
    def prepare(model: Layers) -> Callable[[Tensor], Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = compile_step(model, optimizer, options=StepOptions(**options))

        def train(x: Tensor) -> Tensor:
            loss = step(x).reshape(-1)[-1].clone()
            if reset:
                step.reset()
            return loss

        return train

    return prepare


def check_equal(found: list, expected: list) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert torch.equal(found[-1], expected[-1])


KINDS = [Dropout, Noise, Recomputed, Seeded]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_inside_and_outside_a_step_are_those_of_eager_code(kind: type[Layers], native):
    check_equal(run(kind, 3, compiled()), run(kind, 3, eager()))


@pytest.mark.parametrize("kind", [Dropout, Noise])
def test_and_those_of_micro_batches_and_after_a_reset(kind: type[Layers]):
    check_equal(run(kind, 3, compiled(reset=True)), run(kind, 3, eager()))
    many = run(kind, 2, compiled(device_iterations=2, gradient_accumulation=3), rows=24)
    check_equal(many, run(kind, 2, eager(2, 3), rows=24))


@pytest.mark.parametrize("kind", KINDS)
def test_and_those_of_a_forward_pass(kind: type[Layers]):
    def plain(model: Layers) -> Callable[[Tensor], Tensor]:
        return lambda x: model(x).detach()

    check_equal(run(kind, 3, lambda model: compile_forward(model)), run(kind, 3, plain))


def test_compiling_a_step_draws_nothing_and_a_kept_one_draws_alike(tmp_path):
    for _ in range(2):  # captured, then read
        check_equal(run(Dropout, 3, compiled(cache_dir=tmp_path)), run(Dropout, 3, eager()))
    model = Noise()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    compile_step(model, torch.optim.Adam(model.parameters())).compile(torch.ones(2, 6))
    assert torch.equal(torch.get_rng_state(), before)


def rows_first(table: nn.Embedding, x: Tensor, rows: Tensor) -> Tensor:
    return F.dropout(table(rows) + torch.rand_like(x), 0.5) + torch.rand(4)


def rows_last(table: nn.Embedding, x: Tensor, rows: Tensor) -> Tensor:
    return F.dropout(x * torch.rand(4), 0.5) + table(rows).relu() * torch.rand_like(x)


def rows_between(table: nn.Embedding, x: Tensor, rows: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    return torch.zeros(5, 4).index_add(0, rows, x * noise) + torch.rand(4) + table.weight


class Embedded(nn.Module):
    """A model that draws before and after an operation that may fail."""

    def __init__(self, act: Callable[..., Tensor]) -> None:
        super().__init__()
        self.table, self.act, self.norm = nn.Embedding(5, 4), act, nn.BatchNorm1d(4)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.act(self.table, self.norm(x), rows).square().mean()


@pytest.mark.parametrize("act", [rows_first, rows_last, rows_between])
@pytest.mark.parametrize("raises", [False, True])
def test_after_an_error_they_go_on_as_in_eager_code(raises: bool, act: Callable[..., Tensor], native):
    def numbers(step: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(3)
        found = []
        for row in (1, 9 if raises else 2, 3):
            try:
                found.append(step(torch.ones(2, 4), torch.tensor([0, row])).detach().clone())
            except (IndexError, ValueError, RuntimeError):
                found.append(torch.tensor(-1.0))
            found.append(torch.rand(1))
        return found

    model = Embedded(act)
    same = copy.deepcopy(model)
    step = compile_step(same, torch.optim.SGD(same.parameters(), lr=0.0))
    for one, other in zip(numbers(step), numbers(model), strict=True):
        torch.testing.assert_close(one, other)


def test_a_checkpoint_of_a_step_restores_torchs_numbers_when_it_is_loaded(tmp_path):
    def prepared(seed: int) -> tuple[Dropout, object]:
        torch.manual_seed(seed)
        model = Dropout()
        return model, compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def go_on(step: object) -> list[Tensor]:
        return [t for _ in range(3) for t in (torch.rand(2), step(torch.randn(8, 6)).clone())]

    _, step = prepared(5)
    go_on(step)
    step.save(tmp_path / "step.pt")
    state = step.run_state()
    weights = copy.deepcopy(step.model.state_dict())
    whole = go_on(step)
    for compiles_first in (False, True):
        _, again = prepared(6)
        if compiles_first:
            again(torch.ones(8, 6))
        again.load(tmp_path / "step.pt")
        assert all(map(torch.equal, go_on(again), whole))
    model, again = prepared(7)
    model.load_state_dict(weights)
    torch.set_rng_state(state["generators"][0])  # as trainers do, which know of no run_state
    assert all(map(torch.equal, go_on(again), whole))


def test_a_fixed_seed_is_a_stream_of_its_own_and_other_replicas_follow_torchs_seed():
    model = nn.Dropout(0.5)
    step = compile_forward(model, options=StepOptions(random_seed=3))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = [step(torch.ones(64)).clone() for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert all(torch.equal(one, model(torch.ones(64))) for one in first)
    several = compile_forward(model, options=StepOptions(replication_factor=2))
    drawn = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        drawn.append(several(torch.ones(128)).clone())
        torch.rand(3)
    torch.manual_seed(4)
    assert torch.equal(drawn[0][:64], model(torch.ones(64)))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0][64:], drawn[2][64:])
    assert not torch.equal(drawn[0][:64], drawn[0][64:])


@pytest.mark.filterwarnings("ignore")  # of accelerate's own
def test_accelerate_resumes_with_the_bits_of_the_whole_run(tmp_path):
    accelerate = pytest.importorskip("accelerate")

    def prepared(seed: int) -> tuple[object, object, object]:
        torch.manual_seed(seed)
        accelerator, model = accelerate.Accelerator(cpu=True), Dropout()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        graphs = [Data(x=torch.full((2, 6), i / 30), edge_index=torch.zeros(2, 1, dtype=torch.long)) for i in range(30)]
        loader = accelerator.prepare(FixedSizeDataLoader(graphs, 6, shuffle=True))
        accelerator.register_for_checkpointing(model, optimizer)
        return accelerator, loader, compile_step(model, optimizer)

    def losses(loader: object, step: object) -> Iterator[Tensor]:
        for _ in range(3):
            for batch in loader:
                yield step(batch.x + torch.rand(()))

    accelerator, *whole = prepared(3)
    going = losses(*whole)
    for number in range(9):
        if number in (4, 8):  # in the middle of an epoch
            accelerator.save_state(str(tmp_path / str(number)))
        next(going)
    rest = torch.stack(list(going))
    for number in (4, 8):
        accelerator, *resumed = prepared(9)
        accelerator.load_state(str(tmp_path / str(number)))
        found = list(losses(*resumed))[: 18 - number]
        assert torch.equal(torch.stack(found[9 - number :]), rest)
