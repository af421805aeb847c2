"""Layers with outputs that are computed in parts, and products within a share of a tile's memory."""

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.capture.capture import bind
from popgeo.capture.capture_step import capture_step
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.elementwise import plan_elementwise
from popgeo.ipu.cost.matmul import plan_matmul
from popgeo.ipu.cost.plan import Profile
from popgeo.ipu.systems.stage_costs import serialized

BOW = Machine(target=ipu.IpuTarget.bow())
ROWS, INPUTS, OUTPUTS = 96, 64, 1000


class Head(nn.Module):
    """A layer before the serialized layer, so that the inputs of the serialized layer have a gradient."""

    def __init__(self):
        super().__init__()
        self.before, self.head = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, OUTPUTS, bias=False)

    def forward(self, x):
        return self.head(self.before(x)).square().mean()


@pytest.fixture(scope="module")
def products():
    """Return the plans of the head's three products by their sizes, for a number of parts."""
    model = Head()
    arguments = bind(model.forward, torch.ones(ROWS, INPUTS))
    graph = capture_step(model, arguments, trained=[name for name, _ in model.named_parameters()]).graph

    def plans(parts):
        made = [serialized(graph, op, BOW, OUTPUTS, parts) for op in graph.ops if op.module == "head"]
        return [plan for plan in made if plan is not None]

    return plans


def cycles(plan):
    return plan.cycles(Profile.CALIBRATED)


def test_in_one_part_nothing_changes(products):
    sizes = [(ROWS, INPUTS, OUTPUTS), (OUTPUTS, ROWS, INPUTS), (ROWS, OUTPUTS, INPUTS)]
    assert sorted(map(cycles, products(1))) == pytest.approx(sorted(cycles(plan_matmul(*s, 4, BOW)) for s in sizes))


def test_each_product_is_so_many_smaller_ones_and_the_inputs_gradient_adds_them_up(products):
    quarter = OUTPUTS // 4
    expected = [4 * cycles(plan_matmul(*s, 4, BOW)) for s in ((ROWS, INPUTS, quarter), (quarter, ROWS, INPUTS))]
    adding = 3 * cycles(plan_elementwise("add", ROWS * INPUTS, 4, BOW))
    expected.append(4 * cycles(plan_matmul(ROWS, quarter, INPUTS, 4, BOW)) + adding)
    assert sorted(map(cycles, products(4))) == pytest.approx(sorted(expected))
    assert {plan.flops for plan in products(4)} == {2 * ROWS * INPUTS * OUTPUTS}
    assert all(plan.split["serial"] >= 4 for plan in products(4))


def test_with_a_smaller_share_of_memory_products_take_more_turns_and_no_less_time():
    plans = [
        plan_matmul(1024, 1024, 4096, 2, Machine(target=BOW.target, matmul_proportion=share))
        for share in (0.6, 0.1, 0.02)
    ]
    assert [plan.split["serial"] for plan in plans] == sorted(plan.split["serial"] for plan in plans)
    assert cycles(plans[0]) < cycles(plans[1]) < cycles(plans[2])
    for plan, share in zip(plans, (0.6, 0.1, 0.02), strict=True):
        assert plan.temporary_bytes <= share * BOW.target.memory_per_tile
