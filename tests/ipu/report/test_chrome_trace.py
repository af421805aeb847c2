"""The trace of a step, as chrome://tracing reads it."""

import itertools
import json

import pytest


def test_the_trace_gives_each_superstep_its_place_in_time(report):
    trace = json.loads(report.to_chrome_trace())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert {"(optimizer)", "filters.0"} <= names
    device = sorted((e for e in spans if not e["cat"].startswith("host")), key=lambda e: e["ts"])
    for event, following in itertools.pairwise(device):
        assert following["ts"] == pytest.approx(event["ts"] + event["dur"])
    assert sum(event["dur"] for event in device) == pytest.approx(report.microseconds, rel=1e-3)
