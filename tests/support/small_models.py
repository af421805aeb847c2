"""Small models of fixed shape that the tests of the executor train."""

import functools

import torch
from torch import Tensor, nn

from popgeo import ipu

NUM_NODES, NUM_EDGES, NUM_GRAPHS = 12, 40, 3


class ContinuousFilters(nn.Module):
    """A SchNet in miniature: filters from distances, messages, residual updates, a sum per graph."""

    def __init__(self, channels: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, channels)
        self.filters = nn.ModuleList([nn.Sequential(nn.Linear(5, channels), nn.Softplus()) for _ in range(blocks)])
        self.updates = nn.ModuleList([nn.Linear(channels, channels) for _ in range(blocks)])
        self.readout = nn.Linear(channels, 1)
        self.register_buffer("centres", torch.linspace(0, 4, 5))

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index[0], edge_index[1]
        distance = (pos[src] - pos[dst]).square().sum(-1, keepdim=True).add(1e-6).sqrt()
        rbf = torch.exp(-(distance - self.centres).square())
        h = self.embedding(z)
        for filters, update in zip(self.filters, self.updates, strict=True):
            message = h[src] * filters(rbf)
            h = h + update(torch.zeros_like(h).index_add(0, dst, message))
        energy = torch.zeros(NUM_GRAPHS, 1, dtype=h.dtype).index_add(0, batch, self.readout(h)).squeeze(-1)
        return energy, (energy - y).abs().mean()


class GraphConvolutions(nn.Module):
    """Two graph convolutions of Kipf and Welling with a batch norm in between."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, channels)
        self.first, self.second = nn.Linear(channels, channels, bias=False), nn.Linear(channels, 1)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index[0], edge_index[1]
        degree = torch.ones(NUM_NODES, dtype=pos.dtype).scatter_add_(0, dst, torch.ones(src.shape, dtype=pos.dtype))
        weight = (degree[src] * degree[dst]).rsqrt().unsqueeze(-1)
        h = self.embedding(z)
        for layer in (self.first, self.second):
            x = layer(h)
            h = torch.zeros_like(x).index_add(0, dst, weight * x[src]) + x / degree.unsqueeze(-1)
            h = self.norm(h).relu() if layer is self.first else h
        predicted = torch.zeros(NUM_GRAPHS, 1, dtype=h.dtype).index_add(0, batch, h).squeeze(-1)
        return predicted, (predicted - y).square().mean()


class Stray(nn.Module):
    """A model that counts its calls in a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.count = [torch.zeros(1)]

    def forward(self, x: Tensor) -> Tensor:
        self.count[0].add_(1)
        return x + self.count[0]


def make_batch(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return random nodes, edges and targets in the sizes above."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "z": torch.randint(0, 10, (NUM_NODES,), generator=generator),
        "pos": torch.randn(NUM_NODES, 3, generator=generator, dtype=dtype),
        "edge_index": torch.randint(0, NUM_NODES, (2, NUM_EDGES), generator=generator),
        "batch": torch.arange(NUM_NODES) * NUM_GRAPHS // NUM_NODES,
        "y": torch.randn(NUM_GRAPHS, generator=generator, dtype=dtype),
    }


def eager_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Run the same training step in plain PyTorch."""
    optimizer.zero_grad()
    prediction, loss = model(**batch)
    loss.backward()
    optimizer.step()
    return prediction.detach(), loss.detach()


def compile_training(**options) -> ipu.CompiledStep:
    """Compile a training step of `ContinuousFilters` with Adam, for the options' number of micro-batches."""
    torch.manual_seed(0)
    model = ContinuousFilters().double()
    step = ipu.training_model(model, ipu.Options(**options), torch.optim.Adam(model.parameters()))
    times = options.get("gradient_accumulation", 1) * options.get("replication_factor", 1)
    return step.compile(**{name: x.repeat([times] + [1] * (x.dim() - 1)) for name, x in make_batch(0).items()})


@functools.cache
def training_report(**options) -> ipu.Report:
    """Return the report of the compiled step; it is made once per set of options."""
    return compile_training(**options).report


class EachMethod(nn.Module):
    """A base class with one method of each kind, which tests replace."""

    def method(self, x: Tensor) -> Tensor:
        return 2 * x

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return 2 * x

    @property
    def attribute(self) -> float:
        return 2.0
