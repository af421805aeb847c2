"""Figures of packing show the real share of batches and of strategies."""

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose

from popgeo import plots
from tests.support.figures import DRAW, FILL, SUMMARY, lines, texts


def test_batch_fill_draws_each_batch_and_says_the_mean_in_percent():
    ax = DRAW["batch_fill"]()
    assert texts(ax) == ["nodes, mean 97.0 %", "edges, mean 85.0 %", "graphs, mean 60.0 %"]
    for line, column in zip(ax.get_lines(), FILL, strict=True):
        assert_allclose(line.get_xydata(), np.c_[[0, 1], FILL[column]])
    assert ax.yaxis.get_major_formatter()(0.5) == "50"
    assert "%" in ax.get_ylabel()


def test_efficiency_over_budget_draws_each_strategy_in_order_of_num_nodes_with_the_bound():
    drawn = lines(DRAW["efficiency_over_budget"]())
    assert list(drawn) == ["bound", "window", "stream"]
    assert_allclose(drawn["window"].get_xydata(), [[64, 0.95], [128, 0.99]])
    assert_allclose(drawn["stream"].get_xydata(), [[64, 0.9]])
    assert_allclose(drawn["bound"].get_xydata(), [[64, 0.97], [128, 1.0]])


def test_strategies_stand_side_by_side_with_their_percentages():
    ax = DRAW["strategies"]()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["pad to max", "window"]
    for bars, column in zip(ax.containers, ("nodes", "edges"), strict=True):
        assert bars.get_label() == column
        assert_allclose([bar.get_height() for bar in bars], SUMMARY[column])
    assert [text.get_text() for text in ax.texts] == ["62", "99", "60", "98"]
    left = [[bar.get_x() for bar in bars] for bars in ax.containers]
    assert left[0][0] < left[1][0] < left[0][1]


def test_a_strategy_that_is_nearly_full_is_not_called_full():
    ax = plots.strategies(pd.DataFrame({"strategy": ["window", "perfect"], "nodes": [0.9999, 1.0]}))
    assert [text.get_text() for text in ax.texts] == ["99.99", "100"]


def test_batch_mean_sizes_are_densities_over_the_same_bins():
    ax = DRAW["batch_mean_sizes"]()
    assert texts(ax) == ["packed: 18.00 ± 0.41", "i.i.d.: 18.00 ± 2.45"]
    areas = []
    for collection in ax.collections:
        x, y = collection.get_paths()[0].vertices.T
        areas.append(abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2)
        assert x.min() >= 15 - 0.01
        assert x.max() <= 21 + 0.01
    assert_allclose(areas, 1, rtol=1e-6)
