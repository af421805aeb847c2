"""Claims about the interaction graphs that are no claims about the neighbors in popgeo.ops."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch_geometric.data import Data

from popgeo.nn import (
    CosineEnvelope,
    KNNInteractionGraph,
    PaiNN,
    PairInteractionGraph,
    PolynomialEnvelope,
    PrecomputeInteractionGraph,
    RadiusInteractionGraph,
    SchNet,
)

POS = 2 * torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
BATCH = torch.tensor([0] * 5 + [1] * 4)


def edges_of(edge_index: torch.Tensor, edge_weight: torch.Tensor, both: bool = False) -> set[tuple[int, int]]:
    found = {tuple(edge) for edge in edge_index[:, edge_weight < 4.0].T.tolist()}
    return found | {(i, j) for j, i in found} if both else found


def test_all_four_graphs_find_the_same_interactions():
    knn = edges_of(*KNNInteractionGraph(4, 4.0, max_num_nodes=5)(POS, BATCH))
    assert edges_of(*KNNInteractionGraph(4, 4.0)(POS, BATCH)) == knn
    assert edges_of(*PairInteractionGraph(4.0, max_num_nodes=5)(POS, BATCH), both=True) == knn
    assert edges_of(*RadiusInteractionGraph(4.0, 40)(POS, BATCH)) == knn
    alone = PrecomputeInteractionGraph(4.0)(Data(pos=POS[:5])).edge_index
    assert {tuple(edge) for edge in alone.T.tolist()} == {edge for edge in knn if edge[0] < 5}


def test_too_many_edges_for_the_slots_are_refused_with_the_number_needed():
    num_edges = len(edges_of(*RadiusInteractionGraph(4.0, 40)(POS, BATCH)))
    with pytest.raises(ValueError, match=f"has {num_edges} edges within 4.0, num_edges is 3"):
        RadiusInteractionGraph(4.0, 3)(POS, BATCH)


def test_under_capture_too_many_edges_turn_every_length_into_nan():
    def lengths(pos: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return RadiusInteractionGraph(4.0, 3)(pos, batch, num_graphs=2)[1]

    program = make_fx(lengths, tracing_mode="fake")(POS, BATCH)
    assert program(POS, BATCH).isnan().all()
    assert not program(100 * POS, BATCH).isnan().any()


def test_a_precomputed_edge_list_is_sorted_by_centre():
    edge_index = PrecomputeInteractionGraph(4.0)(Data(pos=POS[:5])).edge_index
    assert (edge_index[1].diff() >= 0).all()


@pytest.mark.parametrize("said", [{"pbc": torch.tensor([[True, False, False]])}, {"cell": torch.eye(3)[None]}])
def test_a_structure_that_repeats_is_refused_where_images_are_not_seen(said):
    with pytest.raises(ValueError, match="repeats"):
        PrecomputeInteractionGraph(4.0)(Data(pos=POS[:5], **said))
    alone = {"pbc": torch.zeros(1, 3, dtype=torch.bool), "cell": torch.eye(3)[None]}
    assert PrecomputeInteractionGraph(4.0)(Data(pos=POS[:5], **alone)).num_edges > 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_positions_that_are_not_finite_are_refused_but_in_padding(value):
    pos = torch.tensor([[0.0, 0, 0], [0, 0, 1], [0, 0, value]])
    with pytest.raises(ValueError, match="pos has NaN or infinity"):
        PrecomputeInteractionGraph(5.0)(Data(pos=pos))
    batch, mask = torch.tensor([0, 0, 1]), torch.tensor([True, True, False])
    for graph in (KNNInteractionGraph(2, 5.0), PairInteractionGraph(5.0), RadiusInteractionGraph(5.0, 4)):
        with pytest.raises(ValueError, match="pos of node 2 is not finite"):
            graph(pos, batch, num_graphs=2)
        _, lengths = graph(pos, batch, num_graphs=2, nodes_mask=mask)
        assert lengths.min() == 1
        assert lengths.isfinite().all()


def test_a_cutoff_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="cutoff is 0"):
        PrecomputeInteractionGraph(0)


@pytest.mark.parametrize("make_model", [SchNet, PaiNN])
@pytest.mark.parametrize(
    "graph",
    [
        KNNInteractionGraph(9, 2.0),
        PairInteractionGraph(2.0),
        PairInteractionGraph(2.0, 12),
        RadiusInteractionGraph(2.0, 99),
    ],
    ids=repr,
)
def test_edges_that_are_absent_send_nothing_in_a_model_of_a_longer_cutoff(make_model, graph):
    torch.manual_seed(0)
    pos, z, batch = 3 * torch.rand(14, 3), torch.randint(1, 9, (14,)), torch.tensor([0] * 8 + [1] * 6)
    model = make_model(8, num_interactions=2, cutoff=5.0, interaction_graph=graph).eval()
    apart = (pos.unsqueeze(0) - pos.unsqueeze(1)).norm(dim=2)
    edges = ((apart <= 2.0) & (apart > 0) & (batch.unsqueeze(0) == batch.unsqueeze(1))).nonzero().t()
    given = {"num_graphs": 2}
    torch.testing.assert_close(model(z, pos, batch, **given), model(z, pos, batch, edges, **given))


@pytest.mark.parametrize("make_model", [SchNet, PaiNN])
@pytest.mark.parametrize("envelope", [CosineEnvelope(5.2), PolynomialEnvelope(8.0), torch.nn.Sigmoid()], ids=repr)
def test_an_envelope_through_which_absent_edges_would_send_is_refused(make_model, envelope):
    with pytest.raises(ValueError, match="it must be 0 there, or absent edges send"):
        make_model(8, cutoff=5.0, envelope=envelope)


@pytest.mark.parametrize("make_model", [SchNet, PaiNN])
@pytest.mark.parametrize("envelope", [None, CosineEnvelope(3.0), PolynomialEnvelope(5.0)], ids=repr)
def test_the_number_of_slots_changes_no_prediction_whatever_the_envelope(make_model, envelope):
    torch.manual_seed(0)
    pos, z = 3 * torch.rand(8, 3), torch.randint(1, 9, (8,))
    model = make_model(8, num_interactions=2, cutoff=5.0, envelope=envelope).eval()
    model.interaction_graph = RadiusInteractionGraph(5.0, 60)
    few = model(z, pos, num_graphs=1)
    model.interaction_graph = RadiusInteractionGraph(5.0, 300)
    torch.testing.assert_close(model(z, pos, num_graphs=1), few)


def test_a_structure_without_positions_is_refused():
    with pytest.raises(ValueError, match="pos has NaN or infinity, or is missing"):
        PrecomputeInteractionGraph(3.0)(Data(z=torch.tensor([1, 1])))
