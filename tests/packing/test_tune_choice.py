"""Which shapes the tuner tries, and which of them it takes, worked out by hand for trials whose outcome is given."""

from collections.abc import Callable

import numpy as np
import pytest

from popgeo.packing import tune
from popgeo.packing.tune import _lengths, _Trial, _try

# Around 16 graphs of 10 nodes, and 1 node of padding: 161 nodes, and a quarter of that either way.
LENGTHS = [160, 168, 152, 176, 144, 184, 136, 192, 128, 200]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list]:
    """Gives the trials of lengths their fills, and those of shapes their graphs per pack; keeps what is tried."""

    def give(fills: dict[int, float], graphs: dict[int, float]) -> list:
        calls = []

        def trial(sample, slots, padding):
            first_stage = len(calls) < len(LENGTHS)
            calls.append((tuple(slots.tolist()), sample.shape, tuple(padding.tolist())))
            full = fills.get(int(slots[0]), 1.0) if first_stage else 0.5
            per_pack = graphs.get(int(slots[0]), 1.0)
            return _Trial(slots=slots, fills=(full,) * len(slots), graphs_per_pack=per_pack, most_graphs=20)

        monkeypatch.setitem(tune.__globals__, "_try", trial)
        return calls

    return give


def test_the_five_closest_lengths_that_fill_are_tried_with_nine_amounts_of_slack(tried):
    calls = tried({168: 0.95, 152: 0.9965, 176: 0.995}, {})
    shape = tune([[10, 1000]] * 40, 16)
    lengths, shapes = calls[: len(LENGTHS)], calls[len(LENGTHS) :]
    assert lengths == [((n,), (40, 1), (True,)) for n in LENGTHS]
    assert {slots[0] for slots, _, _ in shapes} == {160, 152, 144, 184, 136}
    assert all((size, padding) == ((40, 2), (True, False)) for _, size, padding in shapes)
    # 159 nodes are 15.9 graphs, of 1000 edges each; no slack, then 0.5, 1, 2, 5, 10, 20, 40 and 80 %, in eights.
    edges = [15904, 15984, 16064, 16224, 16696, 17496, 19080, 22264, 28624]
    assert sorted(slots[1] for slots, _, _ in shapes if slots[0] == 160) == edges
    assert len(shapes) == 45
    assert "of 45 shapes tried" in shape.reason


def test_of_the_shapes_about_as_cheap_as_the_cheapest_the_closest_to_the_target_is_taken(tried):
    # Slots for a graph: 9.941 of 168, 9.954 of 152 and 9.951 of 144, all within 0.2 %; 10.013 of 160 are too many.
    tried({}, {168: 16.9, 152: 15.27, 144: 14.47, 160: 15.98, 176: 3.0})
    shape = tune([10] * 40, 16)
    assert (shape.slots, shape.budget.sizes, shape.graphs_per_batch) == ((152,), (151,), 15.27)
    assert shape.num_edges == 0
    assert "of 5 shapes tried" in shape.reason


def test_the_cheapest_is_that_of_all_dimensions_at_their_cost(tried):
    graphs = {160: 16.0, 168: 16.05, 152: 15.0, 176: 16.1, 144: 14.0}
    tried({}, graphs)
    assert tune([[10, 20]] * 40, 16, cost=(1, 0)).slots[0] == 160
    tried({}, {**graphs, 176: 17.8})
    assert tune([[10, 20]] * 40, 16, cost=(1, 2)).slots == (176, 352)


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


def test_lengths_end_at_a_quarter_of_what_is_wanted():
    assert _lengths(161, 0, 8) == LENGTHS
    assert _lengths(40, 0, 4) == [40, 36, 44, 32, 48]  # 30 and 50 would be a quarter, and are no multiples
    assert _lengths(40, 0, 5) == [40, 35, 45, 30, 50]
    assert _lengths(1000, 0, 10) == [1000, *(1000 + sign * 10 * far for far in range(1, 13) for sign in (-1, 1))]


def test_a_trial_of_one_slot_can_be_full():
    trial = _try(np.array([[1, 0]]), np.array([1, 0]), np.array([False, False]))
    assert (trial.fills, trial.graphs_per_pack, trial.most_graphs) == ((1.0, 0.0), 1.0, 1)
