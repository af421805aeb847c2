"""Optimizer state divided over replicas, and weights divided over processes: results, memory and cost."""

import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing import assert_close

from popgeo import ipu
from popgeo.engine.replicas import part_of
from popgeo.ipu import Options
from tests.support import quick_python, two_processes

REPOSITORY = Path(__file__).resolve().parents[2]


class Loss(nn.Module):
    """One layer of 64 x 64 weights and a bias, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return (self.layer(x) - 1).square().mean()


def compiled(divided: bool, kind: type[torch.optim.Optimizer] = torch.optim.Adam) -> ipu.CompiledStep:
    model = Loss()
    options = Options(replication_factor=4, gradient_accumulation=2, shard_optimizer_state=divided)
    return ipu.training_model(model, options, kind(model.parameters(), lr=0.01)).compile(torch.ones(16, 64))


def test_parts_are_as_equal_as_can_be_and_leave_nothing_out():
    for numel in (0, 1, 7, 12):
        covered = [n for number in range(5) for n in range(numel)[part_of(numel, number, 5)]]
        assert covered == list(range(numel))


def test_the_account_of_a_replica_that_keeps_a_quarter_of_the_state():
    whole, part = compiled(False).report, compiled(True).report
    numel = 64 * 64 + 64
    kept = [report.memory.categories["weights and optimizer"].sum() for report in (whole, part)]
    # Adam keeps two numbers a weight, of which three quarters are with other replicas; sums of gradients stay whole.
    assert kept[0] - kept[1] == 8 * numel * 3 // 4
    names = [[cost.target for cost in report.costs if cost.family == "collectives"] for report in (whole, part)]
    assert names == [
        ["collective.all_reduce.default"], ["collective.reduce_scatter.default", "collective.all_gather.default"]
    ]  # fmt: skip
    links = [sum(c.plan.cycles(r.profile) for c in r.costs if c.family == "collectives") for r in (whole, part)]
    assert links[1] == pytest.approx(links[0])  # a ring sums on its first way round and hands on on its second
    updates = [sum(c.flops for c in r.costs if c.phase == "update" and c.flops > 100) for r in (whole, part)]
    assert updates[1] == updates[0] / 4


def test_from_shapes_alone_the_account_is_the_same():
    with torch.device("meta"):
        model = Loss()
    options = Options(replication_factor=4, gradient_accumulation=2, shard_optimizer_state=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    report = ipu.estimate(model, [torch.empty(2, 64)], options, optimizer)
    expected = compiled(True).report
    assert [(c.target, c.shapes, c.plan) for c in report.costs] == [
        (c.target, c.shapes, c.plan) for c in expected.costs
    ]
    assert report.memory.peak.tolist() == expected.memory.peak.tolist()
    assert report.state_bytes == pytest.approx((4 + 4 + 8 / 4) * 4160, abs=16)


def test_in_one_process_results_are_the_same_bit_for_bit():
    x, steps = torch.randn(16, 64), [compiled(False), compiled(True)]
    for _ in range(3):
        assert torch.equal(steps[0](x), steps[1](x))
    assert torch.equal(steps[0].model.layer.weight, steps[1].model.layer.weight)


def test_an_optimizer_that_looks_at_whole_tensors_is_refused():
    with pytest.raises(ValueError, match="cuts parameters into parts, but Adafactor"):
        compiled(True, torch.optim.Adafactor)
    with pytest.raises(ValueError, match="shard_optimizer_state is 1"):
        Options(shard_optimizer_state=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    command = [*quick_python.command(), "-m", "tests.support.two_processes", str(folder), "1"]
    threads = torch.get_num_threads()
    other = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        two_processes.join(folder, 0)
        mine = two_processes.train(folder, 0)
        assert other.wait(timeout=120) == 0
    finally:
        other.kill()
        other.wait()
        torch.set_num_threads(threads)
        if dist.is_initialized():
            dist.destroy_process_group()
    return mine, torch.load(folder / "1.pt", weights_only=True)


def test_two_processes_with_half_of_the_shards_train_as_one_with_all(trained):
    alone = two_processes.train_in_shards()
    first, second = (results[0] for results in trained)
    for name, tensor in alone.items():
        if name in ("losses", "down.bias"):
            assert torch.equal(first[name], second[name])
            assert_close(first[name], tensor, rtol=1e-12, atol=1e-12)
        else:
            assert_close(torch.cat([first[name], second[name]]), tensor, rtol=1e-12, atol=1e-12)


def test_two_processes_with_half_of_the_state_train_as_with_all_of_it(trained):
    alone = two_processes.train_in_parts(divided=False)
    for whole, divided, resumed, in_stages in (results[1:] for results in trained):
        for name, weight in alone.items():
            if name != "kept":
                assert torch.equal(divided[name], whole[name])  # bit for bit
                assert torch.equal(resumed[name], whole[name])  # also after it was saved and loaded
                assert torch.equal(in_stages[name], whole[name])
                assert_close(whole[name], weight)
    kept = [[int(result["kept"]) for result in results[1:]] for results in trained]
    numel = sum(p.numel() for p in two_processes.Tokens().parameters())
    assert kept == [[numel, *3 * [numel // 2]], [numel, *3 * [numel - numel // 2]]]
