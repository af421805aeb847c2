"""PyG computes the same with popgeo's extensions as without them, and runs its layers that need extensions."""

import pytest
import torch
from torch_geometric import nn, utils
from torch_geometric.data import Data
from torch_geometric.transforms import GridSampling, KNNGraph, RadiusGraph

from popgeo.extension_path import provide, withdraw

X = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
INDEX, PTR = torch.arange(60) // 7, torch.tensor([*range(0, 60, 7), 60])
EDGES = torch.randint(0, 60, (2, 300), generator=torch.Generator().manual_seed(1))
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
SQUARE = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 2.0], [3.0, 0.0]])


def rows():
    return utils.to_torch_csc_tensor(utils.coalesce(EDGES), size=(60, 60)).t()


CALLS = {
    **{f"scatter {name}": lambda x, name=name: utils.scatter(x, INDEX, 0, 12, name) for name in ("sum", "mean", "max")},
    **{f"segment {name}": lambda x, name=name: utils.segment(x, PTR, name) for name in ("sum", "mean", "min", "max")},
    "softmax of an index": lambda x: utils.softmax(x, INDEX),
    "softmax of pointers": lambda x: utils.softmax(x, ptr=PTR),
    "median": lambda x: nn.MedianAggregation()(x, INDEX),
    "softmax aggregation": lambda x: nn.SoftmaxAggregation()(x, ptr=PTR),
    "standard deviation": lambda x: nn.StdAggregation()(x, ptr=PTR),
    "sorted index": lambda x: x[utils.index_sort(EDGES[0])[0]],
    "linear by type": lambda x: nn.HeteroLinear(8, 4, 9)(x, INDEX),
    "attention": lambda x: nn.GATConv(8, 4)(x, EDGES),
    "relations": lambda x: nn.RGCNConv(8, 4, 3)(x, EDGES, torch.arange(300) % 3),
    **{
        f"{name} over 600 relations": lambda x, name=name: nn.RGCNConv(8, 16, 600, aggr=name)(
            x, EDGES, 2 * INDEX.repeat(5)
        )
        for name in ("sum", "mean", "max")
    },
    **{
        f"{name} over the rows of a matrix": lambda x, name=name: nn.SAGEConv(8, 4, aggr=name)(x, rows())
        for name in ("mean", "max", "std", "softmax", "powermean")
    },
    "attention over the rows of a matrix": lambda x: nn.GATConv(8, 4)(x, rows()),
    "types in another order": lambda x: nn.HeteroDictLinear(8, 4, types=[str(i) for i in range(12)])(
        {str(i): x[i:] for i in range(11, -1, -1)}
    )["3"],
    "softmax of infinite scores": lambda x: utils.softmax(torch.where(INDEX[:, None] == 2, -torch.inf, x), ptr=PTR),
    "softmax of pointers with a leading dimension": lambda x: utils.softmax(x.t(), INDEX, PTR[None], dim=1),
    "sorted index with -1": lambda x: x[utils.index_sort(EDGES[0] - 1, 60)[0]],
    "sorted index above its bound": lambda x: x[utils.index_sort(EDGES[0], 9)[0]],
}


def result_and_gradient(call):
    torch.manual_seed(0)
    x = X.clone().requires_grad_()
    out = call(x)
    return out.detach(), torch.autograd.grad((out * torch.linspace(0, 1, out.shape[-1])).sum(), x)[0]


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_those_without_extensions(name):
    with_extensions = result_and_gradient(CALLS[name])
    withdraw()
    try:
        without = result_and_gradient(CALLS[name])
    finally:
        provide(shadow=True)
    torch.testing.assert_close(with_extensions, without)


@pytest.mark.parametrize(
    "make",
    [lambda: nn.DynamicEdgeConv(torch.nn.Linear(4, 3), k=2), lambda: nn.GravNetConv(2, 3, 2, 2, k=2)],
    ids=["DynamicEdgeConv", "GravNetConv"],
)
def test_a_layer_finds_neighbors_in_each_graph_alone(make):
    layer, x = make(), torch.cat([SQUARE, SQUARE + 0.1])
    alone = torch.cat([layer(SQUARE), layer(SQUARE + 0.1)])
    torch.testing.assert_close(layer(x, torch.arange(8) // 4), alone)


def test_pools_and_transforms_that_need_extensions_run():
    assert nn.graclus(torch.tensor([[0, 1], [1, 0]])).tolist() == [0, 0]
    assert nn.voxel_grid(SQUARE, size=1.5).tolist() == [0, 3, 5, 2]
    assert nn.fps(SQUARE, ratio=0.5, random_start=False).tolist() == [0, 2]
    assert nn.knn_interpolate(torch.eye(4), SQUARE, SQUARE, k=1).equal(torch.eye(4))
    assert KNNGraph(k=1)(Data(pos=SQUARE)).edge_index.tolist() == [[1, 0, 3, 2], [0, 1, 2, 3]]
    assert RadiusGraph(r=2.5)(Data(pos=SQUARE)).num_edges == 4
    assert GridSampling(size=9.0)(Data(pos=SQUARE)).pos.tolist() == [[1.5, 1.0]]
    assert nn.SchNet(8, 8, 1, 5)(torch.ones(4, dtype=torch.int64), torch.randn(4, 3)).shape == (1, 1)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripts_of_pyg_call_the_extensions():
    for function, given in (
        (utils.segment, (X, PTR, "max")),
        (utils.softmax, (X, None, PTR)),
        (utils.scatter, (X, INDEX, 0, None, "max")),
        (nn.radius_graph, (SQUARE, 2.5)),
    ):
        torch.testing.assert_close(torch.jit.script(function)(*given), function(*given))
    layer, given = nn.RGCNConv(8, 4, 3), (X, EDGES, torch.arange(300) % 3)
    expected = layer(*given)  # TorchScript needs what the first call notes
    torch.testing.assert_close(torch.jit.script(layer)(*given), expected)
