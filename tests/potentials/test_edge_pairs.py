"""Opposite edges are paired, and functions of length run once per pair."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from popgeo.convert.periodic_pairs import list_pairs
from popgeo.potentials.edge_pairs import PairwiseLayers, note_opposite_edges, opposite_edges, opposite_in_batch
from popgeo.potentials.padding import PotentialLoader

CUTOFF = 3.0


def structure(num_atoms: int, seed: int) -> Data:
    """Return atoms at random places, with all pairs within the cutoff in both directions, in any order."""
    draw = torch.Generator().manual_seed(seed)
    pos = 4 * torch.rand(num_atoms, 3, generator=draw)
    edge_index, _ = list_pairs(pos.numpy(), torch.zeros(3, 3).numpy(), torch.zeros(3, dtype=torch.bool).numpy(), CUTOFF)
    edge_index = edge_index[:, torch.randperm(edge_index.shape[1], generator=draw)]
    zeros = torch.zeros(edge_index.shape[1], 3)
    return Data(
        z=torch.zeros(num_atoms, dtype=torch.long), pos=pos, edge_index=edge_index, unit_shift=zeros, edge_shift=zeros,
        cell=torch.zeros(1, 3, 3), energy=torch.zeros(1),
    )  # fmt: skip


STRUCTURES = [structure(2 + seed % 7, seed) for seed in range(20)]


def lengths(batch: object) -> Tensor:
    source, target = batch.edge_index
    return (batch.pos[target] - batch.pos[source] + batch.edge_shift).norm(dim=1)


def loader(graphs: list, num_edges: int) -> PotentialLoader:
    def as_batch(batch: object) -> object:
        return batch.update(opposite_in_batch(batch))

    levels = {"opposite_edge": "edge", "energy": "graph"}
    sizes = {"num_nodes": 24, "num_edges": num_edges, "batch_size": 5}
    return PotentialLoader(graphs, as_batch, cutoff=CUTOFF, species=0, levels=levels, **sizes)


def test_images_of_an_atom_are_told_by_the_cells_between() -> None:
    shifts = torch.tensor([[1, 0, 0], [0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 0]]).float()
    edges = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0]])
    assert opposite_edges(Data(edge_index=edges, unit_shift=shifts)).tolist() == [2, 5, 0, 4, 3, 1]


@pytest.mark.parametrize("edges", [[[0, 1], [1, 2]], [[0, 0], [0, 0]], [[0, 1, 0], [1, 0, 1]]], ids=str)
def test_edges_without_an_opposite_one_are_told(edges: list) -> None:
    graph = Data(edge_index=torch.tensor(edges), unit_shift=torch.zeros(len(edges[0]), 3))
    assert opposite_edges(graph) is None
    graphs = [*copy.deepcopy(STRUCTURES[:2]), graph]
    note_opposite_edges(graphs)
    assert not any("opposite_edge" in graph for graph in graphs)


@pytest.mark.parametrize("num_edges", [120, 121])
def test_every_edge_of_a_batch_is_in_one_pair_of_its_length(num_edges: int) -> None:
    graphs = copy.deepcopy(STRUCTURES)
    note_opposite_edges(graphs)
    for batch in loader(graphs, num_edges):
        other, own = batch.opposite_edge, torch.arange(num_edges)
        assert torch.equal(other[other], own)
        assert int((other == own).sum()) == num_edges % 2
        assert torch.equal(lengths(batch)[other], lengths(batch))
        real = batch.edges_mask
        assert torch.equal(batch.edge_index[:, real], batch.edge_index.flip(0)[:, other[real]])


class Model(nn.Module):
    """A network of lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 4))

    def forward(self, batch: dict) -> Tensor:
        return self.network(lengths(Data(**batch))[:, None]).square().sum()


def test_a_network_of_lengths_runs_on_half_of_the_edges_with_the_same_gradients() -> None:
    graphs = copy.deepcopy(STRUCTURES)
    note_opposite_edges(graphs)
    model, plain = Model().double(), Model().double()
    plain.load_state_dict(model.state_dict())
    PairwiseLayers(model).add(model.network)
    seen: list[int] = []
    model.network[0].register_forward_hook(lambda _, given, made: seen.append(len(made)))
    for batch in loader(graphs, 120):
        batch.pos, batch.edge_shift = batch.pos.double(), batch.edge_shift.double()
        found = []
        for one in (model, plain):
            fields = {**batch.to_dict(), "pos": batch.pos.clone().requires_grad_()}
            loss = one(fields)
            found.append([loss, *torch.autograd.grad(loss, [fields["pos"], *one.parameters()])])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert set(seen) == {60}
    copy.deepcopy(model)({name: value for name, value in fields.items() if name != "opposite_edge"})
    assert seen[-1] == 120  # a batch that does not say its pairs
