"""The text about trust uses the names of the families."""

import pytest
import torch

from popgeo import ipu, ops
from popgeo.capture.operations import OPERATIONS
from popgeo.ipu.report.text import ERROR_BANDS, ERROR_BANDS_OF_OPERATIONS, footer

INDEX = torch.zeros(4096, dtype=torch.int64)
STEPS = {
    "gather 7%": lambda: ipu.compile(lambda x, i: x.index_select(0, i), [torch.ones(512, 64), INDEX]),
    "scatter 5%": lambda: ipu.compile(
        lambda x, i: torch.zeros(512, 64).index_add(0, i, x), [torch.ones(4096, 64), INDEX]
    ),
    "matmul 8%": lambda: ipu.compile(torch.mm, [torch.ones(1024, 64), torch.ones(64, 64)]),
    "cfconv 6%": lambda: ipu.compile(
        lambda x, w, i: ops.cfconv(x, w, i, i, num_nodes=512), [torch.ones(512, 64), torch.ones(4096, 64), INDEX]
    ),
}


def test_bands_are_those_of_families_and_operations_that_exist():
    assert set(ERROR_BANDS) <= {row.family for row in OPERATIONS.values()}
    assert {f"popgeo.{name}" for name in ERROR_BANDS_OF_OPERATIONS} <= set(OPERATIONS)


@pytest.mark.parametrize("band", STEPS)
def test_the_error_of_what_was_measured_is_printed_where_it_occurs(band):
    report = STEPS[band]().report
    assert footer(report)[2] == f"  median error on published Bow IPU figures at most: {band}"
    assert band in str(report)
    assert band in report.to_html()


def test_all_errors_fit_on_one_line():
    reports = [make().report for make in STEPS.values()]
    (line,) = [line for line in str(sum(reports[1:], reports[0])).splitlines() if "median error" in line]
    assert line.endswith(": " + ", ".join(STEPS))


def test_no_error_is_printed_where_none_was_measured():
    report = ipu.compile(torch.exp, [torch.ones(100)]).report
    assert len(footer(report)) == 2


def test_no_error_is_printed_for_what_is_an_estimate_of_a_measured_family():
    edges, index = torch.ones(4096, 64), torch.zeros(4096, dtype=torch.int64)
    largest = ipu.compile(lambda x, i: ops.scatter(x, i, dim=0, dim_size=512, reduce="max"), [edges, index]).report
    assert "scatter" in largest.families
    assert len(footer(largest)) == 2


def test_shares_of_trust_add_up_to_the_cycles_of_the_machine(report):
    budget = report.error_budget
    assert budget.validated + budget.extrapolated + budget.estimates == pytest.approx(1)
    table = report.to_frame("ops")
    validated = table.loc[table["trust"] == "validated", "share"].sum()
    assert budget.validated == pytest.approx(validated)
