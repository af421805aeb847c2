"""Costs of convolutions and pooling: products of matrices over windows, and windows reduced element by element."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from popgeo import ipu
from popgeo.ipu import CompiledStep, IpuTarget, TileExact
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.convolution import Convolution, plan_convolution
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.cost.matmul import plan_matmul
from popgeo.ipu.cost.plan import Plan, Profile, Validity
from popgeo.ipu.cost.pooling import plan_pooling, pooling_vertex

BOW = Machine(target=IpuTarget.bow())
SMALL = IpuTarget(name="small", num_tiles=5, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)
RESNET = Convolution(samples=8, many=784, few=784, window=9, step=1, wide=128, deep=128, groups=1, nbytes=2)


def cycles(plan: Plan) -> float:
    return plan.cycles(Profile.CALIBRATED)


def test_a_convolution_of_single_positions_is_a_product():
    single = replace(RESNET, window=1)
    plan, product = plan_convolution(single, BOW), plan_matmul(8 * 784, 128, 128, 2, BOW)
    assert plan.supersteps == product.supersteps
    assert plan.flops == product.flops == 2 * 8 * 784 * 128 * 128
    assert plan.validity == Validity.ESTIMATE


def test_channels_in_groups_are_said_to_have_other_vertices():
    assert "groups" not in plan_convolution(RESNET, BOW).why
    assert "channels in 2 groups" in plan_convolution(replace(RESNET, groups=2), BOW).why


def test_windows_overlap_so_their_elements_are_brought_once():
    plan, product = plan_convolution(RESNET, BOW), plan_matmul(8 * 784, 9 * 128, 128, 2, BOW)
    assert plan.flops == product.flops
    # A picture has a ninth of the elements of its windows.
    assert cycles(plan) < cycles(product)
    assert plan.temporary_bytes < product.temporary_bytes


def test_few_channels_are_written_as_windows():
    # 3 channels would be filled up to 16, 49 times: 784 instead of 147 numbers of each position.
    first = replace(RESNET, many=50176, few=12544, window=49, step=4, wide=3, deep=64)
    overlap = 50176 / (12544 * 49)
    filled = plan_matmul(8 * 12544, 49 * 16, 64, 2, BOW, shares=(overlap * 3 / 16, 1.0))
    assert cycles(plan_convolution(first, BOW)) < cycles(filled)


@pytest.mark.parametrize("kind", ["forward", "input", "weight"])
def test_more_is_never_cheaper_and_half_costs_no_more(kind: str):
    plain = cycles(plan_convolution(RESNET, BOW, kind))
    larger = ({"nbytes": 4}, {"samples": 16}, {"wide": 256}, {"deep": 256}, {"window": 25})
    for change in larger:
        assert cycles(plan_convolution(replace(RESNET, **change), BOW, kind)) >= plain, change


class _Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.Hardswish(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(4, 6, 1, bias=False),
            nn.ConvTranspose2d(6, 2, 2, stride=2),
            nn.AvgPool2d(2, stride=1),
            nn.Upsample(scale_factor=2),
            nn.AdaptiveAvgPool2d(3),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        return self.layers(pictures).square().mean()


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    return torch.randn(3, 3, 9, 9, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def step(pictures: Tensor) -> CompiledStep:
    model = _Pictures()
    made = ipu.training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    made.compile(pictures)
    return made


def test_products_are_those_that_torch_counts(step: CompiledStep, pictures: Tensor):
    with FlopCounterMode(display=False) as counted:
        _Pictures()(pictures).backward()
    found = [c for c in cost(step.graph, BOW.target) if c.family == "convolution"]
    assert len(found) == 6
    parts = [part for c in found for part in (c.plan.parts if c.plan.parts[0].family != "matmul" else [c.plan])]
    assert sum(part.flops for part in parts if part.family == "convolution") == counted.get_total_flops()


def test_every_operation_on_pictures_has_a_rule_and_a_lowering(step: CompiledStep, pictures: Tensor):
    assert all(c.known for c in cost(step.graph, BOW.target))
    exact = TileExact(step, SMALL)
    torch.testing.assert_close(exact(pictures), step(pictures))
    assert exact.program.fallbacks == ()
    for name, parameter in step.state_dict().items():
        torch.testing.assert_close(exact.state_dict()[name], parameter)


def test_pooling_by_hand():
    # 48 results of 2 x 2 windows on one tile are 24 vectors of float32 made of 96, 4 and 16 for each worker: 40 cycles
    # to start, 4 to clear, 3 for each of the 16, and 7 for each of 4 runs of 4 vectors.
    assert pooling_vertex(48, 192, run=4, width=4, target=BOW.target) == 6 * (40 + 4 + 3 * 16 + 7 * 4) == 720
    # As 6,400 results lie on 200 tiles, 32 each, a tile receives 128 numbers.
    plan = plan_pooling(6400, 4 * 6400, 4 * 6400, run=16, width=4, machine=BOW)
    assert plan.split == {"tiles": 200}
    assert plan.supersteps[0].bytes_in == plan.temporary_bytes == 128 * 4
    assert plan.flops == 4 * 6400
