"""A report needs no run, and keeps the facts that it is given."""

import dataclasses

import pytest
import torch

from popgeo import ipu
from popgeo.ipu.report.figures import Figures


def test_a_report_of_a_large_gather_comes_without_running_it():
    def gather(x, index):
        assert isinstance(x, torch._subclasses.FakeTensor)
        return x.index_select(0, index)

    x, index = torch.empty(4096, 512), torch.empty(32768, dtype=torch.int64)
    report = ipu.compile(gather, [x, index], target=ipu.IpuTarget.bow()).report
    assert report.total_cycles > 10_000
    assert report.microseconds == pytest.approx(report.total_cycles / 1850)


def test_a_report_is_frozen_and_knows_its_fields_by_name(report):
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.calls = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.anything = 3
    assert [field.name for field in dataclasses.fields(ipu.Report)] == [f.name for f in dataclasses.fields(Figures)]
    for field in dataclasses.fields(ipu.Report):
        assert field.kw_only
        assert f"    {field.name}: " in ipu.Report.__doc__


def test_what_a_report_is_changed_into_is_a_report(report):
    for other in (report + report, report.for_batch(graphs=3), dataclasses.replace(report, calls=1)):
        assert type(other) is ipu.Report
    assert dataclasses.replace(report, calls=1) != report


def test_more_real_slots_than_there_are_is_refused(report):
    with pytest.raises(ValueError, match="cannot be more than the slots"):
        report.for_batch(real={12: 13})


@pytest.mark.parametrize("form", ["to_html", "to_chrome_trace"])
def test_a_form_is_written_where_it_is_wanted(report, tmp_path, form):
    content = getattr(report, form)(tmp_path / "report")
    assert (tmp_path / "report").read_text(encoding="utf-8") == content
