"""Several shapes, only where one wastes too much."""

import numpy as np
import pytest

from popgeo.packing import stream, tune_buckets


def test_one_shape_is_enough_where_graphs_combine():
    sizes = np.random.default_rng(0).integers(9, 28, 4000)
    assert len(tune_buckets(sizes, 16)) == 1


def test_graphs_over_half_a_pack_get_shapes_of_their_own_size():
    sizes = np.random.default_rng(0).integers(501, 1001, 4000)
    buckets = tune_buckets(sizes, 1)
    slots = sum(
        len(stream(sizes[ids], shape.budget)) * shape.num_nodes
        for ids, shape in zip(buckets.ids(sizes), buckets.shapes, strict=True)
    )
    assert len(buckets) == 3
    assert sizes.sum() / slots > 0.87  # one shape of 1008 nodes is filled to 0.744
    assert buckets.cost == pytest.approx(0.744 / (sizes.sum() / slots), abs=0.01)


def test_every_graph_is_in_one_bucket_and_fits_its_shape():
    sizes = np.random.default_rng(0).integers(501, 1001, (2000, 2))
    buckets = tune_buckets(sizes, 1)
    ids = buckets.ids(sizes)
    assert sorted(np.concatenate(ids).tolist()) == list(range(2000))
    for part, shape in zip(ids, buckets.shapes, strict=True):
        assert (sizes[part].max(axis=0) <= np.array(shape.budget.sizes)).all()


def test_a_shape_must_be_worth_its_compilation():
    sizes = np.random.default_rng(0).integers(501, 1001, 2000)
    assert len(tune_buckets(sizes, 1, worth=0.5)) == 1
    assert len(tune_buckets(sizes, 1, max_buckets=2)) == 2


def test_equal_sizes_are_one_bucket():
    assert len(tune_buckets([7] * 100, 1)) == 1


def test_a_graph_larger_than_all_ranges_is_named():
    with pytest.raises(ValueError, match="Graph 1 has first size 8"):
        tune_buckets([7] * 100, 1).ids([3, 8])


def test_no_bucket_at_all_is_refused():
    with pytest.raises(ValueError, match="max_buckets is 0"):
        tune_buckets([7], 1, max_buckets=0)
