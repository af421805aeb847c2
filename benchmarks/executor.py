"""The compiled training step against the same step in eager PyTorch, at one thread.

Eager PyTorch runs twice: with torch's defaults, and with denormal numbers flushed as in the compiled step. The goal is
relative to the flushed run. The two subjects are a SchNet on batches of QM9's size (576 nodes, 16,128 edges), and a
graph of tiny tensors, which shows the engine's own time per operation next to the time of torch's dispatch.
"""

import argparse
import copy
import tempfile

import torch
from timing import both_ways, measure, one_thread
from torch import Tensor, nn

from popgeo import ipu
from popgeo.command_line import run


class SchNet(nn.Module):
    """SchNet as published (arXiv:1706.08566), in plain PyTorch operations."""

    centres: Tensor

    def __init__(self, channels: int, blocks: int, gaussians: int = 25, cutoff: float = 6.0) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.embedding = nn.Embedding(100, channels)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(gaussians, channels), nn.Softplus(), nn.Linear(channels, channels))
            for _ in range(blocks)
        )
        self.inputs = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in range(blocks))
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(channels, channels), nn.Softplus(), nn.Linear(channels, channels))
            for _ in range(blocks)
        )
        self.readout = nn.Sequential(nn.Linear(channels, channels // 2), nn.Softplus(), nn.Linear(channels // 2, 1))
        self.register_buffer("centres", torch.linspace(0, cutoff, gaussians))

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index[0], edge_index[1]
        r = (pos[src] - pos[dst]).square().sum(-1).add(1e-9).sqrt()
        rbf = torch.exp(-10.0 * (r.unsqueeze(-1) - self.centres).square())
        envelope = 0.5 * (torch.cos(r * torch.pi / self.cutoff) + 1.0) * (r < self.cutoff)
        x = self.embedding(z)
        for filters, inputs, update in zip(self.filters, self.inputs, self.updates, strict=True):
            w = filters(rbf) * envelope.unsqueeze(-1)
            messages = inputs(x)[src] * w
            x = x + update(torch.zeros_like(x).index_add(0, dst, messages))
        energy = torch.zeros(len(y), 1).index_add(0, batch, self.readout(x)).squeeze(-1)
        return energy, (energy - y).abs().mean()


def make_batch(nodes: int, edges: int, graphs: int) -> dict[str, Tensor]:
    """Return random molecules with these total sizes."""
    generator = torch.Generator().manual_seed(0)
    per_graph = nodes // graphs
    batch = torch.arange(nodes) // per_graph
    dst = torch.arange(edges) * nodes // edges
    src = dst // per_graph * per_graph + torch.randint(0, per_graph, (edges,), generator=generator)
    return {
        "z": torch.randint(1, 10, (nodes,), generator=generator),
        "pos": 2 * torch.randn(nodes, 3, generator=generator),
        "edge_index": torch.stack([src, dst]),
        "batch": batch,
        "y": torch.randn(int(batch.max()) + 1, generator=generator),
    }


def compare_steps(name: str, model: nn.Module, batch: dict[str, Tensor], rounds: int, goal: str = "") -> float:
    """Print and return flushed eager seconds over compiled seconds of one training step with Adam."""
    eager = copy.deepcopy(model)
    optimizer = torch.optim.Adam(eager.parameters(), lr=1e-3)
    compiled = ipu.training_model(model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))

    def eager_step() -> Tensor:
        optimizer.zero_grad()
        _, loss = eager(**batch)
        loss.backward()
        optimizer.step()
        return loss

    def compiled_step() -> Tensor:
        return compiled(**batch)[1]

    for _ in range(3):
        torch.testing.assert_close(compiled_step(), eager_step().detach(), rtol=1e-3, atol=1e-4)
    seconds = measure(both_ways({"eager": eager_step}) | {"compiled": compiled_step}, rounds)
    plain, ratio = (seconds[peer] / seconds["compiled"] for peer in ("eager", "eager, flushed"))
    print(
        f"{name}: eager {1e3 * seconds['eager']:.2f} ms, flushed {1e3 * seconds['eager, flushed']:.2f} ms, compiled "
        f"{1e3 * seconds['compiled']:.2f} ms per step, {plain:.2f} and {ratio:.2f}x faster, compiled in "
        f"{compiled.report.compile_seconds:.2f} s{goal}"
    )
    return ratio


def compare_starts(name: str, model: nn.Module, batch: dict[str, Tensor], rounds: int) -> float:
    """Print and return the time of a start that compiles over the time of a start from a kept step."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = (
            ipu.training_model(copy.deepcopy(model), ipu.Options(cache_dir=kept, show_progress=False))
            for kept in (None, folder)
        )

        def start(training: ipu.CompiledStep) -> None:
            training.reset()
            training(**batch)  # the first call compiles, joins operations and gives them memory

        seconds = measure({"first": lambda: start(first), "second": lambda: start(second)}, rounds)
    ratio = seconds["first"] / seconds["second"]
    print(
        f"{name}: first start {1e3 * seconds['first']:.0f} ms, second {1e3 * seconds['second']:.0f} ms, "
        f"{ratio:.1f}x faster (goal: 5)"
    )
    return ratio


class Chain(nn.Module):
    """Many operations on tiny tensors: nearly all of the time is overhead."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.length // 2):
            x = torch.tanh(x * 0.5)
        return x


def compare_overhead(length: int, rounds: int) -> float:
    """Print and return the engine's extra microseconds per operation compared with a Python loop."""
    x, chain = torch.randn(8), Chain(length)
    compiled = ipu.inference_model(chain)

    def eager() -> Tensor:
        with torch.inference_mode():
            return chain(x)

    seconds = measure({"eager": eager, "compiled": lambda: compiled(x)}, rounds)
    overhead = 1e6 * (seconds["compiled"] - seconds["eager"]) / length
    print(
        f"{length} tiny operations: eager {1e6 * seconds['eager'] / length:.2f} µs, compiled "
        f"{1e6 * seconds['compiled'] / length:.2f} µs each; overhead {overhead:+.2f} µs per operation"
    )
    return overhead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="runs of each variant (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="use small sizes; takes seconds")
    options = parser.parse_args()
    one_thread()
    torch.manual_seed(0)
    rounds = 2 if options.quick else options.rounds
    small = make_batch(nodes=120, edges=1200, graphs=8)
    compare_steps("SchNet, 120 nodes, 1,200 edges, 32 channels, 2 blocks", SchNet(32, 2), small, rounds)
    if not options.quick:
        large = make_batch(nodes=576, edges=16128, graphs=32)
        compare_steps(
            "SchNet, 576 nodes, 16,128 edges, 100 channels, 4 blocks", SchNet(100, 4), large, rounds, " (goal: 2.5)"
        )
    size = {"channels": 32, "blocks": 2} if options.quick else {"channels": 100, "blocks": 6}
    compare_starts(f"SchNet, {size['blocks']} blocks, kept in a folder", SchNet(**size), small, rounds)
    compare_overhead(length=200 if options.quick else 1000, rounds=rounds)


if __name__ == "__main__":
    run(main)
