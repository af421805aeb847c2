"""Models that padding changes are reported, each by name and with its cause; other models pass."""

from functools import partial
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from popgeo import FixedSizeCollater, FixedSizeOptions, ops
from popgeo.nn import GIN, BatchNorm, GraphNorm, energy_and_forces, masked_mean, mse_loss, to_fixed_size
from popgeo.testing import check_padding_invariance
from tests.support.graphs import hetero_graph


def graph(num_nodes: int, num_edges: int, seed: int) -> Data:
    random = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(num_nodes, 3, generator=random),
        z=torch.randint(1, 9, (num_nodes,), generator=random),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=random),
        y=torch.randn(1, generator=random),
    )


GRAPHS = [graph(5, 8, 0), graph(1, 0, 1), graph(4, 7, 2), graph(3, 2, 3), graph(9, 9, 4)]


class Model(nn.Module):
    """A correct model with places for a test's norm, readout or loss."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gin = GIN(3, 8, 2, out_channels=4, dropout=0.5)
        self.norm = parts.get("norm", nn.Identity())
        self.head = nn.Linear(4, 1)
        self.nodes = parts.get("nodes", lambda x, batch: x)
        self.readout = parts.get("readout", lambda x, batch: ops.global_add_pool(x, batch.batch, batch.num_graphs))
        self.end = parts.get("end", lambda out, batch: out)

    def forward(self, batch: Any) -> Any:
        x = self.gin(batch.x, batch.edge_index, nodes_mask=batch.nodes_mask, edges_mask=batch.edges_mask)
        x = self.norm(x, nodes_mask=batch.nodes_mask) if isinstance(self.norm, BatchNorm) else self.norm(x)
        x = self.nodes(x, batch)
        return self.end(self.head(self.readout(x, batch)).flatten(), batch)


class Edges(nn.Module):
    def forward(self, batch: Any) -> dict[str, Any]:
        ends = ops.gather(torch.where(batch.nodes_mask.unsqueeze(1), batch.x, 0.0), batch.edge_index.flatten())
        return {"edges": ends.view(2, -1, 3).prod(0), "both": (batch.z, batch.graphs_mask.sum())}


class Energy(nn.Module):
    """A model that returns energies, and in evaluation also forces."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 4)

    def forward(self, z: Tensor, pos: Tensor, batch: Any) -> Tensor:
        atoms = self.lin(torch.where(batch.nodes_mask.unsqueeze(1), pos, 0.0)).tanh().sum(1, keepdim=True)
        return ops.global_add_pool(atoms * z.unsqueeze(1), batch.batch, batch.num_graphs)

    @staticmethod
    def call(model: nn.Module, batch: Any) -> Any:
        return (model if model.training else partial(energy_and_forces, model))(batch.z, batch.x, batch)


class Hetero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 3)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        x = self.lin(torch.where(batch["a"].nodes_mask.unsqueeze(1), batch["a"].x, 0.0))
        src, dst = batch["a", "writes", "b"].edge_index
        at_b = ops.scatter(ops.gather(x, src), dst, 0, dim_size=batch["b"].num_nodes)
        return {"a": x, "b": at_b, "graphs": ops.global_add_pool(at_b, batch["b"].batch, batch.num_graphs)}


RIGHT = {
    "graphs": Model(),
    "batch norm": Model(norm=BatchNorm(4)),
    "nodes": Model(readout=lambda x, batch: x),
    "result and loss": Model(end=lambda out, batch: (out, mse_loss(out, batch.y, batch.graphs_mask))),
    "edges, in a nest": Edges(),
    "evaluation": Model(norm=nn.BatchNorm1d(4)).eval(),
    "a function": lambda batch: ops.global_add_pool(batch.x, batch.batch, batch.num_graphs),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_does_not_see_padding_passes(name: str):
    check_padding_invariance(RIGHT[name], GRAPHS)


def test_forces_are_rows_of_nodes():
    check_padding_invariance(
        Energy().double(), [graph.clone().apply(double, "x") for graph in GRAPHS], call=Energy.call
    )


def double(x: Tensor) -> Tensor:
    return x.double()


def test_graphs_of_several_types_pass():
    graphs = [hetero_graph(2, 3, 4, 1, seed=0), hetero_graph(3, 2, 0, 3, seed=1), hetero_graph(1, 1, 2, 2, seed=2)]
    check_padding_invariance(Hetero(), graphs)  # six nodes of each type, and six edges, in another order

    def whole(batch: HeteroData) -> Tensor:
        return batch["a"].x - batch["a"].x.amax(0)

    with pytest.raises(AssertionError, match=r"result of graph \d+ \(node 'a' row \d+\) depends on padding"):
        check_padding_invariance(whole, graphs)


@pytest.mark.parametrize(
    "graphs",
    [
        GRAPHS[:1],
        GRAPHS[0],
        Batch.from_data_list(GRAPHS),
        FixedSizeCollater(FixedSizeOptions(40, 40, 9), add_masks_to_batch=True)(GRAPHS),
        [Data(x=torch.randn(n, 3)) for n in (2, 5)],
    ],
    ids=["one", "a graph", "a batch", "a padded batch", "no edges"],
)
def test_graphs_come_in_any_form(graphs: Any):
    check_padding_invariance(lambda batch: batch.x, graphs)
    with pytest.raises(AssertionError, match="depends on padding"):
        check_padding_invariance(lambda batch: batch.x.amax(0) + batch.x, graphs)


def test_padding_of_a_given_batch_is_no_graph():
    numbers = set()

    def count(batch: Any) -> Tensor:
        numbers.add(int(batch.graphs_mask.sum()))
        return batch.x

    padded = FixedSizeCollater(FixedSizeOptions(40, 40, 9), add_masks_to_batch=True)(GRAPHS[:2])
    check_padding_invariance(count, padded, limit=9)
    assert max(numbers) == 2


def mean_of_real_nodes(x: Tensor, batch: Any) -> Tensor:
    mask = batch.nodes_mask.unsqueeze(1)
    return torch.where(mask, x, 0.0).sum(0) / mask.sum()


def slope_of_padding(out: Tensor, batch: Any) -> Tensor:
    """Return zero, with a slope that grows with the batch."""
    seen = out.sum() * batch.num_graphs
    return mse_loss(out, batch.y, batch.graphs_mask) + (seen - seen.detach()).nan_to_num()


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.size(0)
        return x


class Doorless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, batch: Any) -> Tensor:
        return ops.global_add_pool(self.lin(batch.x), batch.batch, batch.num_graphs)


WRONG = {
    "torch's batch norm": (
        Model(norm=nn.BatchNorm1d(4)),
        r"result of graph \d+ depends on padding: .*difference begins in norm \(BatchNorm1d\).*popgeo\.nn\.BatchNorm",
    ),
    "a mean over all rows": (
        Model(nodes=lambda x, batch: x - x.mean(0)),
        r"result of graph \d+ depends on padding: .*difference begins before head \(Linear\).*global_mean_pool",
    ),
    "a maximum over all features": (
        lambda batch: batch.x - batch.x.amax(0),
        r"result of graph \d+ \(node row \d+\) depends on padding: .*of 3\.0, but",
    ),
    "a mean that has no rows": (
        lambda batch: batch.x.mean(0),
        r"result \(row \d\) depends on padding: .*mean, maximum or softmax over all rows",
    ),
    "a softmax over graphs": (Model(end=lambda out, batch: out.softmax(0)), r"result of graph \d+ depends on padding"),
    "a loss of all rows": (
        Model(end=lambda out, batch: (out, (out - batch.y).square().mean())),
        r"result\[1\] depends on padding: .*graphs_mask",
    ),
    "a loss over the number of slots": (
        Model(end=lambda out, batch: {"loss": masked_mean(out, batch.graphs_mask, batch.num_graphs)}),
        r"result\['loss'\] depends on padding",
    ),
    "a product with the mask": (
        lambda batch: batch.x + (batch.x * batch.nodes_mask.unsqueeze(1)).sum(0),
        r"depends on padding: nan .*torch\.where\(batch\.nodes_mask",
    ),
    "a slope of padding": (Model(end=slope_of_padding), r"the gradient of \S+ depends on padding"),
    "NaN times a slope of zero": (Doorless(), r"the gradient of lin\.weight depends on padding: nan .*garbage=\(0\.0"),
    "running statistics": (Model(norm=Remembers()), r"buffer norm\.seen depends on padding: .*running statistics"),
    "the place in the batch": (
        Model(end=lambda out, batch: out + torch.arange(batch.num_graphs)),
        r"result of graph \d+ depends on the order of the graphs: .*position of a graph",
    ),
    "the other graphs": (
        Model(nodes=lambda x, batch: x - mean_of_real_nodes(x, batch)),
        r"result of graph \d+ depends on the other graphs of the batch: .*with 1 graph, .*with 5 graphs; .*GraphNorm",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_sees_padding_is_caught_with_its_cause(name: str):
    model, words = WRONG[name]
    with pytest.raises(AssertionError, match=f"(?s){words}"):
        check_padding_invariance(model, GRAPHS, limit=5)


def test_a_loss_of_the_users_is_compared_and_trained_on():
    check_padding_invariance(Model(), GRAPHS, loss=lambda out, batch: mse_loss(out, batch.y, batch.graphs_mask))
    with pytest.raises(AssertionError, match=r"the loss depends on padding: .*\n.*graphs_mask"):
        check_padding_invariance(Model(), GRAPHS, loss=lambda out, batch: (out - batch.y.nan_to_num()).square().mean())


def test_a_model_of_tensors_built_for_so_many_graphs_is_called_by_a_function():
    readout = pyg.AttentionalAggregation(nn.Linear(4, 1))
    layers = [(pyg.GraphConv(3, 4), "x, edge_index -> x"), (readout, "x, batch -> x")]
    model = to_fixed_size(pyg.Sequential("x, edge_index, batch", layers), num_graphs=4)

    def call(model: nn.Module, batch: Any) -> Tensor:
        return model(safe(batch), batch.edge_index, batch.batch)

    check_padding_invariance(model, GRAPHS, call=call, num_graphs=4)
    with pytest.raises(AssertionError, match="depends on padding"):
        check_padding_invariance(model, GRAPHS, call=lambda *a: call(*a) + a[1].num_nodes, num_graphs=4)


def test_a_norm_of_each_graph_may_not_be_one_of_the_batch():
    norm = GraphNorm(3)
    check_padding_invariance(norm, GRAPHS, call=lambda norm, b: norm(safe(b), b.batch, b.num_graphs))
    with pytest.raises(AssertionError, match="depends on padding"):
        check_padding_invariance(norm, GRAPHS, call=lambda norm, b: norm(safe(b)))


def safe(batch: Any) -> Tensor:
    return torch.where(batch.nodes_mask.unsqueeze(1), batch.x, 0.0)


def test_garbage_may_be_chosen_for_each_attribute():
    def by_type(batch: Any) -> Tensor:
        return batch.x + batch.z.amax()

    check_padding_invariance(by_type, GRAPHS[:1])  # padding contains no type above the types of real nodes
    with pytest.raises(AssertionError, match=r"depends on padding: .*\{'z': 99\}"):
        check_padding_invariance(by_type, GRAPHS[:1], garbage=(0.0, {"z": 99}))
    check_padding_invariance(Doorless(), GRAPHS, garbage=(0.0, 3.0))


def test_a_tolerance_may_be_chosen():
    def leaks(batch: Any) -> Tensor:
        return batch.x + 0.02 / batch.num_nodes

    with pytest.raises(AssertionError, match="a difference of"):
        check_padding_invariance(leaks, GRAPHS)
    check_padding_invariance(leaks, GRAPHS, tolerance=0.1)
    with pytest.raises(AssertionError, match="a difference of"):
        check_padding_invariance(lambda batch: batch.x.double() + 1e-6 / batch.num_nodes, GRAPHS)


def test_the_model_and_the_random_numbers_stay_as_they_are():
    model = Model(norm=BatchNorm(4))
    model.gin.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    check_padding_invariance(model, GRAPHS)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    assert not model.gin.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(ValueError, match="There is no graph"):
        check_padding_invariance(Model(), [])
    with pytest.raises(ValueError, match="returned DataBatch without a tensor"):
        check_padding_invariance(lambda batch: batch, GRAPHS)
    with pytest.raises(ValueError, match="no row for each graph"):
        check_padding_invariance(lambda batch: batch.x[: batch.num_nodes - 3], GRAPHS)


def test_more_graphs_than_a_fixed_number_holds_are_left_out():
    seen = []

    def call(_: Any, batch: Any) -> Tensor:
        seen.append((batch.num_graphs, int(batch.graphs_mask.sum())))
        return batch.x

    check_padding_invariance(lambda batch: batch.x, GRAPHS, call=call, num_graphs=3)
    assert {number for number, _ in seen} == {3}
    assert max(real for _, real in seen) == 2


class Springs(nn.Module):
    """Energies of springs along the edges, trained by their forces; each padding edge is a spring of length 0."""

    def __init__(self, is_safe: bool) -> None:
        super().__init__()
        self.lin, self.is_safe = nn.Linear(1, 1), is_safe

    def forward(self, batch: Any) -> Tensor:
        pos = batch.x.detach().requires_grad_()
        apart = ops.gather(pos, batch.edge_index[0]) - ops.gather(pos, batch.edge_index[1])
        if self.is_safe:
            apart = torch.where(batch.edges_mask.unsqueeze(1), apart, 1.0)
        energies = self.lin(apart.square().sum(1, keepdim=True).sqrt()).square() * batch.edges_mask.unsqueeze(1)
        return torch.autograd.grad(energies.sum(), pos, create_graph=True)[0]


def test_a_gradient_that_is_nan_with_any_padding_edge_is_no_agreement():
    graphs = [graph(n, 0, n) for n in (4, 3)]
    for one in graphs:
        one.edge_index = torch.combinations(torch.arange(one.num_nodes)).T
    check_padding_invariance(Springs(is_safe=True), graphs, garbage=(0.0, 3.0))
    with pytest.raises(AssertionError, match=r"gradient of lin.weight is not finite(.|\n)*padding edges have length 0"):
        check_padding_invariance(Springs(is_safe=False), graphs, garbage=(0.0, 3.0))
