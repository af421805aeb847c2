"""The benchmark of identical bits: every random combination is equal with the option, and not without it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from popgeo.native import library

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "batch_invariance.py"
pytestmark = pytest.mark.skipif(not library.is_available(), reason="batch_invariant needs the compiled library")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(SCRIPT.parent))
    specification = importlib.util.spec_from_file_location("benchmark_of_bits", SCRIPT)
    assert specification is not None
    made = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(made)
    sys.path.remove(str(SCRIPT.parent))
    return made


@pytest.mark.parametrize("name", ["SchNet", "PaiNN", "GCN", "GIN", "GAT", "GPS"])
def test_a_graph_has_the_same_bits_in_every_batch(script: ModuleType, name: str):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        equal, _, compared = script.equal_combinations(name, 60)
    finally:
        torch.set_num_threads(before)
    assert equal == compared > 10


def test_without_the_option_results_have_these_bits_but_gradients_do_not(script: ModuleType):
    equal, equal_results, compared = script.equal_combinations("GCN", 60, batch_invariant=False)
    assert equal < equal_results == compared


def test_both_sets_of_kernels_give_the_same_bits(script: ModuleType):
    choosers = [library.function(name, "q", "q") for name in ("popgeo_choose_isa", "popgeo_chain_isa")]
    found = []
    try:
        for newest in (2, 1):
            for choose in choosers:
                choose(newest)
            batches = script.RandomBatches("SchNet")
            found.append([batches.draw(chance) for chance in map(script.random.Random, range(5))])
    finally:
        for choose in choosers:
            choose(2)
    for (graph, bits), (same, others) in zip(*found, strict=True):
        assert graph == same
        assert all(map(torch.equal, bits, others))
