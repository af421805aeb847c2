"""Pictures of graphs and batches show each edge and slot once, and distinguish padding from real rows."""

import pytest
from matplotlib.colors import to_rgb
from numpy.testing import assert_allclose

from popgeo import plots


def test_a_matrix_tells_edges_padding_and_padding_edges_apart():
    ax = plots.adjacency([[0, 3], [1, 2]], 4, batch=[0, 0, 1, 1], nodes_mask=[True, True, False, False])
    cells = ax.images[0].get_array()
    nothing, block, padding, edge, padding_edge = range(5)
    assert cells.tolist() == [
        [block, block, padding, padding],
        [edge, block, padding, padding],
        [padding, padding, padding, padding_edge],
        [padding] * 4,
    ]
    assert nothing not in cells


def test_a_layout_has_one_box_a_graph_as_wide_as_the_graph():
    ax = plots.batch_layout([[3, 4], [5]], num_slots=8, quantity="edges")
    boxes = ax.collections[0].get_paths()
    assert_allclose(
        [path.get_extents().bounds for path in boxes], [(0, -0.4, 3, 0.8), (3, -0.4, 4, 0.8), (0, 0.6, 5, 0.8)]
    )
    assert ax.get_xlim() == (0, 8)
    assert ax.get_title() == "75.0 % of the edges are real"
    assert to_rgb(ax.collections[0].get_facecolor()[0]) == pytest.approx(plots.COLORS["edges"])


def test_a_layout_refuses_a_batch_that_overflows():
    with pytest.raises(ValueError, match="A batch needs 9 slots, but num_slots is 8"):
        plots.batch_layout([[4, 5]], num_slots=8)


def test_a_histogram_counts_the_same_whether_sizes_are_listed_or_counted():
    listed, counted = plots.size_histogram([3, 6, 6, 9]), plots.size_histogram([3, 6, 9], [1, 2, 1])
    for ax in (listed, counted):
        assert_allclose([bar.get_height() for bar in ax.patches], [0.25, 0.5, 0.25])
        assert ax.get_legend().get_texts()[0].get_text() == "mean 6.0"
