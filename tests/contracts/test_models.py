"""The contract of every model, norm and loss: results depend only on the real part of a batch.

A new member is one line in MODELS, NORMS or LOSSES.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.data import Batch, Data
from torch_geometric.experimental import set_experimental_mode

from popgeo.nn import (
    GCN,
    GIN,
    GINE,
    GPS,
    AttentionalAggregation,
    BatchNorm,
    GPSPlusPlus,
    GraphNorm,
    GraphSAGE,
    InstanceNorm,
    KNNInteractionGraph,
    LayerNorm,
    PaiNN,
    PairBias,
    PairInteractionGraph,
    PolynomialEnvelope,
    RadiusInteractionGraph,
    SchNet,
    binary_cross_entropy,
    cross_entropy,
    huber_loss,
    l1_loss,
    mse_loss,
)
from popgeo.testing import check_conformance


@dataclass(frozen=True, kw_only=True)
class Molecules:
    """A batch as a model reads it, with padding at the end."""

    z: Tensor
    pos: Tensor
    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    batch: Tensor
    num_graphs: int
    nodes_mask: Tensor
    edges_mask: Tensor
    graphs_mask: Tensor


def make_molecule(size: int, seed: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    both = torch.combinations(torch.arange(size))[::2].T.reshape(2, -1)
    edge_index = torch.cat([both, both.flip(0)], 1)
    return Data(
        z=torch.randint(1, 9, (size,), generator=generator),
        pos=2 * torch.randn(size, 3, generator=generator),
        x=torch.randn(size, 6, generator=generator),
        edge_index=edge_index,
        edge_attr=torch.randn(edge_index.size(1), 3, generator=generator),
    )


def make_batch(sizes: tuple[int, ...] = (5, 1, 4), seed: int = 0) -> Molecules:
    """Return random molecules; a molecule depends only on the seed and on its place."""
    batch = Batch.from_data_list([make_molecule(size, 1000 * seed + i) for i, size in enumerate(sizes)])
    batch.nodes_mask = torch.ones(batch.num_nodes, dtype=torch.bool)
    batch.edges_mask = torch.ones(batch.num_edges, dtype=torch.bool)
    batch.graphs_mask = torch.ones(len(sizes), dtype=torch.bool)
    return molecules_of(batch)


def molecules_of(batch: Batch) -> Molecules:
    return Molecules(**{field.name: getattr(batch, field.name) for field in fields(Molecules)})


def pad(molecules: Molecules, nodes: int, edges: int, graphs: int, garbage: float = 0.0) -> Molecules:
    """Add padding as the collater does: edges are loops of the first padding node; `garbage` fills features."""
    if nodes == 0:
        return molecules
    m, first = molecules, molecules.z.size(0)
    return Molecules(
        z=torch.cat([m.z, torch.full((nodes,), 7 if garbage else 0)]),
        pos=torch.cat([m.pos, m.pos.new_full((nodes, 3), garbage)]),
        x=torch.cat([m.x, m.x.new_full((nodes, 6), garbage)]),
        edge_index=torch.cat([m.edge_index, torch.full((2, edges), first)], 1),
        edge_attr=torch.cat([m.edge_attr, m.edge_attr.new_full((edges, 3), garbage)]),
        batch=torch.cat([m.batch, m.num_graphs + torch.arange(nodes).clamp(max=graphs - 1)]),
        num_graphs=m.num_graphs + graphs,
        nodes_mask=torch.cat([m.nodes_mask, torch.zeros(nodes, dtype=torch.bool)]),
        edges_mask=torch.cat([m.edges_mask, torch.zeros(edges, dtype=torch.bool)]),
        graphs_mask=torch.cat([m.graphs_mask, torch.zeros(graphs, dtype=torch.bool)]),
    )


PADDINGS = {"none": (0, 0, 0), "one": (1, 1, 1), "seven": (7, 7, 7), "many": (40, 90, 3)}


class Pooled(nn.Module):
    """A GNN with a readout by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gnn = GIN(6, 8, 2, norm="layer_norm")
        self.pool = AttentionalAggregation(nn.Linear(8, 1))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int, **masks: Tensor) -> Tensor:
        return self.pool(self.gnn(x, edge_index, batch=batch, **masks), batch, num_graphs)


def schnet(**kwargs: object) -> SchNet:
    sizes = {"hidden_channels": 12, "num_filters": 10, "num_interactions": 1, "num_gaussians": 8, "cutoff": 5.0}
    return SchNet(**{**sizes, **kwargs})


def gnn(model: type[nn.Module], **kwargs: object) -> nn.Module:
    return model(in_channels=6, hidden_channels=8, num_layers=2, out_channels=4, readout="add", **kwargs)


def gps(**kwargs: object) -> GPS:
    return GPS(6, 8, num_layers=1, out_channels=4, heads=2, readout="add", max_num_nodes=8, **kwargs)


# Each part of the library is in at least one model; parts share a model if they cannot hide each other's faults.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "SchNet, knn": lambda: schnet(num_interactions=2, interaction_graph=KNNInteractionGraph(4, 5.0, max_num_nodes=8)),
    "SchNet, knn of the whole batch, polynomial, mean, references": lambda: schnet(
        interaction_graph=KNNInteractionGraph(9, 5.0),
        readout="mean",
        mean=1.0,
        std=2.0,
        atomref=torch.linspace(0, 1, 100),
        envelope=PolynomialEnvelope(5.0),
    ),
    "SchNet, pairs": lambda: schnet(interaction_graph=PairInteractionGraph(5.0, max_num_nodes=8)),
    "SchNet, radius, dipole": lambda: schnet(
        interaction_graph=RadiusInteractionGraph(5.0, 80, max_num_nodes=8), dipole=True
    ),
    "PaiNN, knn": lambda: PaiNN(8, 2, 6, 5.0, KNNInteractionGraph(9, 5.0, max_num_nodes=8)),
    "PaiNN, pairs, mean": lambda: PaiNN(8, 1, 6, 5.0, PairInteractionGraph(5.0, max_num_nodes=8), readout="mean"),
    "GCN": lambda: gnn(GCN),
    "GIN, graph norm, jump": lambda: gnn(GIN, norm="graph_norm", jk="cat"),
    "GIN, layer norm, attention": Pooled,
    "GINE": lambda: gnn(GINE, edge_dim=3),
    "GraphSAGE, batch norm": lambda: gnn(GraphSAGE, norm="batch_norm"),
    "GraphSAGE, max, instance norm": lambda: gnn(GraphSAGE, aggr="max", norm="instance_norm"),
    "GPS, padded": lambda: gps(attention="padded", conv="gcn"),
    "GPS, pack, biased": lambda: gps(attention="pack", edge_dim=3, norm="layer_norm", pair_bias=PairBias(2, 3)),
    "GPS++": lambda: GPSPlusPlus(
        *(6, 8, 1, 4),
        edge_dim=3,
        heads=2,
        max_num_nodes=8,
        attention="padded",
        pair_bias=PairBias(2, 3, cutoff=4.0, num_gaussians=6),
    ),
}
EACH_MODEL = pytest.mark.parametrize("name", MODELS)


def make_model(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.default_generator.manual_seed(0)
    return MODELS[name]().to(dtype)


def pairs_of(m: Molecules, dtype: torch.dtype, bias: PairBias) -> dict[str, Tensor]:
    """Return the needed results of `ShortestPaths` and `PairDistances` for each node and place in its graph."""
    first = (m.batch.unsqueeze(0) < m.batch.unsqueeze(1)).sum(1, keepdim=True)
    at = (first + torch.arange(8)).clamp(max=m.z.size(0) - 1)  # [num_nodes, 8]
    pairs = {}
    if bias.of_hops is not None:
        joined = torch.zeros(m.z.size(0), m.z.size(0), dtype=dtype).index_put(
            (*m.edge_index,), torch.ones((), dtype=dtype)
        )
        hops = torch.where(
            torch.eye(m.z.size(0)) > 0, 0, torch.where(joined > 0, 1, torch.where(joined @ joined > 0, 2, 3))
        )
        pairs["hops"] = hops.gather(1, at)
    if bias.of_distance is not None:
        apart = (m.pos.to(dtype).unsqueeze(1) - m.pos.to(dtype)[at]).square().sum(2)  # [num_nodes, 8]
        pairs["distance"] = torch.where(apart > 0, apart, 1.0).sqrt()
    return pairs


def predict(model: nn.Module, m: Molecules) -> Tensor:
    """Return one row per graph [num_graphs, channels]."""
    masks = {"nodes_mask": m.nodes_mask}
    dtype = next(model.parameters()).dtype
    if isinstance(model, SchNet | PaiNN):
        return model(m.z, m.pos.to(dtype), m.batch, num_graphs=m.num_graphs, **masks)
    masks["edges_mask"] = m.edges_mask
    attributes = {"edge_attr": m.edge_attr.to(dtype)} if isinstance(model, GINE | GPS | GPSPlusPlus) else {}
    if isinstance(model, GPS | GPSPlusPlus) and model.pair_bias is not None:
        attributes |= pairs_of(m, dtype, model.pair_bias)
    return model(m.x.to(dtype), m.edge_index, batch=m.batch, num_graphs=m.num_graphs, **attributes, **masks)


@EACH_MODEL
def test_a_model_holds_what_the_kit_claims_of_any_model(name: str):
    model = make_model(name)
    check_conformance(
        model,
        [make_molecule(size, seed) for seed, size in enumerate((5, 1, 4, 8))],
        call=lambda model, batch: predict(model, molecules_of(batch)),
        loss=lambda out, batch: mse_loss(out, torch.ones_like(out), batch.graphs_mask),
        also=("rotation", "reflection", "translation") if isinstance(model, SchNet | PaiNN) else (),
    ).require()


def test_float32_is_close_to_float64():
    batch = pad(make_batch(), 7, 7, 2)
    for name in MODELS:
        single = predict(make_model(name, torch.float32), batch)[:3]
        double = predict(make_model(name), batch)[:3]
        assert_close(single.double(), double, rtol=1e-4, atol=1e-4, msg=lambda words, name=name: f"{name}: {words}")


def test_pygs_check_of_dynamic_shapes_finds_none():
    with set_experimental_mode(True, "disable_dynamic_shapes"):
        sizes = {name: predict(make_model(name), pad(make_batch(), 7, 7, 2)).size(0) for name in MODELS}
    assert set(sizes.values()) == {5}, sizes


class Training(nn.Module):
    """A model with its loss, in the form that a compiled step expects."""

    def __init__(self, model: nn.Module, num_graphs: int) -> None:
        super().__init__()
        self.model, self.num_graphs = model, num_graphs

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        molecules = Molecules(**tensors, num_graphs=self.num_graphs)
        out = predict(self.model, molecules)
        return mse_loss(out, torch.ones_like(out), molecules.graphs_mask)


def test_torch_compile_takes_a_whole_model_as_one_graph():
    model, batch = make_model("SchNet, pairs", torch.float32), pad(make_batch(), 7, 7, 2)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    out = compiled(batch.z, batch.pos, batch.batch, num_graphs=batch.num_graphs, nodes_mask=batch.nodes_mask)
    assert_close(out[:3], predict(model, batch)[:3])


NORMS: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: BatchNorm(6),
    "BatchNorm, cumulative": lambda: BatchNorm(6, momentum=None),
    "GraphNorm": lambda: GraphNorm(6),
    "InstanceNorm": lambda: InstanceNorm(6, affine=True, track_running_stats=True),
    "LayerNorm": lambda: LayerNorm(6),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_never_sees_padding_nor_do_its_running_statistics(name: str, training: bool):
    batch = make_batch()
    expected = None
    for padding in PADDINGS.values():
        m = pad(batch, *padding, garbage=9.0)
        norm = NORMS[name]().train()
        norm(m.x, m.batch, m.num_graphs, m.nodes_mask)
        norm.train(training)
        out = norm(m.x, m.batch, m.num_graphs, m.nodes_mask)[: batch.x.size(0)]
        found = [out, *norm.buffers()]
        expected = found if expected is None else expected
        assert_close(found, expected)


LOSSES: dict[str, tuple[Callable[..., Tensor], Tensor, Tensor, float]] = {
    "mse": (mse_loss, torch.randn(3, 2), torch.randn(3, 2), torch.nan),
    "l1": (l1_loss, torch.randn(3), torch.randn(3), torch.nan),
    "huber": (huber_loss, 3 * torch.randn(3), torch.randn(3), torch.inf),
    "cross-entropy": (cross_entropy, torch.randn(3, 4), torch.tensor([0, 3, 1]), -100),
    "binary cross-entropy": (
        binary_cross_entropy,
        torch.randn(3, 2),
        torch.tensor([[0, 1], [1, torch.nan], [1, 1]]),
        torch.nan,
    ),
}
EACH_LOSS = pytest.mark.parametrize(("loss", "input", "target", "garbage"), LOSSES.values(), ids=LOSSES)


@EACH_LOSS
@pytest.mark.parametrize("num_pad", [0, 1, 7, 100])
def test_a_loss_and_its_gradient_do_not_see_padding(loss, input, target, garbage, num_pad):
    rows = input.clone().requires_grad_()
    expected = loss(rows, target)
    (gradient,) = torch.autograd.grad(expected, rows)
    mask = torch.arange(3 + num_pad) < 3
    padded = torch.cat([input, input.new_full((num_pad, *input.shape[1:]), torch.nan)]).requires_grad_()
    value = loss(padded, torch.cat([target, target.new_full((num_pad, *target.shape[1:]), garbage)]), mask)
    assert_close(value, expected)
    (padded_gradient,) = torch.autograd.grad(value, padded)
    assert_close(padded_gradient, torch.cat([gradient, torch.zeros_like(padded[3:])]))


@EACH_LOSS
def test_a_loss_of_nothing_real_is_zero(loss, input, target, garbage):
    assert loss(input, target, torch.zeros(3, dtype=torch.bool)) == 0


@EACH_LOSS
def test_replicas_of_different_fill_average_to_the_loss_of_all_rows(loss, input, target, garbage):
    rows = torch.arange(3)
    one, other = rows < 1, rows >= 1
    known = torch.ones_like(input, dtype=torch.bool) if target.dim() == input.dim() else torch.ones(3, dtype=torch.bool)
    if target.is_floating_point():
        known = known & ~target.isnan()
    half = known.sum() / 2
    replicas = [loss(input, target, mask, divide_by=half) for mask in (one, other)]
    assert_close(sum(replicas) / 2, loss(input, target))
