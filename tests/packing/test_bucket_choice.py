"""Which ranges get shapes of their own, by hand, for shapes whose cost is given."""

import numpy as np
import pytest

from popgeo.packing import Budget, Shape, tune_buckets
from popgeo.packing.buckets import Buckets, _equal_shares

# Each size is a third of all nodes. Two ranges of equal shares are sizes 1 and 2, and size 3.
SIZES = [1] * 12 + [2] * 6 + [3] * 4


def shape(slots: tuple[int, ...], graphs_per_batch: float) -> Shape:
    budget = Budget(sizes=slots, num_graphs=9)
    return Shape(
        slots=slots,
        num_graphs=10,
        budget=budget,
        efficiency=(1.0,),
        graphs_per_batch=graphs_per_batch,
        reason="given",
    )


@pytest.fixture
def tuned(monkeypatch):
    """Gives the graphs of a range, named by its smallest and its largest, a cost each; keeps the calls."""

    def give(costs):
        calls = []

        def tune(sizes, **arguments):
            calls.append((len(sizes), arguments))
            return shape((1,), 1 / costs[int(sizes.min()), int(sizes.max())])

        monkeypatch.setattr("popgeo.packing.buckets.tune", tune)
        return calls

    return give


COSTS = {(1, 3): 1.0, (1, 2): 0.9, (3, 3): 1.0, (2, 2): 0.9}


@pytest.mark.parametrize(
    ("smallest", "expected", "cost"),
    [
        (0.7, (1, 2, 3), (12 * 0.7 + 6 * 0.9 + 4) / 22),  # 0.809, and two further shapes must save 19 %
        (0.72, (3,), 1.0),  # 0.820
    ],
)
def test_every_further_shape_must_save_its_part(tuned, smallest, expected, cost):
    calls = tuned({**COSTS, (1, 1): smallest})  # two ranges cost (18 * 0.9 + 4) / 22 = 0.918, and are not worth it
    found = tune_buckets(SIZES, 5, worth=0.1, max_buckets=3, align=4, num_node_dims=0, progress_bar=False)
    assert found.largest == expected
    assert found.cost == pytest.approx(cost, abs=1e-12)
    assert len(found) == len(expected)
    assert [number for number, _ in calls] == [22, 18, 4, 12, 6, 4]
    mean = 36 / 22
    assert [arguments["cost"] for _, arguments in calls] == [None, *[(1 / mean,)] * 5]
    for _, arguments in calls:
        assert {**arguments, "cost": None} == {
            "target_graphs": 5,
            "align": 4,
            "num_node_dims": 0,
            "progress_bar": False,
            "cost": None,
        }


def test_shapes_are_tuned_as_one_would_be_unless_told_otherwise(tuned):
    calls = tuned(COSTS)
    tune_buckets(SIZES, 5, max_buckets=1)
    assert calls == [(22, {"target_graphs": 5, "align": 8, "num_node_dims": 1, "progress_bar": None, "cost": None})]


def test_a_third_shape_is_held_against_two(tuned):
    tuned({**COSTS, (1, 2): 0.5, (1, 1): 0.42, (2, 2): 0.42})  # 0.591, then 0.525, which is 11 % less
    assert tune_buckets(SIZES, 5, worth=0.1).largest == (1, 2, 3)
    assert tune_buckets(SIZES, 5, worth=0.12).largest == (2, 3)
    tuned({**COSTS, (1, 2): 0.77, (1, 1): 0.72, (2, 2): 0.72})  # 0.812, then 0.771, which is 5.04 % less
    assert tune_buckets(SIZES, 5).largest == (1, 2, 3)
    tuned({**COSTS, (1, 2): 0.77, (1, 1): 0.722, (2, 2): 0.722})  # 0.7725, which is 4.8 % less
    assert tune_buckets(SIZES, 5).largest == (2, 3)


def test_up_to_four_shapes_are_tried_unless_told_otherwise(tuned):
    sizes = list(range(1, 61))
    costs = {(low, high): 10.0 * (high - low + 1) for low in range(1, 61) for high in range(low, 61)}
    tuned(costs)
    assert [len(tune_buckets(sizes, 5)), len(tune_buckets(sizes, 5, max_buckets=6))] == [4, 6]
    assert len(tune_buckets(sizes, 5, max_buckets=1)) == 1


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        (SIZES, 2, (2, 3)),
        (SIZES[::-1], 3, (1, 2, 3)),
        ([10] * 40 + [100] * 4, 2, (10, 100)),
        ([10] * 6 + [100] * 4, 2, (100,)),  # a size that has more than a share ends all of them
        ([1, 2, 3, 4], 2, (3, 4)),  # 1 and 2 are 3 of 10, with 3 they are over half
        ([1, 2, 3, 4], 4, (2, 3, 4)),  # quarters are 2.5: 2, 3 and 4 pass 2.5, 5 and 7.5
    ],
)
def test_ranges_hold_equal_shares(sizes, count, expected):
    assert _equal_shares(np.array(sizes), count) == expected


def test_which_graphs_belong_to_a_range():
    buckets = Buckets(largest=(2, 5), shapes=(shape((9,), 1), shape((9,), 1)), cost=1.0)
    assert [ids.tolist() for ids in buckets.ids([[5, 0], [0, 9], [2, 9], [3, 9]])] == [[1, 2], [0, 3]]
    assert [ids.tolist() for ids in buckets.ids([])] == [[], []]
    with pytest.raises(ValueError, match="Graph 1 has first size 6, the last range ends at 5"):
        buckets.ids([3, 6])


def test_no_bucket_is_refused_but_one_is_not():
    with pytest.raises(ValueError, match="max_buckets is 0"):
        tune_buckets([7, 8], 1, max_buckets=0)
    assert len(tune_buckets([7, 8], 1, max_buckets=1)) == 1
