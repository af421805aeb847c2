"""Dummy atoms, z = 0, have no effect: with and without a mask, in any place, and with each way to find edges."""

import pytest
import torch
from torch.testing import assert_close
from torch_geometric.data import Data

from popgeo import Predictor, compile_forward
from popgeo.nn import (
    KNNInteractionGraph,
    PaiNN,
    PairInteractionGraph,
    RadiusInteractionGraph,
    SchNet,
    energy_and_forces,
)

Z, POS = torch.tensor([6, 1, 0, 8, 0, 1]), 1.5 * torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
REAL = Z > 0
GRAPHS = {
    "nearest": KNNInteractionGraph(5, 5.0),
    "pairs": PairInteractionGraph(5.0),
    "pairs of six": PairInteractionGraph(5.0, 6),
    "radius": RadiusInteractionGraph(5.0, 40),
}
MASK, BATCH = torch.ones(6, dtype=torch.bool), torch.zeros(6, dtype=torch.long)


def model_of(kind: type, **choices) -> SchNet | PaiNN:
    torch.manual_seed(1)
    return kind(*((8, 8, 1) if kind is SchNet else (8, 1)), cutoff=5.0, **choices)


@pytest.mark.parametrize("kind", [SchNet, PaiNN])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("readout", ["add", "mean", "max"])
def test_dummy_atoms_change_no_energy(kind, graph, readout):
    model = model_of(kind, interaction_graph=GRAPHS[graph], readout=readout)
    expected = model(Z[REAL], POS[REAL], num_graphs=1)
    for run in (model, compile_forward(model)):
        assert_close(run(Z, POS, BATCH, num_graphs=1, nodes_mask=MASK), expected)


@pytest.mark.parametrize("kind", [SchNet, PaiNN])
def test_dummy_atoms_neither_send_over_given_edges_nor_feel_a_force(kind):
    model = model_of(kind)
    every, four = (torch.tensor([(i, j) for i in range(n) for j in range(n) if i != j]).T for n in (6, 4))
    given = {"num_graphs": 1, "nodes_mask": MASK, "edges_mask": torch.ones(30, dtype=torch.bool)}
    assert_close(model(Z, POS, BATCH, every, **given), model(Z[REAL], POS[REAL], None, four, num_graphs=1))
    forces = energy_and_forces(model, Z, POS, BATCH, num_graphs=1, nodes_mask=MASK)[1]
    assert not forces[~REAL].any()
    assert_close(forces[REAL], energy_and_forces(model, Z[REAL], POS[REAL], BATCH[REAL], num_graphs=1)[1])


def test_dummy_atoms_change_no_prediction():
    found = Predictor(model_of(SchNet), backend="none")([Data(z=Z, pos=POS), Data(z=Z[REAL], pos=POS[REAL])])["out"]
    assert_close(found[0], found[1])
