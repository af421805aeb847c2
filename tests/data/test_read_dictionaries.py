"""Graphs that are dictionaries of tensors give what the same graphs give as PyG's `Data`."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import popgeo
from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore
from popgeo.nn import GIN


def graphs_of(number: int = 12, seed: int = 0) -> list[dict[str, Any]]:
    """Graphs with an attribute of each kind: nodes, edges, graphs, a plain number, a list and a text."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(number):
        n, e = int(torch.randint(1, 9, (), generator=generator)), int(torch.randint(0, 12, (), generator=generator))
        made.append(
            {
                "x": torch.randn(n, 3, generator=generator),
                "edge_index": torch.randint(0, n, (2, e), generator=generator),
                "edge_attr": torch.randn(e, 2, generator=generator),
                "y": torch.randn(1, 4, generator=generator),
                "root_index": torch.tensor([n - 1]),
                "energy": float(i),
                "name": f"graph {i}",
            }
        )
    return made


def test_one_graph_may_hold_a_transposed_view():
    pairs = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2]])
    graph = {"x": torch.ones(3, 1), "edge_index": pairs.t()}
    batch = FixedSizeCollater(FixedSizeOptions(num_nodes=5, num_edges=6, num_graphs=2))([graph])
    assert batch.edge_index[:, :4].tolist() == pairs.t().tolist()


def test_a_store_of_dictionaries_is_that_of_data():
    graphs = graphs_of()
    ours, theirs = FlatStore.from_dataset(graphs), FlatStore.from_dataset([Data(**graph) for graph in graphs])
    assert repr(ours) == repr(theirs)
    assert (ours.sizes == theirs.sizes).all()
    for i in range(len(graphs)):
        assert isinstance(ours[i], Data)
        for name, value in theirs[i].to_dict().items():
            found = ours[i][name]
            assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value


def test_a_loader_of_dictionaries_gives_the_batches_of_data():
    graphs = graphs_of(40)
    ours, theirs = (
        popgeo.FixedSizeDataLoader(some, batch_size=8) for some in (graphs, [Data(**graph) for graph in graphs])
    )
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other)
        assert torch.equal(one.root_index, other.root_index)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.edge_index, other.edge_index)


def test_nodes_that_num_nodes_states():
    edges = torch.tensor([[0], [1]])
    store = FlatStore.from_dataset([{"edge_index": edges, "num_nodes": 5}, {"edge_index": edges, "num_nodes": 2}])
    assert store.sizes[:, 0].tolist() == [5, 2]


def test_a_saved_store_of_dictionaries_opens(tmp_path: Path):
    graphs = graphs_of()
    FlatStore.from_dataset(graphs).save(tmp_path / "store")
    assert torch.equal(FlatStore.open(tmp_path / "store")[3].x, graphs[3]["x"])


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"x": torch.ones(2, 3)}, "differ in the attributes"),
        ({"x": torch.ones(2, 4), "edge_index": torch.zeros(2, 1, dtype=torch.long)}, "cannot be joined"),
        (
            {"x": torch.tensor(1.0), "edge_index": torch.zeros(2, 1, dtype=torch.long)},
            r"\[2, 3\] in .* \[\] in graph 1",
        ),
        ({"x": torch.ones(2, 3), "edge_index": torch.tensor(1)}, r"\[2, 1\] in graph 0 and \[\] in graph 1"),
        ({"x": torch.ones(2), "edge_index": torch.zeros(2, 1, dtype=torch.long)}, r"\[2, 3\] in .* \[2\] in graph 1"),
        ({"x": [[1.0, 2.0, 3.0]], "edge_index": torch.zeros(2, 1, dtype=torch.long)}, "tensor in all graphs"),
        ({"x": torch.ones(2, 3), "edge_index": torch.tensor([[0], [7]])}, "edge"),
    ],
)
def test_a_graph_that_differs_from_the_others_is_refused(second: dict[str, Any], words: str):
    first = {"x": torch.ones(2, 3), "edge_index": torch.tensor([[0], [1]])}
    with pytest.raises(ValueError, match=words):
        FlatStore.from_dataset([first, second])


@pytest.mark.parametrize("number", [2**63, -(2**70)])
def test_a_number_too_large_for_a_tensor_is_refused_by_name(number: int):
    graph = {"x": torch.ones(2, 3), "edge_index": torch.tensor([[0], [1]]), "code": 1}
    with pytest.raises(ValueError, match=f"'code' of graph 1 is {number}.*exclude_keys"):
        FlatStore.from_dataset([graph, {**graph, "code": number}])


def test_dictionaries_among_data_are_refused():
    with pytest.raises(ValueError, match="dict"):
        FlatStore.from_dataset([Data(x=torch.ones(1, 1)), {"x": torch.ones(1, 1)}])


def test_predictions_for_dictionaries_are_those_for_data():
    graphs = [graph | {"shape": torch.ones(i, i)} for i, graph in enumerate(graphs_of(30))]  # which the model leaves
    predictor = popgeo.Predictor(GIN(3, 8, 2, out_channels=1, readout="sum"))
    found = predictor([Data(**graph) for graph in graphs])["out"]
    assert torch.allclose(predictor(graphs)["out"], found)
    with pytest.raises(ValueError, match=r"pass a list, even of one: \[graph\]"):
        predictor(graphs[0])
    wrong = [*graphs[:3], graphs[0] | {"x": graphs[0]["x"].double()}]
    kept = predictor(wrong, errors="keep")
    assert list(kept.errors) == [3]
    assert torch.allclose(kept["out"][:3], found[:3])


WITHOUT_PYG = """
import sys
import torch
import popgeo
from popgeo import ops, packing, sampling
ops.scatter_add(torch.ones(3, 2), torch.tensor([0, 0, 1]), dim=0)
packing.window([3, 4, 5], packing.Budget(sizes=(8,), num_graphs=3))
graph = {"x": torch.ones(3, 4), "edge_index": torch.tensor([[0, 1], [1, 2]])}
for backend in ("cpu", "none"):
    print(popgeo.load(sys.argv[1], backend)([graph, graph])["out"].flatten().tolist())
sys.exit(int("torch_geometric" in sys.modules))
"""


def test_a_file_predicts_in_a_process_without_pyg(tmp_path: Path):
    model = GIN(4, 8, 2, out_channels=1, readout="sum")
    graphs = [{"x": torch.ones(3, 4), "edge_index": torch.tensor([[0, 1], [1, 2]])}] * 2
    path = popgeo.export(model, popgeo.FixedSizeOptions(16, 16, 3), tmp_path / "gin.pt2", graphs=graphs)
    wanted = popgeo.Predictor(model)(graphs)["out"].flatten()
    run = subprocess.run([sys.executable, "-c", WITHOUT_PYG, path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for line in run.stdout.splitlines():
        assert torch.allclose(torch.tensor(eval(line)), wanted, atol=1e-5)
