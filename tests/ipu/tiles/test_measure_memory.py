"""Bytes per tile: by hand on a small machine, by liveness, and refused if a tile has too few."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from popgeo.capture.capture import bind, capture
from popgeo.ipu import IpuTarget, training_model
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.fits_in_memory import OutOfTileMemory, require_fit
from popgeo.ipu.tiles.measure_memory import memory
from popgeo.ipu.tiles.tile_mapping import blocked, concatenated, from_holders, linear
from popgeo.nn import SchNet

SMALL = IpuTarget(name="small", num_tiles=4, memory_per_tile=400_000, clock=1e9, float32_macs=16, float16_macs=64)


def use_of(function, *shapes, target=SMALL):
    tensors = [torch.empty(shape) for shape in shapes]
    graph = capture(function, bind(function, *tensors)).graph
    costs = cost(graph, target)
    return memory(graph, costs, target), costs


def test_a_linear_mapping_fills_a_grain_before_the_next_tile():
    use, _ = use_of(torch.relu, (48,))  # 32 float32 are 128 bytes; operand and result
    assert use.categories["inputs and results"].tolist() == [2 * 128, 2 * 64, 0, 0]


def test_values_live_from_their_maker_to_their_last_reader():
    def chain(x):
        for _ in range(5):
            x = torch.cos(x)
        return x

    use, costs = use_of(chain, (4, 32))  # 128 bytes a tile and value; never more than two are needed at once
    temporary = max(c.plan.temporary_bytes for c in costs)
    assert 2 * 128 <= use.categories["values"].max() <= 2 * 128 + temporary


def test_a_repeated_operation_adds_a_call_and_no_code():
    once, _ = use_of(torch.cos, (4, 32))
    thrice, _ = use_of(lambda x: x.cos().cos().cos(), (4, 32))
    for category in ("vertex code", "vertex state", "exchange code"):
        assert thrice.categories[category].tolist() == once.categories[category].tolist(), category
    assert (thrice.categories["control code"] - once.categories["control code"] == 2 * 60).all()


def test_a_view_takes_no_memory():
    viewed, _ = use_of(lambda x: torch.relu(x.view(32, 4).t()), (128,))
    plain, _ = use_of(torch.relu, (128,))
    assert viewed.categories["inputs and results"].tolist() == plain.categories["inputs and results"].tolist()


def test_what_exceeds_a_tile_is_refused_by_tile_operation_and_value():
    use, costs = use_of(torch.relu, (400, 1000))
    assert not use.fits
    message = r"Tile \d needs [\d,]+ bytes of its 400,000 while aten.relu.default.*inputs\[0\]"
    with pytest.raises(OutOfTileMemory, match=message):
        require_fit(use, costs)
    require_fit(*use_of(torch.relu, (4, 100)))


class Energies(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = SchNet(hidden_channels=100, num_filters=100, num_interactions=6, num_gaussians=25, cutoff=6.0)

    def forward(self, z, pos, batch, y):
        return (self.net(z, pos, batch, num_graphs=32).squeeze(-1) - y).square().mean()


def test_the_memory_of_a_six_block_schnet_step_is_known_in_less_time_than_the_step_takes_to_compile():
    model, start = Energies(), time.process_time()
    step = training_model(model, optimizer=torch.optim.Adam(model.parameters()))
    step.compile(torch.ones(288, dtype=torch.long), torch.randn(288, 3), torch.arange(288) // 9, torch.randn(32))
    target = IpuTarget.bow()
    costs, compiled = cost(step.graph, target), time.process_time()
    use = memory(step.graph, costs, target, num_results=1)
    assert time.process_time() - compiled < compiled - start
    assert use.peak.shape == (1472,)
    assert len(use.curve) == len(step.graph.ops)
    weights = sum(p.numel() for p in model.parameters()) * 4
    assert weights <= use.categories["weights and optimizer"].sum() <= 1.2 * weights + 2**16
    assert use.always_live.max() < use.peak.max() == use.curve.max()


def test_adam_keeps_three_numbers_for_each_weight_and_sums_of_gradients_a_fourth():
    model = Squares()
    step = training_model(model, optimizer=torch.optim.Adam(model.parameters())).compile(torch.ones(8, 64))
    update = step.update.capture()
    costs = cost(step.graph, SMALL), cost(update, SMALL)

    def kept(**options):
        use = memory(step.graph, costs[0], SMALL, update=update, update_costs=costs[1], num_results=1, **options)
        assert len(use.curve) == len(step.graph.ops) + len(update.ops)
        return use.categories["weights and optimizer"].sum()

    weights = (64 * 64 + 64) * 4
    assert 3 * weights <= kept() <= 3 * weights + 64
    assert kept(accumulates=True) == kept() + weights


class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):
        return self.inner(x).square().mean()


@pytest.mark.parametrize(("row_parts", "column_parts"), [(1, 1), (3, 2), (5, 7), (2, 4)])
def test_blocks_hold_each_element_once(row_parts, column_parts):
    mapping = blocked(5, 7, row_parts, column_parts, num_tiles=8)
    high, wide = -(-5 // row_parts), -(-7 // column_parts)
    across = -(-7 // wide)
    expected = [(r // high * across + c // wide) % 8 for r in range(5) for c in range(7)]
    assert mapping.holders().tolist() == expected
    assert mapping.elements_per_tile(8).sum() == 35


def test_mappings_join_end_to_end():
    joined = concatenated([linear(40, 4, 32), blocked(2, 4, 2, 2, 4)])
    assert joined.holders().tolist() == [0] * 32 + [1] * 8 + [0, 0, 1, 1, 2, 2, 3, 3]
    assert np.array_equal(from_holders(joined.holders()).holders(), joined.holders())
