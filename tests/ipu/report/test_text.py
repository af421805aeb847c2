"""The report of any step fits on one screen."""

import torch

from popgeo import ipu
from popgeo.quantity import quantity
from tests.support.small_models import training_report


def test_it_prints_on_one_screen(report):
    lines = str(report).splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    assert not any(line.endswith("…") for line in lines)  # long lines are wrapped
    assert f"{report.total_cycles:,} cycles" in lines[1]
    assert "graphs/s" in lines[1]
    assert any("this computer (not IPU time)" in line for line in lines)


def test_families_in_words_are_those_of_the_report():
    report = training_report(gradient_accumulation=3)
    last = " ".join(str(report)[str(report).index("; a step runs ") :].split())
    most_moved = max(report.families, key=lambda name: report.families[name].bytes)
    assert f"a step runs {report.families[most_moved].ops} {most_moved}" in last
    assert quantity(report.total.flops, "FLOP") in str(report)


def test_what_this_computer_runs_is_counted_once_however_many_micro_batches_there_are():
    once, thrice = (training_report(gradient_accumulation=n) for n in (1, 3))
    counted = [str(report).split("(not IPU time): ")[1].split(" captured")[0] for report in (once, thrice)]
    assert counted[0] == counted[1]
    left, captured = map(int, counted[0].split(" operations of "))
    assert captured == once.captured_ops
    assert 0 < left <= captured


def test_a_function_that_only_looks_at_memory_costs_nothing_and_is_shown_all_the_same():
    report = ipu.compile(lambda x: x.view(-1), [torch.ones(3, 2)]).report
    assert report.total_cycles == 0
    assert "0 cycles" in str(report)
    assert not report.insights
    assert report.compare(report).speedup == 1
    assert report.for_batch(graphs=3).graphs_per_second is None
    assert report.to_html()
    assert len(report.to_frame("families")) == 2  # host and view
