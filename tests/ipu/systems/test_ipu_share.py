"""The share of one of several IPUs in a sharded model: cycles, links and memory, computed by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from popgeo import ipu
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.collectives import collective_seconds, plan_collective
from popgeo.ipu.cost.matmul import plan_matmul
from popgeo.nn import ColumnParallelLinear, ParallelAttention, ParallelLinear2D, RowParallelLinear

BOW = IpuTarget.bow()
BOARD = replace(BOW, num_ipus=4)


class Mlp(nn.Module):
    """The two sharded layers of a transformer's MLP, and a loss."""

    def __init__(self, width: int, num_shards: int) -> None:
        super().__init__()
        self.up = ColumnParallelLinear(width, 4 * width, num_shards)
        self.down = RowParallelLinear(4 * width, width, num_shards)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu()).square().mean()


class GptLayer(nn.Module):
    """A layer of GPT-3 (arXiv:2005.14165): attention and MLP, each after a norm."""

    def __init__(self, width: int, num_heads: int, num_shards: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = ParallelAttention(width, num_heads, num_shards)
        self.up = ColumnParallelLinear(width, 4 * width, num_shards)
        self.down = RowParallelLinear(4 * width, width, num_shards)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(self.up(self.norms[1](x)).relu())


def estimate(model: nn.Module, x: Tensor, target: IpuTarget, trains: bool = False) -> ipu.Report:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if trains else None
    return ipu.estimate(model, [x], ipu.Options(target=target), optimizer)


def test_by_hand_a_ring_goes_twice_round_for_a_sum_and_once_for_its_halves():
    lat, fast, slow = 0.55e-6, 55e9, 28e9
    assert collective_seconds("all-reduce", 4e6, 4, 1, BOW) == pytest.approx(6 * (lat + 1e6 / fast))
    assert collective_seconds("all-gather", 4e6, 4, 1, BOW) == pytest.approx(3 * (lat + 1e6 / fast))
    assert collective_seconds("reduce-scatter", 4e6, 2, 4, BOW) == pytest.approx(lat + 2e6 / slow)  # two boards
    assert collective_seconds("all-reduce", 8e6, 8, 1, BOW) == pytest.approx(14 * (lat + 1e6 / slow))
    assert collective_seconds("all-reduce", 8e6, 1, 1, BOW) == 0
    # Two IPUs per member: each has half of the tensor and its own links.
    both = plan_collective("all-gather", 4_000_000, 2, 1, Machine(target=replace(BOW, num_ipus=2)))
    assert both.supersteps[0].ideal == pytest.approx((lat + 1e6 / fast) * BOW.clock)


def test_one_ipu_of_four_multiplies_its_quarter_and_sums_over_links():
    report = estimate(Mlp(256, 4), torch.empty(64, 256), BOARD)
    products = [cost for cost in report.costs if cost.family == "matmul"]
    alone = plan_matmul(64, 256, 256, 4, Machine(target=BOW))
    assert [cost.shapes for cost in products] == [
        "[1, 1, 256] [1, 64, 256] [1, 256, 256] [1, 64, 256]", "[1, 64, 256] [1, 256, 256] [1, 64, 256]"
    ]  # fmt: skip
    assert products[1].plan.cycles(report.profile) == alone.cycles(report.profile)  # the cost of one shard on one IPU
    (summed,) = [cost for cost in report.costs if cost.plan.split.get("IPUs")]
    assert (summed.target, summed.plan.split) == ("popgeo.all_reduce.default", {"IPUs": 4})
    (links,) = [step for step in summed.plan.supersteps if step.name == "all-reduce"]
    assert links.ideal == pytest.approx(6 * (0.55e-6 + 64 * 256 / 55e9) * BOW.clock)
    assert (report.target, report.shards, report.machines) == (BOW, 4, "4 x Bow")
    assert len(report.memory.peak) == 1472
    assert "on 4 x Bow" in str(report)
    assert ipu.Report.from_json(report.to_json()).shards == 4


def test_the_report_of_a_model_that_runs_is_the_one_from_shapes_alone():
    model, x = Mlp(16, 4), torch.randn(8, 16)
    before = [p.detach().clone() for p in model.parameters()]
    options = ipu.Options(target=BOARD)
    step = ipu.training_model(model, options, torch.optim.SGD(model.parameters(), lr=0.1)).compile(x)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))  # whole again
    with torch.device("meta"):
        shapes = Mlp(16, 4)
    report = estimate(shapes, x, BOARD, trains=True)
    assert [(c.target, c.shapes, c.plan) for c in step.report.costs] == [
        (c.target, c.shapes, c.plan) for c in report.costs
    ]
    assert step.report.memory.peak.tolist() == report.memory.peak.tolist()
    assert step.report.shards == 4


def test_one_ipu_holds_all_shards_unless_there_are_more():
    report = estimate(Mlp(16, 4), torch.empty(8, 16), BOW)
    assert (report.shards, report.target) == (1, BOW)
    assert "[4, 8, 16]" in "".join(cost.shapes for cost in report.costs)
    two = estimate(Mlp(16, 4), torch.empty(8, 16), replace(BOW, num_ipus=2))
    assert two.shards == 2
    assert "[2, 8, 16]" in "".join(cost.shapes for cost in two.costs)
    eight = estimate(Mlp(16, 4), torch.empty(8, 16), replace(BOW, num_ipus=8))
    assert (eight.shards, eight.target.num_ipus) == (4, 2)
    with pytest.raises(ValueError, match=r"has 4 shards, and IpuTarget\.num_ipus is 3"):
        estimate(Mlp(16, 4), torch.empty(8, 16), replace(BOW, num_ipus=3))
    with pytest.raises(ValueError, match=r"different numbers of shards, 1\.down in 2 and 0\.down in 4"):
        estimate(nn.Sequential(Mlp(16, 4), Mlp(16, 2)), torch.empty(8, 16), BOARD)


def test_several_ipus_without_shards_are_said_to_be_counted_as_one():
    def titles(num_shards: int) -> list[str]:
        return [insight.title for insight in estimate(Mlp(16, num_shards), torch.empty(8, 16), BOARD).insights]

    assert "Exchange between IPUs is costed like exchange within one" in titles(1)
    assert "Exchange between IPUs is costed like exchange within one" not in titles(4)


def test_a_grid_sums_over_neighbors_and_joins_over_its_rows():
    report = estimate(ParallelLinear2D(32, 32, (2, 4)), torch.empty(8, 32), replace(BOW, num_ipus=8))
    over_links = {cost.target: cost.plan.split["IPUs"] for cost in report.costs if "IPUs" in cost.plan.split}
    assert over_links == {"popgeo.all_reduce.default": 4, "popgeo.all_gather.default": 2}


def test_on_16_ipus_each_holds_a_sixteenth_of_a_layer_of_gpt_3_and_multiplies_a_quarter_of_what_one_of_4_does():
    x, reports = torch.empty(1, 128, 12288, device="meta"), {}
    for count in (4, 16):
        with torch.device("meta"):
            layer = GptLayer(12288, 96, count).half()
        reports[count] = estimate(layer, x.half(), replace(BOW, num_ipus=count))
    weights = 12 * 12288**2 * 2
    alike = 2 * 12288 * 13
    assert reports[16].state_bytes == pytest.approx(weights / 16 + alike, rel=1e-3)
    products = {n: r.families["matmul"].flops for n, r in reports.items()}
    assert products[16] == products[4] / 4
    busy = {n: sum(f["cycles"] for f in r.rows.families if f["family"] == "matmul") for n, r in reports.items()}
    assert 3 < busy[4] / busy[16] < 5
    summed = {n: r.families["collectives"].ops for n, r in reports.items()}
    assert summed == {4: 4, 16: 4}  # two sums, and two copies that need no transfer
    assert reports[16].memory.peak.max() < 0.5 * reports[4].memory.peak.max()
    assert reports[16].memory.fits
