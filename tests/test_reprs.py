"""The repr of an object contains the facts that a user needs."""

import functools
import io
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData

import popgeo
from popgeo import ipu, ops, packing
from popgeo.data import FixedSizeCollater
from popgeo.nn import GIN, AttentionalAggregation, GraphNorm
from popgeo.progress import progress

SIZES = [[4, 6], [3, 6], [7, 2]]
BUDGET = packing.Budget(sizes=(7, 14), num_graphs=2)
PACKS = packing.Packs.from_lists([[0, 1], [2]], skipped=[3])
GRAPHS = [Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 2, 4)]
OPTIONS = popgeo.FixedSizeOptions(num_nodes=8, num_edges=9, num_graphs=4)


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1)

    def forward(self, x):
        return self.lin(x).square().mean()


def double(x):
    return 2 * x


def hetero_loader() -> popgeo.FixedSizeDataLoader:
    graph = HeteroData()
    graph["paper"].x, graph["author"].x = torch.ones(3, 2), torch.ones(2, 2)
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    sizes = popgeo.FixedSizeOptions({"paper": 9, "author": 9}, {("author", "writes", "paper"): 8}, num_graphs=3)
    return popgeo.FixedSizeDataLoader([graph] * 5, fixed_size_options=sizes)


@functools.cache
def trained() -> ipu.CompiledStep:
    training = ipu.training_model(Mean(), ipu.Options(device_iterations=2))
    training(torch.ones(8, 3))
    return training


SHOWN = [
    (lambda: ipu.TileExact(trained()), "TileExact(Bow with 8 tiles: 14 operations on 8 tiles)"),
    (
        lambda: popgeo.Molecules()[:9],
        "Molecules(9 molecules; y: homo (eV), lumo (eV), gap (eV), dipole (debye), energy (eV))",
    ),
    (lambda: OPTIONS, "FixedSizeOptions(num_nodes=8, num_edges=9, num_graphs=4)"),
    (
        lambda: FixedSizeCollater(OPTIONS, True, trim_edges=True),
        "FixedSizeCollater(8 nodes, 9 edges, 4 graphs; masks; trims edges)",
    ),
    (
        lambda: popgeo.FixedSizeDataLoader(GRAPHS, fixed_size_options=OPTIONS).plan(),
        "Packs(4 graphs in 2 packs, 2.0 per pack)",
    ),
    (lambda: PACKS, "Packs(3 graphs in 2 packs, 1.5 per pack; 1 skipped)"),
    (
        lambda: packing.efficiency(PACKS, SIZES, BUDGET),
        "Efficiency(2 packs, 2 at least; 100.00% of nodes, 50.00% of edges, 75.00% of graphs; nodes run out first)",
    ),
    (
        lambda: packing.histogram(SIZES, BUDGET),
        "Histogram(3 graphs of 3 sizes, 3 to 7; a pack holds 7, and 2 graphs; 2 packs at least)",
    ),
    (
        lambda: packing.SizePlan(composition=((5, 2), (4,)), counts=(10, 1), bound=10),
        "SizePlan(21 graphs in 11 packs of 2 kinds; at most 1 more than the fewest)",
    ),
    (
        lambda: packing.tune([[7, 2]] * 4, target_graphs=2, align=1),
        "Shape(15 nodes (93.3% full), 4 edges (100.0% full), 4 graphs; 2.0 real graphs per batch)",
    ),
    (
        lambda: ops.ScatterPlan.from_index(torch.tensor([2, 0]), 4).set_tiles(2),
        "ScatterPlan(2 edges -> 4 rows, permuted, 2 tiles)",
    ),
    (lambda: GraphNorm(4), "GraphNorm(4, eps=1e-05)"),
    (lambda: ipu.IpuTarget.gc200(), "IpuTarget(GC200: 1,472 tiles of 639.0 kB at 1.33 GHz)"),
    (lambda: ipu.Options(), "Options()"),
    (
        lambda: ipu.Options(output_mode="all", device_iterations=4, target=ipu.IpuTarget.gc2()),
        "Options(device_iterations=4, output_mode='all', target=IpuTarget(GC2: 1,216 tiles of 262.1 kB at 1.6 GHz))",
    ),
    (
        lambda: ipu.compile(double, [torch.ones(3)]),
        "CompiledStep(double: forward, backend cpu, 0 calls, micro-batches per call: 1",
    ),
    (lambda: trained().graph, "OpGraph("),
    (lambda: trained().report.memory, "MemoryUse("),
    (trained, "CompiledStep(Mean: training, backend cpu, 1 call, micro-batches per call: 2"),
]


@pytest.mark.parametrize(("make", "expected"), SHOWN, ids=[expected.split("(")[0] for _, expected in SHOWN])
def test_a_repr_says_what_a_user_wants_to_know(make, expected):
    assert repr(make()).startswith(expected)


def test_what_was_chosen_can_be_typed_again():
    sizes = popgeo.FixedSizeOptions(num_nodes=8, num_edges=9, num_graphs=4, node_pad_value=-1.0)
    assert eval(repr(sizes), vars(popgeo)) == sizes
    options = ipu.Options(device_iterations=4, output_mode="sum", loss_scaling=128.0)
    assert eval(repr(options), vars(ipu)) == options


def test_a_loader_says_how_full_its_nodes_are_and_what_it_skips():
    assert (
        repr(hetero_loader())
        == "FixedSizeDataLoader(5 graphs -> 3 batches of 18 nodes, 8 edges, 3 graphs; 46.3 % full)"
    )
    skips = popgeo.FixedSizeDataLoader(
        GRAPHS, num_nodes=4, num_edges=9, batch_size=3, fixed_size_strategy="StreamPack", over_size_strategy="Skip"
    )
    assert repr(skips).endswith("; 58.3 % full; 1 skipped)")


def test_a_tuned_size_is_named_by_its_type(capsys):
    popgeo.FixedSizeOptions.tune(hetero_loader().dataset, target_graphs=2, align=1)
    printed = capsys.readouterr().out
    assert "author-writes-paper edges and" in printed
    assert "of paper nodes" in printed
    assert "size_" not in printed


def test_filling_counts_real_slots_of_every_type():
    table = hetero_loader().filling()
    assert table.index.tolist() == ["paper nodes", "author nodes", "author-writes-paper edges", "graphs"]
    assert table["slots"].tolist() == [9, 9, 8, 3]
    assert np.allclose(table["real"], [5, 10 / 3, 10 / 3, 5 / 3])


class Cells(HTMLParser):
    """A parser that collects the text of a table and refuses tags without an end."""

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts += [data.strip()] if data.strip() else []


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (hetero_loader, {"paper nodes", "9", "55.6%"}),
        (lambda: popgeo.FlatStore.from_dataset(GRAPHS), {"nodes", "2.75", "11"}),
        (lambda: OPTIONS, {"num_nodes", "8"}),
        (ipu.Options, {"device_iterations", "1", "IpuTarget(Bow: 1,472 tiles of 639.0 kB at 1.85 GHz)"}),
        (ipu.IpuTarget.bow, {"num_tiles", "1,472"}),
        (trained, {"Mean", "SGD", "calls", "1"}),
    ],
    ids=lambda part: getattr(part, "__qualname__", ""),
)
def test_a_notebook_shows_a_table(make, expected):
    cells = Cells()
    cells.feed(make()._repr_html_())
    assert not cells.open
    assert expected <= set(cells.texts)


def test_every_module_names_its_settings():
    assert "act=relu, norm='batch_norm', dropout=0.0, jk='cat', readout='add'" in repr(
        GIN(4, 8, 2, norm="batch_norm", jk="cat", readout="add")
    )
    assert "(gate_nn): Linear(in_features=4" in repr(AttentionalAggregation(nn.Linear(4, 1)))


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def slow(monkeypatch):
    """Make the clock advance by a second at each call."""
    clock = iter(range(100_000))
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))


def test_a_bar_is_quiet_on_request_and_where_nobody_looks(monkeypatch, slow):
    for screen, show, expected in (
        (io.StringIO(), None, ""),
        (Terminal(), False, ""),
        (io.StringIO(), True, "reading"),
    ):
        monkeypatch.setattr(sys, "stderr", screen)
        assert list(progress(range(3), "reading", "graph", show)) == [0, 1, 2]
        assert expected in screen.getvalue()
        assert expected or not screen.getvalue()


def test_tuning_shows_how_far_it_is_unless_it_is_told_not_to(monkeypatch, slow):
    for verbose in (True, False):
        monkeypatch.setattr(sys, "stderr", Terminal())
        popgeo.FixedSizeOptions.tune(popgeo.Molecules()[:12], 4, verbose=verbose)
        assert ("trying shapes" in sys.stderr.getvalue()) is verbose


def test_a_dataset_that_is_fetched_graph_by_graph_shows_how_far_it_is(monkeypatch, slow):
    molecules = popgeo.Molecules(transform=popgeo.datasets.SelectTarget("gap"))[:9]
    for asked in (None, False):
        monkeypatch.setattr(sys, "stderr", Terminal())
        with pytest.warns(UserWarning, match="has a transform"):
            popgeo.FixedSizeDataLoader(molecules, batch_size=4, progress_bar=asked)
        assert ("measuring graphs" in sys.stderr.getvalue()) is (asked is None)
