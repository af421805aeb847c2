"""The kit's entry points: their output for wrong models, right models, and models that cannot be tried."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from popgeo.testing import __main__ as command
from popgeo.testing import check_conformance
from tests.testing.planted.right_models import GRAPHS, Net
from tests.testing.planted.wrong_models import batch_norm_over_padding

pytest_plugins = ["pytest_popgeo"]
WORDS = "tests.testing.planted.wrong_models:batch_norm_over_padding"


def test_the_smallest_case_is_two_nodes_and_its_script_runs():
    report = check_conformance(WORDS, GRAPHS, claims=["padding"])
    graphs = report.finding("padding").case.graphs
    assert (sum(graph.num_nodes for graph in graphs), sum(graph.num_edges for graph in graphs)) == (2, 0)
    printed: list[str] = []
    script = compile(report.finding("padding").script, "script", "exec")
    exec(script, {"print": lambda *words: printed.append(" ".join(map(str, words)))})
    assert "1 failed" in printed[0]


def test_the_report_is_text_json_and_a_page_in_which_nothing_runs():
    report = check_conformance(batch_norm_over_padding(), GRAPHS, claims=["padding", "inputs stay"], shrink_seconds=0)
    assert "1 held, 1 failed" in str(report)
    findings = json.loads(report.to_json())["findings"]
    assert [finding["status"] for finding in findings] == ["failed", "held"]
    assert "script-src 'none'" in report.html()
    assert "<script" not in report.html()
    with pytest.raises(AssertionError, match=r"(?s)padding: .*BatchNorm"):
        report.require()


def test_the_command_says_by_its_status_whether_all_holds(tmp_path: Path, capsys: pytest.CaptureFixture):
    files = ["--json", str(tmp_path / "found.json"), "--html", str(tmp_path / "found.html")]
    planted = "tests.testing.planted.wrong_models:"
    assert command.main([f"{planted}place_in_the_batch_of_molecules", "--claims", "padding"]) == 2
    assert "is not found" in capsys.readouterr().err
    right = "tests.testing.test_conformance:right_factory"
    assert command.main([right, "--claims", "inputs stay", *files]) == 0
    assert json.loads((tmp_path / "found.json").read_text())[0]["subject"] == right
    assert (tmp_path / "found.html").read_text().startswith("<!doctype html>")


def right_factory() -> tuple[nn.Module, list]:
    return Net(), GRAPHS


def test_the_fixture_fails_a_test_of_a_model_that_is_wrong(popgeo_conformance):
    popgeo_conformance(Net(), GRAPHS, claims=["padding"])
    with pytest.raises(AssertionError, match="padding"):
        popgeo_conformance(batch_norm_over_padding(), GRAPHS, claims=["padding"], shrink_seconds=0)


def test_the_plug_in_costs_nothing_where_it_is_not_used():
    code = "import sys, pytest_popgeo; sys.exit('torch' in sys.modules or 'popgeo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Noise(nn.Module):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_a_random_model_is_told_as_such_and_not_as_wrong():
    report = check_conformance(Noise(), GRAPHS)
    assert report.failed == ()
    assert "random" in report.finding("padding").words


def test_a_model_without_parameters_or_in_float16_is_tried_as_far_as_it_can_be():
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x)

    report = check_conformance(Halved().half(), GRAPHS, claims=["inputs stay", "float32"])
    assert (report.failed, report.finding("float32").words) == ((), "result is float16")
    report = check_conformance(lambda batch: batch.x, GRAPHS, claims=["gradients"])
    assert "no parameter is trained" in report.finding("gradients").words


def test_claims_have_one_order_whatever_was_imported_first():
    code = "from popgeo.testing.conformance import known_claims, SubjectKind; print([*known_claims(SubjectKind.MODEL)])"
    late = "import popgeo.testing.compile_claims, popgeo.testing.physics_claims; "
    runs = [subprocess.check_output([sys.executable, "-c", first + code]) for first in ("", late)]
    assert runs[0] == runs[1]


def test_what_the_kit_cannot_guess_is_asked_for():
    class Odd(nn.Module):
        def forward(self, x: Tensor, temperature: Tensor) -> Tensor:
            return x

    with pytest.raises(ValueError, match=r"takes temperature, which the graphs do not have; they have .*call=lambda"):
        check_conformance(Odd(), GRAPHS)
    with pytest.raises(
        ValueError, match=r"(?s)does not run on a batch of 3 graphs .*Pass graphs that the model accepts"
    ):
        check_conformance(nn.Linear(3, 3), GRAPHS)
    with pytest.raises(ValueError, match=r"^The model returned list without a tensor"):
        check_conformance(Net(), GRAPHS, call=lambda model, batch: [])
    with pytest.raises(ValueError, match="is not a claim of a model; the claims are padding"):
        check_conformance(Net(), GRAPHS, claims=["colour"])
    meta = Net().to("meta")
    with pytest.raises(ValueError, match="is on meta, but the kit runs on the CPU"):
        check_conformance(meta, GRAPHS)
