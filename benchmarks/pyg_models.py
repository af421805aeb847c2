"""Training steps of PyG's own layers: compiled by popgeo, eager, and compiled by torch's inductor, on the same batch.

    python benchmarks/pyg_models.py                         all three graphs, without inductor: about four minutes
    python benchmarks/pyg_models.py --graphs molecules      packed molecules
    python benchmarks/pyg_models.py --graphs cora           Cora as published
    python benchmarks/pyg_models.py --graphs large          170,000 nodes, 1.2 M edges, power law, 128 features
    python benchmarks/pyg_models.py --only GIN PNA --inductor

One thread; processor time, variants in turn, medians; a step is forward, backward and Adam. Denormal numbers are
flushed for all variants, as popgeo does by default. Ratios are a peer's time over popgeo's, so popgeo is faster if a
ratio is above 1. The share of products is the time of the step's matrix products at the speed of a large product,
divided by popgeo's time. On the large graph, an eager step takes many seconds; without `--only`, the script measures
four models of two layers.
"""

import argparse
import copy
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import real_data
import torch
from timing import flushed, geometric_mean, measure, one_thread
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.utils import degree

from popgeo import ipu
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader

EDGE_FEATURES = 4
LARGE_MODELS = ("GCN", "GIN", "SAGE", "GAT")
GOALS = {"molecules": {"inductor": 1.4, "eager": 1.8}, "cora": {"eager": 4.0}, "large": {"eager": 4.0}}


def mlp(channels: int) -> nn.Sequential:
    """Return two layers, as in the paper of GIN."""
    return nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))


def pna(width: int, edge_index: Tensor, num_nodes: int) -> nn.Module:
    """Return PNA with the aggregators and scalers of its paper."""
    histogram = torch.bincount(degree(edge_index[1], num_nodes, dtype=torch.long))
    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    return pyg.PNAConv(width, width, aggregators, scalers, deg=histogram)


def layers(width: int, edge_index: Tensor, num_nodes: int) -> dict[str, Callable[[], nn.Module]]:
    """Return a function that makes each of PyG's convolutions, with its defaults except for self-loops."""
    return {
        "GCN": lambda: pyg.GCNConv(width, width, add_self_loops=False),
        "GIN": lambda: pyg.GINConv(mlp(width)),
        "GINE": lambda: pyg.GINEConv(mlp(width), edge_dim=EDGE_FEATURES),
        "SAGE": lambda: pyg.SAGEConv(width, width),
        "GAT": lambda: pyg.GATConv(width, width // 4, heads=4, add_self_loops=False),
        "GATv2": lambda: pyg.GATv2Conv(width, width // 4, heads=4, add_self_loops=False),
        "Transformer": lambda: pyg.TransformerConv(width, width // 4, heads=4),
        "PNA": lambda: pna(width, edge_index, num_nodes),
        "NNConv": lambda: pyg.NNConv(width, width, nn.Linear(EDGE_FEATURES, width * width)),
        "ResGated": lambda: pyg.ResGatedGraphConv(width, width),
        "Gated": lambda: pyg.GatedGraphConv(width, 1),
        "GEN": lambda: pyg.GENConv(width, width, num_layers=1),
    }


class Training(nn.Module):
    """A model of one kind of convolution and its loss.

    Args:
        make: Function that makes a convolution.
        num_features: Features of a node.
        width: Channels of all layers.
        num_classes: Outputs per node, or per graph if `num_graphs` is given.
        num_layers: Number of convolutions, each followed by ReLU.
        num_graphs: Graphs of a batch; None for one graph with classes of nodes.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        num_features: int,
        width: int,
        num_classes: int,
        num_layers: int,
        num_graphs: int | None,
    ) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(num_features, width), nn.Linear(width, num_classes)
        self.layers = nn.ModuleList(make() for _ in range(num_layers))
        self.num_graphs = num_graphs
        self.takes_features = isinstance(self.layers[0], pyg.GINEConv | pyg.NNConv)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, batch: Tensor, y: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = F.relu(layer(x, edge_index, edge_attr) if self.takes_features else layer(x, edge_index))
        if self.num_graphs is None:
            return F.cross_entropy(self.head(x), y)
        return F.mse_loss(self.head(pyg.global_mean_pool(x, batch, self.num_graphs)), y)


def molecules(num_graphs: int) -> tuple[Data, int, int | None]:
    """Return a batch of fixed size, its number of outputs and its number of graphs."""
    dataset = list(Molecules()[:600])
    sizes = FixedSizeOptions.tune(dataset, target_graphs=num_graphs, verbose=False)
    batch = next(iter(FixedSizeDataLoader(dataset, fixed_size_options=sizes, fixed_size_strategy="StreamPack")))
    y = batch.y[:, :1].float()
    data = Data(x=batch.x, edge_index=batch.edge_index, edge_attr=batch.edge_attr, batch=batch.batch, y=y)
    return data, 1, batch.num_graphs


def cora(num_graphs: int) -> tuple[Data, int, int | None]:
    """Return Cora, a graph of citations with bags of words as features."""
    folder = real_data.shared("planetoid")
    if folder is None:
        raise SystemExit("Cora is read from the folder named by POPGEO_SHARED_DATA; set it, or pass --graphs large.")
    dataset = Planetoid(str(Path(folder)), "Cora")
    return _whole(dataset[0], EDGE_FEATURES), dataset.num_classes, None


def large(num_graphs: int, num_nodes: int = 170_000, num_edges: int = 1_200_000) -> tuple[Data, int, int | None]:
    """Return a random graph with degrees of a power law and unsorted edges."""
    weights = torch.arange(1, num_nodes + 1, dtype=torch.float64).pow(-0.5)[torch.randperm(num_nodes)]
    ends = torch.searchsorted(weights.cumsum(0) / weights.sum(), torch.rand(2, num_edges, dtype=torch.float64))
    edge_index = ends.clamp_(max=num_nodes - 1)
    data = Data(x=torch.randn(num_nodes, 128), edge_index=edge_index, y=torch.randint(40, (num_nodes,)))
    return _whole(data, EDGE_FEATURES), 40, None


def _whole(graph: Data, edge_features: int) -> Data:
    batch = torch.zeros(graph.num_nodes, dtype=torch.long)
    edge_attr = torch.randn(graph.num_edges, edge_features)
    return Data(x=graph.x, edge_index=graph.edge_index, edge_attr=edge_attr, batch=batch, y=graph.y)


def eager_step(model: nn.Module, call: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """Return an eager step: forward, backward, Adam's update. `call` is the model or its compiled form."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = call(*tensors)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return flushed(step)


def popgeo_step(model: nn.Module, tensors: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """Return the same step, compiled by popgeo."""
    options = ipu.Options(strict=False, show_progress=False, num_threads=1)
    return partial(ipu.training_model(model, options, torch.optim.Adam(model.parameters(), lr=1e-4)), *tensors)


def steps_of(
    model: Training, tensors: tuple[Tensor, ...], with_inductor: bool
) -> tuple[dict[str, Callable[[], Tensor]], float]:
    """Return a step of each kind, run once from the same weights, and the operations of a step's products."""
    models = [copy.deepcopy(model) for _ in range(3)]
    steps = {"popgeo": popgeo_step(models[0], tensors), "eager": eager_step(models[1], models[1], tensors)}
    if with_inductor:
        torch._dynamo.reset()
        steps["inductor"] = eager_step(models[2], torch.compile(models[2], dynamic=False), tensors)
    losses = {name: float(step()) for name, step in steps.items() if name != "eager"}
    with FlopCounterMode(display=False) as counter:
        losses["eager"] = float(steps["eager"]())
    for name, loss in losses.items():
        assert abs(loss - losses["eager"]) <= 2e-4 * abs(losses["eager"]) + 1e-5, (name, loss, losses["eager"])
    return steps, counter.get_total_flops()


def speed_of_products(size: int = 1024) -> float:
    """Return the floating-point operations per second of a large matrix product."""
    a, b = torch.randn(2, size, size)
    return 2 * size**3 / measure({"product": lambda: torch.mm(a, b)})["product"]


def processor() -> str:
    """Return the processor's name from /proc/cpuinfo."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return f"{found.get('model name', 'unknown processor')}, family {found.get('cpu family', '?')}"


def print_means(ratios: Mapping[str, Mapping[str, float]], goals: Mapping[str, float]) -> None:
    """Print the means with and without NNConv: its peers make a matrix per edge, popgeo does not."""
    for peer, each in ratios.items():
        if others := [ratio for name, ratio in each.items() if name != "NNConv"]:
            goal = f", goal {goals[peer]}" if peer in goals else ""
            print(
                f"geometric mean against {peer}: {geometric_mean([*each.values()]):.2f}, without NNConv "
                f"{geometric_mean(others):.2f}{goal}; least {min(each.values()):.2f}"
            )


def compare(kind: str, arguments: argparse.Namespace, flops_per_second: float) -> None:
    """Print the table of one graph."""
    data, num_classes, num_graphs = {"molecules": molecules, "cora": cora, "large": large}[kind](arguments.molecules)
    tensors = data.x, data.edge_index, data.edge_attr, data.batch, data.y
    makers = layers(arguments.channels, data.edge_index, data.num_nodes)
    names, num_layers, rounds = arguments.only or list(makers), arguments.layers, arguments.rounds
    if kind == "large":
        del makers["NNConv"]  # its matrices, one per edge, take 79 GB
        names, num_layers, rounds = [n for n in arguments.only or LARGE_MODELS if n in makers], 2, 1
    print(f"\n{kind}: {data.num_nodes:,} nodes, {data.num_edges:,} edges, {num_layers} layers")
    print("| model | popgeo ms | eager ms | inductor ms | eager / popgeo | inductor / popgeo | share of products |")
    print("|---|---|---|---|---|---|---|")
    ratios: dict[str, dict[str, float]] = {"eager": {}, "inductor": {}}
    for name in names:
        model = Training(makers[name], data.num_features, arguments.channels, num_classes, num_layers, num_graphs)
        steps, num_flops = steps_of(model, tensors, arguments.inductor)
        seconds = {n: once(step) for n, step in steps.items()} if kind == "large" else measure(steps, rounds=rounds)
        for peer in ratios.keys() & seconds.keys():
            ratios[peer][name] = seconds[peer] / seconds["popgeo"]
        times = [f"{1e3 * seconds[each]:.2f}" if each in seconds else "" for each in ("popgeo", "eager", "inductor")]
        shares = [f"{each[name]:.2f}" if each else "" for each in ratios.values()]
        products = f"{num_flops / flops_per_second / seconds['popgeo']:.2f}"
        print("|", " | ".join([name, *times, *shares, products]), "|", flush=True)
    print_means(ratios, GOALS[kind])


def once(step: Callable[[], Tensor]) -> float:
    """Return the processor time (s) of a further call of a step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", choices=list(GOALS), default=list(GOALS))
    parser.add_argument("--molecules", type=int, default=64, help="mean number of molecules per batch")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4, help="layers for molecules and Cora; the large graph has two")
    parser.add_argument("--only", nargs="+", help="names of the models to measure")
    parser.add_argument("--inductor", action="store_true", help="also measure inductor; a minute of compiling each")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    known = list(layers(arguments.channels, torch.zeros(2, 1, dtype=torch.long), 1))
    if unknown := sorted({*(arguments.only or ())} - {*known}):
        parser.error(f"no model is named {', '.join(unknown)} here; choose from {', '.join(known)}")
    torch.manual_seed(0)
    one_thread()
    flops_per_second = speed_of_products()
    print(f"{processor()}; torch {torch.__version__}, one thread; products at {flops_per_second / 1e9:.0f} GFLOP/s")
    for kind in arguments.graphs:
        compare(kind, arguments, flops_per_second)


if __name__ == "__main__":
    run(main)
