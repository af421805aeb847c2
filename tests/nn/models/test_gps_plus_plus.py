"""Claims about GPS++ and its denoising; the contracts cover padding and compilation."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from popgeo import ipu
from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.graph_cost import cost
from popgeo.nn import Denoiser, GPSPlusPlus, PairBias, mse_loss

BATCH = torch.tensor([0, 0, 0, 1, 1])
EDGES = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 1, 4]])


def model(**choices: object) -> GPSPlusPlus:
    torch.manual_seed(0)
    return GPSPlusPlus(3, 8, 2, 1, edge_dim=2, heads=2, **choices).double()


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 3, generator=generator).double(), torch.randn(5, 2, generator=generator).double()


def plain_layer(layer: nn.Module, x: Tensor, e: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the equations node by node and edge by edge, graph after graph."""
    edges = list(zip(*EDGES.tolist(), strict=True))
    e_new = torch.stack([layer.edge_mlp(torch.cat([x[u], x[v], e[k], g[BATCH[u]]])) for k, (u, v) in enumerate(edges)])
    x_new = []
    for i in range(5):
        received = [torch.cat([e_new[k], x[u]]) for k, (u, v) in enumerate(edges) if v == i] or [torch.zeros(12)]
        sent = [torch.cat([e_new[k], x[v]]) for k, (u, v) in enumerate(edges) if u == i] or [torch.zeros(12)]
        x_new.append(layer.node_mlp(torch.cat([x[i], sum(received), sum(sent), g[BATCH[i]]])))
    x_new = torch.stack(x_new)
    g_new = torch.stack(
        [
            layer.graph_mlp(torch.cat([g[n], x_new[n == BATCH].sum(0), e_new[n == BATCH[EDGES[0]]].sum(0)]))
            for n in range(2)
        ]
    )
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    attention.load_state_dict(layer.attn.state_dict())
    z = torch.cat([attention(*3 * (x[n == BATCH],))[0] for n in range(2)])
    both = layer.norm_y(x_new + x) + layer.norm_z(z + x)
    return layer.norm_x(layer.ffn(both) + both), e + e_new, g + g_new


def test_it_is_its_equations_written_out_for_each_node_and_edge():
    gps, (x, edge_attr) = model(), inputs()
    state = gps.node_encoder(x), gps.edge_encoder(edge_attr), gps.graph.expand(2, -1)
    for layer in gps.layers:
        state = plain_layer(layer, *state)
    assert_close(gps.embed(x, EDGES, edge_attr, BATCH, num_graphs=2), state)
    expected = gps.head(torch.stack([state[0][:3].sum(0), state[0][3:].sum(0)]))
    assert_close(gps(x, EDGES, edge_attr, BATCH, num_graphs=2), expected)


def test_stochastic_depth_leaves_parts_out_for_whole_graphs_and_keeps_their_mean():
    layer = model(stochastic_depth=0.5).layers[1]
    rows, graph = torch.ones(4000, 1, dtype=torch.float64), torch.arange(2000).repeat_interleave(2)
    kept = layer._kept(rows, graph, 2000).view(2000, 2)
    assert (kept[:, 0] == kept[:, 1]).all()
    assert set(kept.flatten().tolist()) == {0.0, 2.0}
    assert kept.mean() == pytest.approx(1, abs=0.1)
    assert layer.eval()._kept(rows, graph, 2000) is rows


def test_pairs_without_a_bias_are_refused():
    x, edge_attr = inputs()
    with pytest.raises(ValueError, match="no pair_bias"):
        model()(x, EDGES, edge_attr, BATCH, num_graphs=2, hops=torch.zeros(5, 5))


def test_corruption_is_as_frequent_and_as_even_as_said_and_only_in_training():
    torch.manual_seed(0)
    denoiser, x = Denoiser(4, [5, 2], probability=0.25), torch.full((20_000, 2), 1)
    noisy = denoiser.corrupt(x)
    shares = F.one_hot(noisy[:, 0], 5).double().mean(0)
    assert_close(shares, torch.tensor([0.05, 0.8, 0.05, 0.05, 0.05]).double(), atol=0.01, rtol=0)
    assert noisy[:, 1].double().mean() == pytest.approx(1 - 0.125, abs=0.01)
    assert denoiser.eval().corrupt(x) is x


def test_the_loss_of_denoising_is_the_mean_cross_entropy_of_real_rows_and_columns():
    denoiser, x = Denoiser(4, [3, 2]), torch.tensor([[2, 0], [0, 1], [9, 9]])
    rows = torch.randn(3, 4)
    logits = denoiser.lin(rows)[:2]
    expected = (F.cross_entropy(logits[:, :3], x[:2, 0]) + F.cross_entropy(logits[:, 3:], x[:2, 1])) / 2
    assert_close(denoiser.loss(rows, x, torch.tensor([True, True, False])), expected)
    with pytest.raises(ValueError, match="2 columns"):
        denoiser.loss(rows, x[:, :1])
    with pytest.raises(ValueError, match="at least one kind"):
        Denoiser(4, [3, 0])


class Step(nn.Module):
    """A GPS++ that predicts a number for each graph, and the original atoms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.atoms = nn.Embedding(4, 6)
        bias = PairBias(2, 3, cutoff=3.0, num_gaussians=4)
        self.gps = GPSPlusPlus(
            *(6, 8, 2, 1),
            edge_dim=2,
            heads=2,
            pair_bias=bias,
            max_num_nodes=3,
            attention="padded",
            dropout=0.1,
            attention_dropout=0.1,
            stochastic_depth=0.2,
        )
        self.denoiser = Denoiser(8, [4], probability=0.3)

    def forward(
        self, z: Tensor, edges: Tensor, edge_attr: Tensor, batch: Tensor, hops: Tensor, distance: Tensor, y: Tensor
    ) -> Tensor:
        x = self.atoms(self.denoiser.corrupt(z).flatten())
        nodes, _, _ = self.gps.embed(x, edges, edge_attr, batch, num_graphs=2, hops=hops, distance=distance)
        out = self.gps.read_out(nodes, batch, 2).flatten()
        return mse_loss(out, y) + 0.1 * self.denoiser.loss(nodes, z)


def test_it_trains_compiled_with_everything_on_and_every_operation_has_a_cost():
    def losses(as_step):
        torch.manual_seed(0)
        step = Step()
        run = as_step(step, torch.optim.Adam(step.parameters(), lr=1e-2))
        z, y = torch.tensor([[0], [1], [2], [3], [1]]), torch.tensor([1.0, -1.0])
        hops, distance = torch.randint(0, 4, (5, 3)), torch.rand(5, 3)
        return run, [float(run(z, EDGES, torch.ones(5, 2), BATCH, hops, distance, y)) for _ in range(30)]

    def eager(step, optimizer):
        def run(*batch):
            optimizer.zero_grad()
            loss = step(*batch)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return run

    training, found = losses(
        lambda step, optimizer: ipu.training_model(step, ipu.Options(show_progress=False), optimizer)
    )
    assert found == pytest.approx(losses(eager)[1], rel=1e-3)  # noise and dropout are eager's, too
    assert sum(found[-10:]) < sum(found[:10])
    assert [c.target for c in cost(training.graph, IpuTarget.bow()) if not c.known] == []
