"""Each insight appears if a captured step has the fault, and only then."""

import dataclasses

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.capture.operations import OPERATIONS
from popgeo.ipu.report.insights import SEARCHES, SOFTWARE_FUNCTIONS
from popgeo.nn import CosineEnvelope, PolynomialEnvelope
from popgeo.nn.atom_edges import Edges
from popgeo.nn.models.schnet import InteractionBlock

SMALL = dataclasses.replace(ipu.IpuTarget.bow(), num_tiles=4, memory_per_tile=64 * 1024)


class Block(nn.Module):
    """One interaction block of SchNet with its envelope."""

    def __init__(self, envelope: nn.Module) -> None:
        super().__init__()
        self.envelope, self.block = envelope, InteractionBlock(16, 25, 16, stable=False)

    def forward(self, x, rbf, r, edge_index):
        return self.block(x, rbf, self.envelope(r).unsqueeze(1), Edges.of(edge_index, x.size(0), half_list=False))


def block(envelope):
    inputs = torch.rand(16, 16), torch.rand(32, 25), torch.rand(32), torch.zeros(2, 32, dtype=torch.int64)
    return ipu.compile(Block(envelope), inputs).report


def of(function, *shapes, target=None, index=None):
    inputs = [torch.ones(shape) for shape in shapes]
    if index is not None:
        inputs.append(torch.zeros(index, dtype=torch.int64))
    return ipu.compile(function, inputs, target=target, strict=False).report


def by_element(function):
    return lambda x: function(x)


def take(x, index):
    return x.index_select(0, index)


def add_up(x, index):
    return torch.zeros(512, x.size(1)).index_add(0, index, x)


def neighbors(pos):
    return torch.cdist(pos, pos).topk(8, largest=False)[0]


CASES = {  # title: a step with the fault, a step without it
    "lies on one tile": (lambda: of(by_element(torch.exp), 32), lambda: of(by_element(torch.exp), 200_000)),
    "cos in software": (lambda: block(CosineEnvelope(5.0)), lambda: block(PolynomialEnvelope(5.0, exponent=5))),
    "Unbalanced": (lambda: of(take, (40, 3), index=50), lambda: of(take, (4096, 128), index=32_768)),
    "Starting costs more": (lambda: of(by_element(torch.relu), 64), lambda: of(by_element(torch.log), 1_000_000)),
    "Bound by exchange": (
        lambda: of(add_up, (32_768, 128), index=32_768),
        lambda: of(by_element(torch.log), 1_000_000),
    ),
    "Padding": (
        lambda: of(by_element(torch.log), (8_192, 64)).for_batch(real={8_192: 5_000}),
        lambda: of(by_element(torch.log), (8_192, 64)).for_batch(real={8_192: 8_192}),
    ),
    "without a rule": (lambda: of(lambda x: torch.linalg.inv(x), (16, 16)), lambda: of(by_element(torch.relu), 64)),
    "Neighbors are searched": (lambda: of(neighbors, (576, 3)), lambda: of(take, (576, 3), index=4_608)),
    "Memory is exceeded": (
        lambda: of(by_element(torch.exp), 40_000, target=SMALL),
        lambda: of(by_element(torch.exp), 400, target=SMALL),
    ),
}


@pytest.mark.parametrize("title", CASES)
def test_a_fault_is_found_and_named_with_a_remedy(title):
    report = CASES[title][0]()
    (found,) = [insight for insight in report.insights if title in insight.title]
    assert 0 < found.share < 1 + 1e-9 or found.fatal
    assert len(found.remedy) > 20
    assert all(index < len(report.costs) for index in found.ops)
    assert title in str(report)


@pytest.mark.parametrize("title", CASES)
def test_a_step_without_the_fault_is_left_in_peace(title):
    assert not [insight for insight in CASES[title][1]().insights if title in insight.title]


def test_one_cosine_takes_most_of_a_small_schnet_block_and_the_insight_says_so():
    slow = block(CosineEnvelope(5.0))
    (cosine,) = [insight for insight in slow.insights if "in software" in insight.title]
    assert cosine.share > 0.5
    assert [slow.costs[index].target for index in cosine.ops] == ["aten.cos.default"]
    assert block(PolynomialEnvelope(5.0)).total_cycles < 0.5 * slow.total_cycles


def test_the_share_of_padding_grows_with_the_empty_slots():
    shares = []
    for real in (7_000, 4_000):
        report = of(by_element(torch.log), (8_192, 64)).for_batch(real={8_192: real})
        shares += [insight.share for insight in report.insights if insight.title == "Padding"]
    assert shares[0] < shares[1] < 4_192 / 8_192


def test_insights_speak_of_operations_that_exist():
    assert {row.short_name for row in OPERATIONS.values()} >= SEARCHES | SOFTWARE_FUNCTIONS


def test_a_function_in_software_is_found_in_place_too():
    report = of(lambda x: (x + 1).cos_(), 32)
    (found,) = [insight for insight in report.insights if "in software" in insight.title]
    assert found.title == "cos in software"
    assert "PolynomialEnvelope" in found.remedy


@pytest.mark.parametrize(("exponent", "found"), [(2, []), (0.5, []), (1.5, ["pow in software"])])
def test_a_power_runs_in_software_unless_it_is_a_square_or_a_root(exponent: float, found: list[str]):
    report = ipu.compile(lambda x: x.pow(exponent), [torch.ones(1_000_000)]).report
    assert [insight.title for insight in report.insights if "in software" in insight.title] == found
