"""A comparison of two reports explains the whole difference."""

import pytest
import torch

from popgeo import ipu


def test_a_comparison_explains_the_whole_difference():
    double = ipu.compile(lambda x: (2 * x).relu(), [torch.ones(300_000)]).report
    half = ipu.compile(lambda x: (2 * x).relu(), [torch.ones(150_000)]).report
    comparison = double.compare(half)
    for rows in ("families", "ops"):
        table = comparison.to_frame(rows)
        table = table[~table.isin(["host", "(host)"]).any(axis=1)]
        assert table["difference"].sum() == pytest.approx(half.total_cycles - double.total_cycles, abs=1)
    assert comparison.speedup == pytest.approx(double.total_cycles / half.total_cycles)
    assert "mul" in str(comparison)
    assert double.compare(double).to_frame("ops")["difference"].abs().max() == 0


def test_other_rows_are_refused(report):
    with pytest.raises(ValueError, match="No rows of 'layers'; a comparison has families, blocks, ops"):
        report.compare(report).to_frame("layers")
