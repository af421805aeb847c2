"""Claims about encodings of positions: values by hand, PyG's own transforms, and graphs of all sizes in a batch."""

import pytest
import torch
from torch.testing import assert_close
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE

from popgeo.data import FixedSizeCollater, FixedSizeOptions
from popgeo.nn import LaplacianEncoding, PairBias, PairDistances, RandomWalkEncoding, ShortestPaths, draw_signs


def graph(edges: list[tuple[int, int]]) -> Data:
    edge_index = torch.tensor(edges).T
    return Data(edge_index=torch.cat([edge_index, edge_index.flip(0)], 1), num_nodes=int(edge_index.max()) + 1)


RING = graph([(i, (i + 1) % 5) for i in range(5)])
ODD = graph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (2, 5), (5, 6)])  # no two of its eigenvalues are equal
LONELY = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=1)


def test_a_walk_on_a_ring_of_five_is_back_after_two_steps_by_half_and_after_five_by_a_sixteenth():
    returns = RandomWalkEncoding(num_steps=5)(RING).random_walk
    assert_close(returns, torch.tensor([[0, 1 / 2, 0, 3 / 8, 1 / 16]]).expand(5, 5))


def test_random_walks_are_those_of_pyg():
    assert_close(RandomWalkEncoding(6)(ODD).random_walk, AddRandomWalkPE(6, "pe")(ODD).pe)


def test_eigenvectors_are_those_of_pyg_but_for_the_sign_which_is_fixed():
    ours = LaplacianEncoding(num_vectors=3)(ODD).laplacian
    assert_close(ours.abs(), AddLaplacianEigenvectorPE(3, "pe", is_undirected=True)(ODD).pe.abs(), atol=1e-5, rtol=1e-5)
    assert (ours.gather(0, ours.abs().argmax(0, keepdim=True)) > 0).all()


def test_hops_and_distances_of_a_path_worked_out_by_hand():
    far = Data(
        edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        num_nodes=4,
        pos=torch.eye(4, 3) * torch.tensor([3, 4, 12]),
    )
    assert ShortestPaths(max_num_nodes=5, max_hops=1)(far).hops.tolist() == [
        [0, 1, 1, 2, 3],
        [1, 0, 1, 2, 3],
        [1, 1, 0, 2, 3],
        [2, 2, 2, 0, 3],
    ]
    assert PairDistances(max_num_nodes=5)(far).distance[0].tolist() == [0, 5, pytest.approx(153**0.5), 3, 0]


def test_graphs_of_all_sizes_with_all_encodings_share_a_batch():
    encoded = []
    for graph in (RING, LONELY, ODD):
        for transform in (RandomWalkEncoding(4), LaplacianEncoding(6), ShortestPaths(8, max_hops=3)):
            graph = transform(graph)
        encoded.append(graph)
    batch = FixedSizeCollater(FixedSizeOptions(16, 40, 4), add_masks_to_batch=True)(encoded)
    assert batch.hops.shape == (16, 8)
    assert batch.laplacian.isfinite().all()
    assert_close(batch.laplacian[5], torch.zeros(6))
    bias = PairBias(heads=2, max_hops=3)(batch.hops)
    assert_close(bias[0, 1], bias[1, 0])


def test_signs_are_drawn_for_a_graph_as_a_whole_and_in_training_only():
    encoding, batch = torch.rand(40, 5) + 1, torch.arange(20).repeat_interleave(2)
    drawn = draw_signs(encoding, batch, 20, training=True)
    assert_close(drawn.abs(), encoding)
    signs = drawn.sign().view(20, 2, 5)
    assert (signs[:, 0] == signs[:, 1]).all()
    assert 0 < (signs < 0).float().mean() < 1
    assert draw_signs(encoding, batch, 20, training=False) is encoding


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RandomWalkEncoding(0), "num_steps is 0"),
        (lambda: ShortestPaths(4)(RING), "has 5 nodes, max_num_nodes is 4"),
        (lambda: ShortestPaths(9, max_hops=254), "at most 253"),
        (lambda: PairDistances(9)(RING), "has no pos"),
        (lambda: PairBias(2, max_hops=None), "leaves no bias"),
        (lambda: PairBias(2)(distance=torch.zeros(1, 1)), "hops is missing"),
        (lambda: PairBias(2)(hops=torch.zeros(1, 1), distance=torch.zeros(1, 1)), "distance is given"),
    ],
)
def test_what_cannot_be_encoded_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "encode", [LaplacianEncoding(3), RandomWalkEncoding(3), ShortestPaths(3), PairDistances(3)], ids=repr
)
def test_a_graph_without_nodes_has_an_encoding_without_rows(encode):
    graph = encode(Data(pos=torch.ones(0, 3), edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=0))
    assert graph[encode.name].shape == (0, 3)


def test_weights_of_edges_count_also_where_they_sum_to_less_than_one():
    weight = torch.linspace(0.05, 0.3, ODD.num_edges // 2).repeat(2)
    weighted = Data(edge_index=ODD.edge_index, num_nodes=ODD.num_nodes, edge_weight=weight)
    adjacency = torch.zeros(7, 7).index_put(tuple(ODD.edge_index), weight)
    step = adjacency / adjacency.sum(1, keepdim=True)
    returns = torch.stack([torch.linalg.matrix_power(step, n).diagonal() for n in range(1, 5)], 1)
    assert_close(RandomWalkEncoding(4)(weighted).random_walk, returns)
    peer = AddLaplacianEigenvectorPE(3, "pe", is_undirected=True)(weighted).pe
    assert_close(LaplacianEncoding(3)(weighted).laplacian.abs(), peer.abs(), atol=1e-5, rtol=1e-5)
    assert torch.equal(ShortestPaths(8)(weighted).hops, ShortestPaths(8)(ODD).hops)
    for wrong in (weight[1:], -weight, torch.full_like(weight, torch.nan)):
        weighted.edge_weight = wrong
        for encoding in (RandomWalkEncoding(2), LaplacianEncoding(2)):
            with pytest.raises(ValueError, match="give one finite weight of 0 or more for each edge"):
                encoding(weighted)
