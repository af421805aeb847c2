"""GPS++ of 44 million weights with the settings of the published run, on packs of 60 nodes, 120 edges and 8 graphs.

The source is `configs/GPS_PCQ_16gps_44M.yaml`, `run_training.py`, `model/` and `pipeline/` in graphcore/examples
gnn/ogb_lsc_pcqm4mv2. All nodes of a pack attend to each other, with a bias for each pair; an encoder computes the bias
from hops and from 128 Gaussians of the distance in float32. Two heads predict the replaced categories of atoms and
bonds.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from popgeo import ipu
from popgeo.ipu.report.report import Pipeline
from popgeo.ops import gather, global_add_pool

PACKS, NODES, EDGES, GRAPHS = 8, 61, 121, 9  # 60, 120 and 8, and one dummy of each
REAL = 3.8 * PACKS  # graphs per pack: 60 nodes, 89 % of them used, 14.1 nodes per molecule
NODE, EDGE, GRAPH, HEADS, LAYERS, KERNELS, ENCODED = 256, 128, 64, 32, 16, 128, 32
# Values of each category by OGB's table and the periodic table. The trimmed tables of the run are unknown.
OF_ATOMS, OF_BONDS = (119, 12, 12, 10, 6, 2, 2, 10, 8, 19), (5, 6, 2)


def mlp(inputs: int, inner: int, outputs: int, act: type[nn.Module] = nn.GELU, first: bool = False) -> nn.Sequential:
    """Return two layers with a norm between them; `first` adds a norm before them."""
    before = [nn.LayerNorm(inputs)] if first else []
    return nn.Sequential(*before, nn.Linear(inputs, inner), nn.LayerNorm(inner), act(), nn.Linear(inner, outputs))


def drop_rows(rows: Tensor, rate: float) -> Tensor:
    """Drop whole rows; one random number is drawn per row."""
    return rows * (F.dropout(torch.ones_like(rows[:, :1]), rate))


class Gaussians(nn.Module):
    """Densities of learned normal distributions, in float32: [...] -> [..., KERNELS]."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.std = nn.Parameter(torch.rand(KERNELS)), nn.Parameter(torch.rand(KERNELS))

    def forward(self, x: Tensor) -> Tensor:
        std = (self.std.abs() + 0.01).float()
        height = (-0.5 * ((x.float().unsqueeze(-1) - self.mean.float()) / std).square()).exp()
        return (0.1 * height / (2.5066 * std)).to(x.dtype)


class Categories(nn.Module):
    """The sum of the categories' embeddings: [..., categories] -> [..., 64]."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 64) for size in sizes)

    def forward(self, categories: Tensor) -> Tensor:
        return sum(table(categories[..., i]) for i, table in enumerate(self.tables))


class Encoder(nn.Module):
    """The encoder of features of nodes, edges and graphs, and of the bias of each pair in a pack."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms, self.atom_mlp = Categories(OF_ATOMS), mlp(64, 4 * NODE, NODE)
        self.bonds, self.bond_mlp = Categories(OF_BONDS), mlp(64, 4 * EDGE, EDGE)
        widths = {"lap_vecs": 8, "lap_vals": 8, "walks": 16, "lengths": KERNELS}
        self.encoders = nn.ModuleDict(
            {name: mlp(width, 2 * ENCODED, ENCODED, nn.ReLU, first=True) for name, width in widths.items()}
        )
        self.centrality, self.hops = nn.Embedding(NODES + 1, 64), nn.Embedding(101, HEADS)
        self.of_length, self.of_distance = Gaussians(), Gaussians()
        self.pair_mlp = nn.Sequential(nn.Linear(KERNELS, KERNELS), nn.GELU(), nn.Linear(KERNELS, HEADS))
        self.distance_sum = nn.Linear(KERNELS, ENCODED, bias=False)
        self.node, self.edge = nn.Linear(NODE + 64 + 4 * ENCODED, NODE), nn.Linear(EDGE + ENCODED, EDGE)
        self.graph = nn.Embedding(1, GRAPH)

    def forward(
        self, atoms: Tensor, bonds: Tensor, places: dict[str, Tensor], lengths: Tensor, hops: Tensor, distance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return [nodes, NODE], [edges, EDGE], [graphs, GRAPH] and [PACKS, HEADS, NODES, NODES]."""
        known = (hops != -1).unsqueeze(-1).to(distance.dtype)
        kernels = self.of_distance(distance) * known  # [PACKS, NODES, NODES, KERNELS]
        of_hops = self.hops(hops.clamp(0, 100)) * known
        bias = (1 - known) * -10_000 + of_hops + self.pair_mlp(kernels) * known
        encoded = [F.dropout(self.encoders[name](places[name]), 0.18) for name in ("lap_vecs", "lap_vals", "walks")]
        sums = self.distance_sum(kernels.sum(2)).flatten(0, 1)
        x = torch.cat([self.centrality(places["centrality"]), sums, *encoded, self.atom_mlp(self.atoms(atoms))], 1)
        of_lengths = F.dropout(self.encoders["lengths"](self.of_length(lengths)), 0.18)
        e = torch.cat([self.bond_mlp(self.bonds(bonds)), of_lengths], 1)
        everywhere = torch.zeros(PACKS * GRAPHS, dtype=torch.long, device=atoms.device)
        return self.node(x), self.edge(e), self.graph(everywhere), bias.permute(0, 3, 1, 2).contiguous()


class PackAttention(nn.Module):
    """Attention within each pack, with one product each for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(NODE, NODE) for _ in range(4))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (f(x).view(PACKS, NODES, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) * (NODE // HEADS) ** -0.5 + bias
        weights = F.dropout(scores.softmax(-1), 0.3)
        out: Tensor = self.out((weights @ v).transpose(1, 2).reshape(-1, NODE))
        return out


class Layer(nn.Module):
    """Message passing and attention in parallel, followed by a feed-forward network."""

    def __init__(self, depth: float) -> None:
        super().__init__()
        self.skip = 0.3 * depth  # part of the graphs skipped after attention and after the feed-forward network
        self.edge_mlp = mlp(2 * NODE + EDGE + GRAPH, 4 * EDGE, EDGE)
        self.node_mlp = mlp(3 * NODE + 2 * EDGE + GRAPH, 4 * NODE, NODE)
        self.graph_mlp = mlp(GRAPH + NODE + EDGE, 4 * GRAPH, GRAPH)
        self.attention = PackAttention()
        self.ffn = nn.Sequential(nn.Linear(NODE, 4 * NODE), nn.GELU(), nn.Linear(4 * NODE, NODE))
        self.norm_y, self.norm_z, self.norm_x = (nn.LayerNorm(NODE) for _ in range(3))

    def forward(
        self, x: Tensor, e: Tensor, g: Tensor, bias: Tensor, ends: Tensor, batch: Tensor, of_edge: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the new features of nodes, edges and graphs."""
        at_source, at_target = gather(x, ends[0]), gather(x, ends[1])
        e_new = drop_rows(self.edge_mlp(torch.cat([at_target, at_source, e, gather(g, of_edge)], 1)), 0.0035)
        received = global_add_pool(torch.cat([e_new, at_source], 1), ends[1], len(x))
        sent = global_add_pool(torch.cat([e_new, at_target], 1), ends[0], len(x))
        x_new = self.node_mlp(torch.cat([received, sent, x, gather(g, batch)], 1))
        pooled = [global_add_pool(x_new, batch, len(g)), global_add_pool(e_new, of_edge, len(g))]
        g_new = drop_rows(self.graph_mlp(torch.cat([g, *pooled], 1)), 0.35)
        y = self.norm_y(drop_rows(x_new, 0.3) + x)
        both = y + self.norm_z(self.left_in(self.attention(x, bias), batch) + x)
        return self.norm_x(self.left_in(self.ffn(both), batch) + both), e + e_new, g + g_new

    def left_in(self, rows: Tensor, batch: Tensor) -> Tensor:
        """Drop the rows of random graphs: stochastic depth (arXiv:1603.09382)."""
        kept = (torch.rand(PACKS * GRAPHS, 1, dtype=rows.dtype, device=rows.device) - self.skip).ceil()
        return rows / (1 - self.skip) * gather(kept, batch)


class Decoder(nn.Module):
    """The loss of each graph's energy gap and of the categories of each atom and bond."""

    def __init__(self) -> None:
        super().__init__()
        self.gap, self.atoms, self.bonds = (
            mlp(NODE, NODE, 1),
            nn.Linear(NODE, sum(OF_ATOMS)),
            nn.Linear(EDGE, sum(OF_BONDS)),
        )

    def forward(self, x: Tensor, e: Tensor, batch: Tensor, y: Tensor, atoms: Tensor, bonds: Tensor) -> Tensor:
        out = self.gap(global_add_pool(x, batch, len(y)))
        loss = (out.flatten() - y).abs().mean()
        for scores, sizes, target in ((self.atoms(x), OF_ATOMS, atoms), (self.bonds(e), OF_BONDS, bonds)):
            for i, part in enumerate(scores.split(sizes, 1)):
                loss = loss + 1.2 * F.cross_entropy(part, target[:, i])
        return loss


class GpsStep(nn.Module):
    """The model and loss of a micro-batch of packs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()
        self.layers = nn.ModuleList(Layer(number / (LAYERS - 1)) for number in range(LAYERS))

    def forward(
        self,
        atoms: Tensor,
        bonds: Tensor,
        places: dict[str, Tensor],
        lengths: Tensor,
        hops: Tensor,
        distance: Tensor,
        ends: Tensor,
        batch: Tensor,
        of_edge: Tensor,
        y: Tensor,
        true_atoms: Tensor,
        true_bonds: Tensor,
    ) -> Tensor:
        """Return the loss []."""
        x, e, g, bias = self.encoder(atoms, bonds, places, lengths, hops, distance)
        for layer in self.layers:
            x, e, g = layer(x, e, g, bias, ends, batch, of_edge)
        loss: Tensor = self.decoder(x, e, batch, y, true_atoms, true_bonds)
        return loss


def example(dtype: torch.dtype) -> list[object]:
    """Return the arguments of a micro-batch, all zero."""
    nodes, edges = PACKS * NODES, PACKS * EDGES

    def numbers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.long)

    places = {
        name: torch.zeros(nodes, width, dtype=dtype)
        for name, width in (("lap_vecs", 8), ("lap_vals", 8), ("walks", 16))
    }
    return [
        numbers(nodes, len(OF_ATOMS)),
        numbers(edges, len(OF_BONDS)),
        {**places, "centrality": numbers(nodes)},
        torch.zeros(edges, dtype=dtype),
        numbers(PACKS, NODES, NODES),
        torch.zeros(PACKS, NODES, NODES, dtype=dtype),
        numbers(2, edges),
        numbers(nodes),
        numbers(edges),
        torch.zeros(PACKS * GRAPHS, dtype=dtype),
        numbers(nodes, len(OF_ATOMS)),
        numbers(edges, len(OF_BONDS)),
    ]


def gps_plus_plus() -> Pipeline:
    """Return the plan of the published run: 4 replicas of 4 stages, float16, 8 micro-batches per update.

    The program splits its 18 Keras layers, which include the encoder and the decoder, evenly; the last stages get one
    layer more: the encoder and 3 layers, 4, 5, and 4 with the decoder. The host calls the published program once per
    epoch, and this plan once per 100 updates.
    """
    model = GpsStep().to(torch.float16).to("meta")
    return ipu.pipeline(
        model,
        example(torch.float16),
        ipu.Options(
            device_iterations=100, gradient_accumulation=8, replication_factor=4, matmul_proportion=0.2, strict=False
        ),
        torch.optim.Adam(model.parameters(), lr=4e-4),
        stages={"layers.3": 1, "layers.7": 2, "layers.12": 3},
        recompute=True,
    )
