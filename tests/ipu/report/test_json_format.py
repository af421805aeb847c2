"""Later versions can read the JSON of `to_json`."""

import dataclasses
import json

import pytest
import torch

from popgeo import ipu


def test_it_survives_json(report):
    text = report.to_json()
    back = ipu.Report.from_json(text)
    assert type(back) is ipu.Report
    assert back.to_json() == text
    assert dataclasses.replace(back, memory=None) == dataclasses.replace(report, memory=None)
    assert (back.memory.peak == report.memory.peak).all()


def test_what_is_no_report_of_this_version_is_refused(report):
    text = report.to_json()
    assert json.loads(text)["version"] == 1
    with pytest.raises(ValueError, match=r"found \('popgeo.ipu.report', 99\)"):
        ipu.Report.from_json(text.replace('"version": 1', '"version": 99', 1))
    with pytest.raises(ValueError, match="No report"):
        ipu.Report.from_json("cycles: 7")
    with pytest.raises(ValueError, match="No report of this version: found"):
        ipu.Report.from_json("[7]")


def test_other_programs_find_the_derived_figures_beside_the_fields(report):
    content = json.loads(report.to_json())
    assert content["total_cycles"] == report.total_cycles
    assert content["microseconds"] == report.microseconds
    matmul = report.families["matmul"]
    assert content["families"]["matmul"] == vars(matmul)


def test_an_older_text_is_read_in_the_words_of_today():
    report = ipu.compile(lambda x: x.cumsum(0).softmax(1), [torch.ones(40, 40)]).report
    older = json.loads(report.to_json())
    older["families"] = {"reduce": {"ops": 2, "flops": 3200, "bytes": 25600}, "optimizer": {"ops": 1}}
    for cost, words in zip(older["costs"][1:3], ("cumsum", "normalize"), strict=True):
        cost["plan"]["family"] = words
        del cost["bytes"]
    back = ipu.Report.from_json(json.dumps(older))
    assert back.to_frame("families").equals(report.to_frame("families"))
    assert {name: family.flops for name, family in back.families.items()} == {"reduce": 3250, "norms": 8040}
