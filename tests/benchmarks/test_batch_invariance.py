"""The benchmark of identical bits: every random combination is equal with the option, and not without it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch_geometric.data import Data

import popgeo
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


@pytest.mark.parametrize("name", ["GCN", "GIN", "GAT", "GPS", "SchNet", "PaiNN"])
def test_a_batch_may_be_divided_into_micro_batches(script: ModuleType, name: str):
    weights = []
    for parts in (1, 2, 4):
        batches = script.RandomBatches(name)
        torch.manual_seed(0)
        model = script.MODELS[name]()
        for part in model.modules():  # a grid of filters adds up all edges of a batch
            if hasattr(part, "filters"):
                part.filters = "edges"
        options = popgeo.StepOptions(
            batch_invariant=True, gradient_accumulation=parts, reduction="sum", num_threads=1, show_progress=False
        )
        step = popgeo.compile_step(model, torch.optim.Adam(model.parameters(), 1e-3), options=options)
        for number in range(3):
            chosen = [(5 * number + i) % 40 for i in range(8)]
            groups = [chosen[i : i + 8 // parts] for i in range(0, 8, 8 // parts)]
            shape = 64 + 256 // parts, 800 + 4000 // parts, 8 // parts + 1
            given = [batches.batch_of(group, shape) for group in groups]
            joined = Data(**{key: torch.cat([one[key] for one in given]) for key in sorted(given[0].keys())})
            real = torch.ones(shape[2], 1)
            real[-1] = 0.0
            step(joined, real.repeat(parts, 1))
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
