"""Sequences of calls from published programs."""

import os
import subprocess

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData
from torch_geometric.nn import SAGEConv

from popgeo.compat import poptorch
from popgeo.compat.poptorch_geometric import FixedSizeDataLoader, FixedSizeOptions, dataloader, pyg_dataloader
from popgeo.compat.poptorch_geometric.dataloader import FixedSizeClusterLoader
from tests.conftest import REPOSITORY
from tests.support import quick_python


def path(num_nodes: int) -> Data:
    there = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    return Data(x=torch.ones(num_nodes, 2), edge_index=torch.cat([there, there.flip(0)], 1), y=torch.tensor([0]))


GRAPHS = [path(n) for n in (2, 3, 4, 3)]  # 2, 4, 6 and 4 edges


@pytest.mark.parametrize("flavour", [dataloader, pyg_dataloader])
def test_the_loader_of_release_3_2_packs_by_nodes_and_edges(flavour):
    # One node is padding: 2 + 3 nodes fit into 8, but not 4 more; then 4 + 3 fit.
    loader = flavour.FixedSizeDataLoader(GRAPHS, num_nodes=8, num_edges=12, batch_size=4, drop_last=False)
    batches = list(loader)
    assert [(b.num_nodes, b.num_edges, b.ptr.tolist()[:3]) for b in batches] == [(8, 12, [0, 2, 5]), (8, 12, [0, 4, 7])]
    assert "nodes_mask" not in batches[0]
    masked = flavour.FixedSizeDataLoader(
        GRAPHS, num_nodes=8, num_edges=12, batch_size=4, collater_args={"add_masks_to_batch": True}
    )
    assert next(iter(masked)).graphs_mask.tolist() == [True, True, False, False]


def test_sizes_in_two_languages_are_refused():
    with pytest.raises(ValueError, match="Sizes are given twice: by fixed_size_options, and by num_nodes"):
        FixedSizeDataLoader(GRAPHS, 4, fixed_size_options=FixedSizeOptions(8, 12, 4), num_nodes=8)


@pytest.fixture(scope="module")
def clusters():
    return ClusterData(path(24), num_parts=6, log=False)


def test_the_cluster_loader_of_release_3_2_trims_where_its_collater_is_told_to(clusters):
    loader = FixedSizeClusterLoader(
        clusters, batch_size=2, num_nodes=30, collater_args={"num_edges": 5, "trim_edges": True}
    )
    assert {(batch.num_nodes, batch.num_edges) for batch in loader} == {(30, 5)}
    with pytest.raises(ValueError, match="pass fixed_size_options"):
        FixedSizeClusterLoader(clusters, batch_size=2)


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 3)

    def forward(self, x, y):
        scores = self.line(x)
        return F.cross_entropy(scores, y) if self.training else scores


def test_an_inference_model_that_is_told_to_evaluate_does_so():
    model = Scores()
    inference = poptorch.inferenceModel(model)  # the module is still in training mode
    inference.eval()
    assert inference(torch.ones(4, 2), torch.zeros(4, dtype=torch.long)).shape == (4, 3)
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    model.train()
    training.eval()  # a training model keeps the mode of its wrapping
    assert training(torch.ones(4, 2), torch.zeros(4, dtype=torch.long)).shape == ()


def test_a_layer_takes_the_argument_that_pyg_once_ignored():
    assert SAGEConv(2, 3, add_self_loops=False)(torch.ones(2, 2), torch.tensor([[0], [1]])).shape == (2, 3)
    with pytest.raises(TypeError):
        SAGEConv(2, 3, add_self_lops=False)


def test_a_program_may_divide_a_graph_before_it_imports_poptorch_geometric(tmp_path):
    (tmp_path / "old.py").write_text(
        "import torch\n"
        "from torch_geometric.data import Data\n"
        "from torch_geometric.loader import ClusterData, NeighborLoader\n"
        "ring = Data(x=torch.ones(8, 1), edge_index=torch.tensor([[*range(8)], [*range(1, 8), 0]]))\n"
        "import poptorch\n"
        "print(len(ClusterData(ring, num_parts=2, log=False)))\n"
        "print('import pyg_lib' in set(poptorch.compat_report().asked))\n"
    )
    # In a new interpreter: this one has already imported poptorch_geometric.
    command = [*quick_python.command(), "-m", "popgeo.compat", str(tmp_path / "old.py")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "2\nTrue\n", done.stderr
