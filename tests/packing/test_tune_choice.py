"""Which shapes the tuner tries, and which of them it takes, worked out by hand for trials whose outcome is given."""

import pytest

from popgeo.packing import tune

# Around 16 graphs of 10 nodes, and 1 node of padding: 161 nodes, and a quarter of that either way.
LENGTHS = [160, 168, 152, 176, 144, 184, 136, 192, 128, 200]


def test_without_nodes_no_slot_is_kept_for_padding():
    shape = tune([[8, 16]] * 40, 4, num_node_dims=0)
    assert shape.budget.sizes == shape.slots == (32, 64)
    assert shape.efficiency[0] > 0.97


def test_the_largest_graph_fits_beside_the_padding():
    assert tune([80] * 50, 1).slots == (88,)
    assert tune([79] * 50, 1).slots == (80,)


def test_slots_need_not_be_multiples_of_more_than_one():
    assert tune([7] * 60, 3, align=1).slots == (22,)


@pytest.mark.parametrize("refused", [{"target_graphs": 0.5}, {"align": 0}, {"target_graphs": 0, "align": 0}])
def test_less_than_a_graph_or_a_slot_is_refused(refused):
    with pytest.raises(ValueError, match="both must be at least 1"):
        tune([3, 4], **{"target_graphs": 4, **refused})
