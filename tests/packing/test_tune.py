"""The tuner picks shapes that fill, and says why."""

import numpy as np
import pytest
import torch

from popgeo.packing import Budget, efficiency, tune, window
from popgeo.packing.tune import slot_costs


def molecules(num_graphs: int, spread: float = 0.06) -> np.ndarray:
    rng = np.random.default_rng(0)
    nodes = rng.binomial(18, 0.5, num_graphs) + 9
    return np.stack([nodes, np.rint(nodes * rng.normal(2.07, spread, num_graphs).clip(1)).astype(int)], axis=1)


def test_sizes_that_share_a_divisor_get_a_length_that_it_divides():
    sizes = np.random.default_rng(0).integers(9, 31, 3000) * 3
    shape = tune(sizes, 7)
    assert shape.num_nodes % 8 == 0
    assert (shape.num_nodes - 1) % 3 == 0  # 1 node is padding


@pytest.mark.parametrize("target", [4, 32])
def test_what_is_expected_is_what_the_whole_dataset_gives(target):
    sizes = molecules(60_000)
    shape = tune(sizes, target)
    packs = window(sizes, shape.budget, generator=torch.Generator().manual_seed(7))
    found = efficiency(packs, sizes, Budget(sizes=shape.slots, num_graphs=shape.num_graphs))
    assert found.sizes == pytest.approx(shape.efficiency, abs=0.006)
    assert abs(shape.graphs_per_batch - target) <= target / 4


def test_slots_keep_one_node_and_one_graph_for_padding():
    shape = tune(molecules(2000), 8, align=16)
    assert shape.num_nodes % 16 == shape.num_edges % 16 == 0
    assert shape.budget.sizes == (shape.num_nodes - 1, shape.num_edges)
    assert shape.budget.num_graphs == shape.num_graphs - 1


def test_a_giant_raises_the_shape_so_that_it_fits():
    shape = tune([[10, 20]] * 50 + [[500, 1400]], 4)
    assert shape.num_nodes >= 501
    assert shape.num_edges >= 1400


def test_dear_edges_are_given_less_slack():
    sizes = molecules(6000, spread=1.0)
    dear, cheap = tune(sizes, 8, cost=(1, 10)), tune(sizes, 8, cost=(1, 0.001))
    assert dear.efficiency[1] > cheap.efficiency[1] + 0.01
    assert dear.efficiency[0] < cheap.efficiency[0]


def test_every_node_type_keeps_its_own_padding():
    sizes = np.column_stack([molecules(3000), molecules(3000)[::-1]])[:, [0, 2, 1, 3]]
    shape = tune(sizes, 8, num_node_dims=2)
    assert [slots - real for slots, real in zip(shape.slots, shape.budget.sizes, strict=True)] == [1, 1, 0, 0]


def test_a_node_type_that_no_graph_has_does_not_spoil_the_others():
    sizes = np.column_stack([np.zeros(500, int), np.full(500, 10), np.full(500, 20)])
    shape = tune(sizes, 20, num_node_dims=2)
    assert shape.graphs_per_batch == pytest.approx(20, abs=0.3)
    assert shape.slots[1] >= 201


def test_graphs_without_edges_need_no_edge_slots():
    assert tune([[10, 0], [12, 0]] * 100, 8).num_edges == 0


def test_the_reason_names_the_shape():
    shape = tune(molecules(2000), 8)
    assert f"{shape.num_nodes} nodes" in shape.reason
    assert "8" in shape.reason


@pytest.mark.parametrize(
    ("sizes", "arguments", "reason"),
    [([], {}, "empty"), ([3], {"target_graphs": 0}, "target_graphs is 0"), ([3], {"cost": (1, 2)}, "cost is")],
)
def test_what_cannot_be_tuned_is_refused(sizes, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        tune(np.array(sizes, int), **{"target_graphs": 4, **arguments})


def test_a_dimension_that_no_graph_uses_goes_unmentioned():
    shape = tune(molecules(2000) * [1, 0], 16)
    assert shape.num_edges == 0
    assert "edges" not in shape.reason
    assert "nodes" in shape.reason


def test_what_slots_cost():
    assert slot_costs([[4, 0], [12, 0]], None) == (0.125, 0.0)
    assert slot_costs([[4, 1]], (0, 2.5)) == (0, 2.5)
    for refused in ((0, 0), (-1, 1), (1,)):
        with pytest.raises(ValueError, match="cost is"):
            slot_costs([[4, 1]], refused)


def test_a_length_that_fills_is_looked_for_also_far_from_the_target():
    # Around 351 nodes; 3 graphs fill 304 by 98.7 %, 4 fill 408 by 98.0 %, and 3 the twelve lengths between by less.
    assert tune(np.full(300, 100), 3.5).num_nodes == 304


def test_one_graph_a_batch_can_be_asked_for():
    assert tune([3, 4, 5], 1).graphs_per_batch >= 1
