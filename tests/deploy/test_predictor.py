"""Claims about a predictor: every graph gets its own result, in order, independent of the rest of its batch."""

import itertools
import os
import subprocess
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

import popgeo
from popgeo import FixedSizeDataLoader
from popgeo.data import FixedSizeOptions, FlatStore, unpad
from popgeo.data.batch_layout import LayoutChoices
from popgeo.deploy.predictor import Predictor
from popgeo.nn import GIN, SchNet
from popgeo.nn.forces import energy_and_forces
from tests.conftest import REPOSITORY
from tests.support import quick_python


def graph_of(num_nodes: int, seed: int = 0) -> Data:
    """Return a random graph of atoms with twice as many edges as nodes, without loops."""
    generator = torch.Generator().manual_seed(1000 * num_nodes + seed)
    edges = torch.randint(0, num_nodes, (2, 2 * num_nodes), generator=generator)
    edges[1] += (edges[0] == edges[1]).long()
    edges[1] %= num_nodes
    z = torch.randint(1, 9, (num_nodes,), generator=generator)
    pos = 2 * torch.randn(num_nodes, 3, generator=generator)
    return Data(x=torch.randn(num_nodes, 4, generator=generator), z=z, pos=pos, edge_index=edges)


def graphs_of(count: int = 40) -> list[Data]:
    return [graph_of(3 + 7 * i % 11, seed=i) for i in range(count)]


def gin(readout: str | None = "sum", **kwargs: object) -> GIN:
    torch.manual_seed(0)
    return GIN(4, 8, 2, out_channels=2, readout=readout, **kwargs).eval()


def alone(model: nn.Module, graph: Data) -> Tensor:
    batch = torch.zeros(graph.num_nodes, dtype=torch.long)
    return model(graph.x, graph.edge_index, batch=batch, num_graphs=1).detach()


ONE_WAY = pytest.mark.filterwarnings("ignore:No edge runs back")  # the edges are random
SMALL = FixedSizeOptions(num_nodes=32, num_edges=70, num_graphs=6)


@pytest.mark.parametrize("backend", ["cpu", "none"])
@pytest.mark.parametrize("sizes", [None, SMALL, [SMALL, FixedSizeOptions(100, 210, 20)]], ids=["chosen", "one", "two"])
def test_results_come_in_the_order_of_the_graphs(backend, sizes):
    model, graphs = gin(), graphs_of()
    found = Predictor(model, sizes, backend)(graphs)["out"]
    assert_close(found, torch.cat([alone(model, graph) for graph in graphs]))


def test_results_of_nodes_are_those_of_each_graphs_nodes():
    model, graphs = gin(readout=None), graphs_of()
    found = Predictor(model, SMALL, "none")(graphs)
    for i in (0, 17, 39):
        assert_close(found.of(i)["out"], alone(model, graphs[i]))


@ONE_WAY
def test_forces_come_with_energies():
    torch.manual_seed(0)
    model, graphs = SchNet(8, 8, 1, num_gaussians=8), graphs_of(10)
    found = Predictor(model, forces=True)(graphs)
    for i, graph in enumerate(graphs):
        energy, forces = energy_and_forces(model, graph.z, graph.pos, edge_index=graph.edge_index, num_graphs=1)
        assert_close(found.of(i), {"energy": energy.detach(), "forces": forces.detach()}, atol=1e-5, rtol=1e-4)


def test_an_endless_iterable_is_read_no_further_than_needed():
    read = []

    def endless() -> Iterator[Data]:
        for i in itertools.count():
            read.append(i)
            yield graph_of(3 + i % 5)

    predictor = Predictor(gin(), SMALL, "none")
    first = list(itertools.islice(predictor.stream(endless(), ahead=16), 40))
    assert len(first) == 40
    assert len(read) <= 48
    assert_close(first[33]["out"], alone(gin(), graph_of(3 + 33 % 5)))


def test_a_graph_too_large_grows_a_shape_once_with_a_warning():
    graphs = [*graphs_of(6), graph_of(80), graph_of(90)]
    predictor = Predictor(gin(), SMALL, "none")
    with pytest.warns(UserWarning, match="Graph 6 has 80 nodes, 160 edges"):
        found = predictor(graphs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor([graph_of(100)])
    assert_close(found["out"], torch.cat([alone(gin(), graph) for graph in graphs]))
    assert predictor.num_compilations == 1


def without(graph: Data, name: str) -> Data:
    return Data(**{key: value for key, value in graph.to_dict().items() if key != name})


def wrong_graphs() -> dict[str, tuple[Data, str]]:
    """Return each kind of graph that a model cannot take, with the words of its error."""
    wide, typed, outside, weighted = (graph_of(5) for _ in range(4))
    wide.x = torch.ones(5, 7)
    typed.x = typed.x.double()
    outside.edge_index = outside.edge_index + 5
    weighted.edge_weight = torch.ones(10)
    return {
        "another width": (wide, r"its x fills \[\d+, 7\] in a batch, but must fill \[\d+, 4\]"),
        "another type": (typed, "its x is torch.float64, but must be torch.float32"),
        "no features": (without(graph_of(5), "x"), "it has no x"),
        "what the others lack": (weighted, "it has edge_weight, which the model takes and the other graphs lack"),
        "no such node": (outside, r"it has \d+ in edge_index"),
        "no graph": ("a string", "is a str; pass Data or HeteroData"),
    }


@pytest.mark.parametrize("kind", wrong_graphs())
@pytest.mark.parametrize("is_first", [True, False], ids=["at the start", "later"])
def test_a_wrong_graph_is_named_and_the_others_still_come(kind, is_first):
    graphs = graphs_of(20)
    wrong, message = wrong_graphs()[kind]
    number = 0 if is_first else 17
    graphs[number] = wrong
    predictor = Predictor(gin(), SMALL, "none")
    with pytest.raises(ValueError, match=rf"(?s)Graph {number}: .*{message}"):
        predictor(graphs)
    found = predictor(graphs, errors="keep")
    assert list(found.errors) == [number]
    assert found["out"][number].isnan().all()
    right = [i for i in range(20) if i != number]
    assert_close(found["out"][right], torch.cat([alone(gin(), graphs[i]) for i in right]))
    with pytest.raises(ValueError, match=f"Graph {number}"):
        found.of(number)


@ONE_WAY
@pytest.mark.parametrize("backend", ["cpu", "none"])
def test_a_graph_that_makes_the_model_fail_is_found_in_its_batch(backend):
    graphs = graphs_of(20)
    graphs[17].z[2] = 300  # no element
    model = SchNet(8, 8, 1, num_gaussians=8)
    with pytest.raises(ValueError, match=r"Graph 17: .*index out of range"):
        Predictor(model, SMALL, backend)(graphs)
    found = Predictor(model, SMALL, backend)(graphs, errors="keep")
    assert list(found.errors) == [17]
    assert int(found["out"].isnan().sum()) == 1


class Failing(torch.utils.data.Dataset):
    """A dataset with one graph that cannot be read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Data:
        if i == 17:
            raise OSError("the disk is gone")
        return graph_of(4, seed=i)


def test_a_dataset_that_fails_for_one_graph_gives_the_others():
    found = Predictor(gin(), SMALL, "none")(Failing(), errors="keep")
    assert list(found.errors) == [17]
    assert "the disk is gone" in str(found.errors[17])
    assert_close(found.of(18)["out"], alone(gin(), graph_of(4, seed=18)))


def test_results_do_not_depend_on_how_the_graphs_come():
    model, graphs = gin(), graphs_of()
    predictor = Predictor(model, SMALL, "none")
    expected = predictor(graphs)["out"]
    store = FlatStore.from_dataset(graphs)
    assert_close(predictor(store)["out"], expected)
    assert_close(predictor(graph for graph in graphs)["out"], expected)
    assert_close(torch.cat([one["out"] for one in predictor.stream(store, ahead=7)]), expected)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("choices", [{}, {"drop_last": True}, {"sampler": [5, 3, 3, 17]}], ids=str)
def test_results_of_a_loader_are_in_its_order(choices: dict, shuffle: bool):
    if shuffle and "sampler" in choices:
        pytest.skip("a sampler has its own order")
    model, graphs = gin(), graphs_of()
    for i, graph in enumerate(graphs):
        graph.number = i
    for make in (FixedSizeDataLoader, DataLoader):
        for loader in (make(graphs, batch_size=6, shuffle=shuffle, **choices), make(graphs[:20], 6)):
            torch.manual_seed(1)
            batches = list(loader)
            given = [g for batch in batches for g in (unpad(batch) if "graphs_mask" in batch else batch.to_data_list())]
            if make is FixedSizeDataLoader:  # which has gone on to the next epoch
                loader.set_epoch(0)
            torch.manual_seed(1)
            found = Predictor(model, backend="none")(loader)["out"]
            assert_close(found, torch.cat([alone(model, graphs[int(graph.number)]) for graph in given]))


def test_a_loader_of_one_of_several_processes_is_refused():
    graphs = graphs_of()
    shard = torch.utils.data.DistributedSampler(graphs, num_replicas=2, rank=0)
    for loader in (
        FixedSizeDataLoader(graphs, batch_size=6, rank=0, world_size=2),
        DataLoader(graphs, 6, sampler=shard),
    ):
        with pytest.raises(ValueError, match="yields only a part of the graphs"):
            Predictor(gin(), backend="none")(loader)


def test_few_large_graphs_among_small_ones_get_a_shape_of_their_own():
    graphs = [*(graph_of(8, seed=i) for i in range(60)), graph_of(900)]
    one, several = (Predictor(gin(), backend="none", batch_size=20, max_shapes=most) for most in (1, 3))
    assert_close(one(graphs)["out"], several(graphs)["out"], rtol=1e-4, atol=1e-3)
    assert several.num_compilations > one.num_compilations == 1
    assert several.waste["nodes"] < one.waste["nodes"] / 2


def test_a_model_of_the_whole_batch_gets_it():
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = gin()

        def forward(self, data: Batch) -> Tensor:
            return self.model(data.x, data.edge_index, batch=data.batch, num_graphs=data.num_graphs)

    graphs = graphs_of(8)
    assert_close(Predictor(Whole())(graphs)["out"], torch.cat([alone(gin(), graph) for graph in graphs]))


def test_types_of_nodes_have_results_of_their_own():
    class Hetero(nn.Module):
        def forward(self, x_dict: dict[str, Tensor]) -> dict[str, Tensor]:
            return {key: 2 * x for key, x in x_dict.items()}

    graphs = []
    for n in (2, 5, 3):
        graph = HeteroData()
        graph["a"].x, graph["b"].x = torch.randn(n, 3), torch.randn(2 * n, 3)
        graph["a", "to", "b"].edge_index = torch.zeros(2, n, dtype=torch.long)
        graphs.append(graph)
    predictor = Predictor(Hetero())
    for found in (predictor(graphs), predictor(graphs)):
        for i, graph in enumerate(graphs):
            assert_close(found.of(i), {key: 2 * graph[key].x for key in ("a", "b")})


@pytest.mark.parametrize("backend", ["cpu", "none"])
def test_a_model_of_the_whole_batch_gets_one_with_types_of_nodes(backend):
    class Whole(nn.Module):
        def forward(self, data: Batch) -> dict[str, Tensor]:
            ends = data["a", "to", "b"].edge_index
            return {
                "b": torch.zeros_like(data["b"].x).index_add(0, ends[1], data["a"].x[ends[0]]),
                "graphs": torch.zeros(data.num_graphs, 3).index_add(0, data["a"].batch, data["a"].x),
            }

    graphs = []
    for n in (2, 5, 3):
        graph = HeteroData()
        graph["a"].x, graph["b"].x = torch.randn(n, 3), torch.randn(2 * n, 3)
        graph["a", "to", "b"].edge_index = torch.stack([torch.arange(n), torch.arange(n) + n])
        graphs.append(graph)
    found = Predictor(Whole(), backend=backend)(graphs)
    for i, graph in enumerate(graphs):
        batch = Batch.from_data_list([graph])
        assert_close(found.of(i), Whole()(batch))


def test_results_of_edges_that_a_layout_would_reorder_are_refused():
    class Ends(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
            return {"difference": x[edge_index[1]] - x[edge_index[0]]}

    graphs, sorts = graphs_of(8), LayoutChoices(sort_edges=True)
    with pytest.raises(ValueError, match=r"\['difference'\] have a row per edge, and layout.sort_edges"):
        Predictor(Ends(), layout=sorts)(graphs)
    found = Predictor(gin(), layout=sorts)(graphs)["out"]
    assert_close(found, torch.cat([alone(gin(), graph) for graph in graphs]))


def test_dropout_is_off_and_the_model_stays_as_it_was():
    model = gin(dropout=0.5).train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    graphs = graphs_of(6)
    found = Predictor(model, SMALL, "none")
    assert torch.equal(found(graphs)["out"], found(graphs)["out"])
    assert model.training
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())


def test_a_result_that_could_be_of_nodes_or_edges_is_asked_about():
    graphs = [Data(x=torch.randn(n, 4), edge_index=torch.zeros(2, n, dtype=torch.long)) for n in (2, 3)]
    same = FixedSizeOptions(num_nodes=16, num_edges=16, num_graphs=4)
    with pytest.raises(ValueError, match="may be rows of nodes or edges"):
        Predictor(gin(readout=None), same, "none")(graphs)
    found = Predictor(gin(readout=None), same, "none", results={"out": "node"})(graphs)
    assert found["out"].shape == (5, 2)


def test_an_argument_that_the_graphs_lack_is_named():
    with pytest.raises(ValueError, match="The model takes z, pos, which the graphs do not have"):
        Predictor(SchNet(8, 8, 1))([Data(x=torch.ones(2, 4))])


def test_a_position_that_is_no_number_is_an_error():
    graphs = graphs_of(8)
    graphs[5].pos[1] = float("nan")
    found = Predictor(SchNet(8, 8, 1, num_gaussians=8), SMALL, "none")(graphs, errors="keep")
    assert list(found.errors) == [5]


def test_a_pooling_of_its_own_size_is_asked_about():
    class Pooled(nn.Module):
        def forward(self, x: Tensor, batch: Tensor) -> Tensor:
            return torch.zeros(int(batch.max()) + 1, 4).index_add(0, batch, x)

    graphs = graphs_of(8)
    with pytest.raises(ValueError, match="pass results="):
        Predictor(Pooled(), SMALL, "none")(graphs)
    found = Predictor(Pooled(), SMALL, "none", results={"out": "graph"})(graphs)
    assert_close(found["out"], torch.stack([graph.x.sum(0) for graph in graphs]))


def test_what_a_later_graph_has_more_is_not_left_out_in_silence():
    predictor = Predictor(gin(), SMALL, "none")
    predictor(graphs_of(4))
    weighted = graph_of(5)
    weighted.edge_weight = torch.ones(10)
    with pytest.raises(ValueError, match="Graph 0: it has edge_weight"):
        predictor([weighted])


def test_attributes_that_the_model_does_not_take_may_differ():
    graphs = graphs_of(6)
    graphs[0].y, graphs[3].name, graphs[4].y = torch.ones(1), "a name", torch.ones(3)
    assert_close(Predictor(gin(), SMALL, "none")(graphs)["out"], torch.cat([alone(gin(), one) for one in graphs]))


def test_a_predictor_without_graphs_gives_nothing():
    assert Predictor(gin())([]).num_graphs == 0


def test_the_package_offers_the_predictor():
    assert popgeo.Predictor is Predictor
    assert np.isclose(Predictor(gin(), SMALL, "none")(graphs_of(5)).num_graphs, 5)


def test_processes_share_the_graphs_and_all_get_all_results(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [*quick_python.command(), "-m", "tests.support.predicting_processes", str(tmp_path / "meeting")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*command, str(rank)], env=environment, cwd=REPOSITORY, **pipes) for rank in (0, 1)]
    for one in both:
        said, errors = one.communicate(timeout=120)
        assert one.returncode == 0, errors
        assert any(line.startswith("Graph 5: ") for line in said.splitlines())  # Gloo may print, too


@pytest.mark.parametrize("wrap", [lambda x: x.mean(), lambda x: [[x]], lambda x: {"of": {"nodes": x}}])
def test_results_that_are_single_numbers_or_nested_are_refused_as_such(wrap):
    class Wrapped(nn.Module):
        def forward(self, x):
            return wrap(x)

    graphs = [Data(x=torch.ones(n, 2), edge_index=torch.zeros(2, 1).long()) for n in (2, 3)]
    with pytest.raises(ValueError, match="they are single numbers, or lists of lists, and a batch has"):
        Predictor(Wrapped())(graphs)
