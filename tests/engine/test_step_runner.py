"""The steps of a call, worked out by hand: results, updates, replicas, stages, random numbers and moved memory."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from popgeo.engine.replicas import Replicas, ReplicaState
from popgeo.ipu import CompiledStep, Options, inference_model, training_model


class Slope(nn.Module):
    """Sums over rows, a loss whose gradient is the mean of the argument, a count, and an argument that it doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = (nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("fixed", torch.ones(3))

    def forward(self, x: Tensor, doubled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        doubled.mul_(2)
        self.seen += x.sum(0)
        h = (self.weight * x).sum(1)
        return x.sum(0), (h + self.scale).mean(), self.seen.clone()


def rows(call: int) -> tuple[Tensor, Tensor]:
    """Return the rows of two updates with three micro-batches on two replicas, two rows each."""
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(call), dtype=torch.float64)
    return x, torch.arange(24.0)


JOINED = {
    "all": lambda made: torch.cat([one.reshape(-1) for one in made]),
    "final": lambda made: torch.cat([one.reshape(-1) for one in made[-2:]]),
    "every_n": lambda made: torch.cat([one.reshape(-1) for one in (*made[4:6], *made[10:])]),
    "sum": lambda made: torch.cat([sum(made[replica::2]).reshape(-1) for replica in range(2)]),
}


@pytest.mark.parametrize("stages", [{}, {"stages": 1, "schedule": "1f1b"}], ids=["whole", "stages"])
@pytest.mark.parametrize("mode", JOINED)
def test_each_step_of_each_replica_returns_its_results_and_each_update_joins_all(mode: str, stages: dict):
    model = Slope()
    options = Options(
        device_iterations=2, gradient_accumulation=3, replication_factor=2, output_mode=mode, output_period=3,
        loss_scaling=4.0, **stages,
    )  # fmt: skip
    step = training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.5))
    weight = scale = 0.0
    seen = [torch.zeros(2, dtype=torch.float64) for _ in range(2)]
    for call in range(2):
        x, doubled = rows(call)
        sums, losses, counts = [], [], []
        for update in x.view(2, 6, 2, 2):
            sums += [micro.sum(0) for micro in update]
            losses += [weight * micro.sum(1).mean() + scale for micro in update]
            weight -= 0.5 * float(torch.stack([micro.sum(1).mean() for micro in update]).mean())
            scale -= 0.5
            for number, micro in enumerate(update):
                seen[number % 2] = seen[number % 2] + micro.sum(0)
                counts.append(seen[number % 2])
        made = step(x, doubled)
        for one, expected in zip(made, (sums, losses, counts), strict=True):
            torch.testing.assert_close(one, JOINED[mode](expected))
        assert torch.equal(doubled, 2 * torch.arange(24.0))
        assert model.weight.item() == pytest.approx(weight)
        assert model.scale.item() == pytest.approx(scale)
        torch.testing.assert_close(model.seen, seen[0])
    runner = step.bound.runner
    assert bool(runner.program_for(rows(0))[1]) == bool(stages)
    assert [set(state.buffers) for state in step.replica_states()] == [
        {"seen"},
        {"seen"},
    ]  # the only one that changes
    # Two weights, both buffers, the joined gradients, and the buffer of the second replica.
    assert runner.state_bytes == 2 * 8 + (2 * 8 + 3 * 4) + 2 * 8 + 2 * 8
    step.load_state_dict({**model.state_dict(), "seen": torch.full((2,), 7.0)})
    assert [state.buffers["seen"].tolist() for state in step.replica_states()] == [[7, 7], [7, 7]]


class DrawCount(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.rand_like(x)


def drawn(step: CompiledStep, calls: int = 2) -> list[list[float]]:
    return [step(torch.zeros(4)).tolist() for _ in range(calls)]


def test_the_first_replica_draws_what_torch_draws_and_torchs_own_numbers_are_left_alone():
    torch.manual_seed(3)
    expected = [torch.rand(4).tolist() for _ in range(2)]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert drawn(inference_model(DrawCount(), Options(random_seed=3))) == expected
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert drawn(inference_model(DrawCount(), Options())) == expected  # without a seed it is torch's
    first = drawn(inference_model(DrawCount(), Options(random_seed=3, replication_factor=2)))
    assert [call[:2] for call in first] == [expected[0][:2], expected[0][2:]]
    assert first[0][2:] != first[0][:2]


def test_streams_of_replicas_differ_by_every_bit_of_the_seed_and_of_their_number():
    seeds = [0, 1, 2, 129, 2**32 + 1, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    assert [ReplicaState.of(0, seed).generator.initial_seed() for seed in seeds[:7]] == seeds[:7]
    streams = [ReplicaState.of(replica, seed).generator.initial_seed() for seed in seeds for replica in (1, 2, 3)]
    assert len(set(streams)) == len(streams)
    assert 2**62 < max(streams) < 2**63
    one, other = (ReplicaState.of(1, seed).generator for seed in (-1, 2**64 - 1))
    assert one.initial_seed() == other.initial_seed()  # as torch takes -1


class ChannelRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.arange(6.0).view(3, 2))

    def forward(self, index: Tensor, other: Tensor) -> Tensor:
        return self.table[index] + self.table[other]


@pytest.mark.parametrize("position", [0, 1])
def test_indices_that_count_from_the_end_are_taken_as_such_in_any_argument(position: int):
    model = ChannelRows()
    step = inference_model(model)
    for index in ([0, 1], [2, -3], [1, 0], [-1, -2]):
        given = [torch.tensor([2, 0]), torch.tensor([0, 2])]
        given[position] = torch.tensor(index)
        assert torch.equal(step(*given), model(*given).detach())
        runner = step.bound.runner
        assert (runner.program_for(given)[0] is runner.usual.graph) == (min(index) >= 0)


def test_indices_there_need_not_be_any():
    assert inference_model(ChannelRows())(*[torch.zeros(0, dtype=torch.int64)] * 2).shape == (0, 2)


def test_weights_and_buffers_that_move_are_found_again():
    model = nn.BatchNorm1d(2).eval()
    step, x = inference_model(model), torch.randn(3, 2)
    step(x)
    model.weight.data = torch.tensor([2.0, 3.0])
    torch.testing.assert_close(step(x), model(x).detach())
    model.running_mean = torch.tensor([1.0, -1.0])
    torch.testing.assert_close(step(x), model(x).detach())
    runner = step.bound.runner.usual
    step(x)
    assert step.bound.runner.usual is runner  # nothing has moved


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def test_processes_add_up_gradients_and_hand_on_what_each_has_updated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Replicas, "of_this_process", lambda factor, trains: Replicas((0,), 2))
    monkeypatch.setattr(dist, "all_reduce", lambda gradient: gradient.mul_(3))  # those of the other are twice as large
    monkeypatch.setattr(dist, "broadcast", lambda tensor, src: tensor.fill_(5) if src == 1 else None)
    model = Weighted()
    options = Options(replication_factor=2, shard_optimizer_state=True)
    training_model(model, options, torch.optim.SGD(model.parameters(), lr=1.0))(torch.ones(4))
    assert model.weight.tolist() == [-1.5, -1.5, 5, 5]  # the mean of 1 and 2, and what the other process says


def test_processes_round_at_random_alike(monkeypatch: pytest.MonkeyPatch):
    def broadcast(tensor: Tensor, src: int) -> None:
        if tensor.dtype == torch.int64:
            tensor.fill_(11)

    monkeypatch.setattr(Replicas, "of_this_process", lambda factor, trains: Replicas((1,), 2))
    monkeypatch.setattr(dist, "broadcast", broadcast)
    model = Weighted()
    options = Options(replication_factor=2, stochastic_rounding=True, optimizer_state_dtype=torch.bfloat16)
    step = training_model(model, options, torch.optim.Adam(model.parameters()))
    assert step.compile(torch.ones(4)).update.seed == 11


class Normalised(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).square().mean()


@pytest.mark.parametrize("replicas", [1, 2])
def test_statistics_over_replicas_are_refused_as_each_replica_runs_alone(replicas: int):
    model = Normalised(nn.SyncBatchNorm(2))
    options = Options(replication_factor=replicas)
    step = training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    if replicas == 1:
        assert step(torch.rand(4, 2)) > 0
        return
    with pytest.raises(ValueError, match="norm would share its statistics among 2 replicas"):
        step(torch.rand(4, 2))
