"""Reports of the same machine add up."""

import dataclasses

import pytest

from popgeo import ipu


def test_reports_add_up_to_what_both_cost(report):
    both = report + report
    assert both.total_cycles == pytest.approx(2 * report.total_cycles, abs=1)
    assert vars(both.total) == pytest.approx(vars(report.total + report.total))
    assert both.graphs_per_second == pytest.approx(report.graphs_per_second, rel=1e-3)
    with pytest.raises(ValueError, match=r"Reports add up on one target and profile, not Bow .* and GC2"):
        report + dataclasses.replace(report, target=ipu.IpuTarget.gc2())
