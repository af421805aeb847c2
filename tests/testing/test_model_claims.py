"""The intended claim finds each planted defect, and right models pass without a false alarm."""

import os

import pytest
import torch
from torch_geometric.data import Data

from popgeo.nn import GCN
from popgeo.testing import check_conformance
from popgeo.testing.claims import Status
from tests.testing.planted.right_models import GRAPHS, RIGHT
from tests.testing.planted.wrong_models import WRONG

# The others take a second of a core each, those of torch.compile many: POPGEO_ALL_PLANTED=1 tries them all.
ALL = bool(os.environ.get("POPGEO_ALL_PLANTED"))
QUICK = [name for name in RIGHT if ALL or name in ("energy and forces", "PyG's GCN", "a function")]
FOUND = [name for name in WRONG if ALL or WRONG[name].claim not in ("torch.compile", "export", "compiled step")]


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_defect_is_found_by_the_claim_meant_for_it(name: str):
    planted = WRONG[name]
    how = {key: value for key, value in planted.how.items() if key != "also"}
    report = check_conformance(planted.make(), GRAPHS, claims=[planted.claim], shrink_seconds=0, **how)
    assert report.failed == (planted.claim,), report.text()
    assert planted.source


@pytest.mark.parametrize("name", QUICK)
def test_a_model_that_is_right_raises_no_alarm(name: str):
    make, how = RIGHT[name]
    report = check_conformance(make(), GRAPHS, shrink_seconds=0, **how)
    assert report.failed == (), report.text()


class Scripted(torch.nn.Module):
    """A part in TorchScript, the default of e3nn, which accepts no hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.part = torch.nn.Linear(4, 1), torch.jit.script(torch.nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.lin(x))


def test_parts_in_torchscript_can_be_tried():
    graphs = [Data(x=torch.randn(3 + i, 4), edge_index=torch.tensor([[0], [1]])) for i in range(3)]
    assert check_conformance(Scripted(), graphs, shrink_seconds=0).failed == ()


def test_a_model_that_takes_attributes_by_name_can_be_exported_and_compiled():
    claims = ["padding", "export", "compiled step"]  # the first caches runs; a copy of the model must not contain them
    report = check_conformance(GCN(3, 8, 2, readout="mean"), GRAPHS, claims=claims, slow=True, shrink_seconds=0)
    assert [finding.status for finding in report.findings] == [Status.HELD] * 3, report.text()
