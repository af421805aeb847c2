"""A training step of SchNet on packed QM9 molecules: popgeo's against PyG's, eager and compiled, with a profile.

    python benchmarks/models.py

One thread. All models have the same parameters and the same interactions; every step includes Adam's update. Ratios are
PyG's time over popgeo's, so popgeo is faster if a ratio is above 1. PyG runs twice: with torch's defaults, and with
denormal numbers flushed (`torch.set_flush_denormal`), which on many processors makes it several times faster. Goals are
relative to the flushed run. Molecules come from the folder named by POPGEO_SHARED_DATA; if it is not set, from chance.
"""

import argparse
import copy
from collections.abc import Callable, Iterator

import numpy as np
import real_data
import torch
import torch_geometric.nn as pyg
from shares import print_roofline, print_shares
from timing import both_ways, measure, one_thread
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from popgeo import ipu
from popgeo.command_line import run
from popgeo.nn import KNNInteractionGraph, PairInteractionGraph, PrecomputeInteractionGraph, SchNet, mse_loss

CUTOFF, K, MAX_NUM_NODES, GAUSSIANS = 10.0, 28, 29, 50
GOALS = (
    ("precomputed pairs", "PyG, real edges", 6.0),
    ("precomputed pairs", "PyG, real edges, inductor", 2.8),
    ("KNN", "PyG, KNN slots", 5.0),
)


class KnownEdges(nn.Module):
    """An interaction graph for PyG's model that returns edges found beforehand, at no cost."""

    def __init__(self, edge_index: Tensor, edge_weight: Tensor) -> None:
        super().__init__()
        self.edges = edge_index, edge_weight

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.edges


def packed_batch(num_nodes: int) -> Batch:
    """Return molecules in data order until the next would not fit with a padding atom, then padding."""
    transform = PrecomputeInteractionGraph(CUTOFF, half_list=True)
    molecules, free = [], num_nodes - 1
    for z, pos in iter_molecules():
        if len(z) > free:
            break
        molecules.append(transform(Data(z=z, pos=pos)))
        free -= len(z)
    padding = Data(z=torch.zeros(free + 1, dtype=torch.long), pos=torch.zeros(free + 1, 3))
    padding.edge_index, padding.cutoff = torch.empty(2, 0, dtype=torch.long), torch.tensor([CUTOFF])
    return Batch.from_data_list([*molecules, padding])


def iter_molecules() -> Iterator[tuple[Tensor, Tensor]]:
    """Yield atomic numbers and positions: of QM9 if the file exists, otherwise random."""
    generator = np.random.default_rng(0)
    path = real_data.shared("qm9.npz")
    if path is None:
        while True:
            size = int(generator.integers(9, 30))
            yield torch.from_numpy(generator.integers(1, 9, size)), 2 * torch.randn(size, 3)
    with np.load(path) as data:
        ptr = np.concatenate([[0], data["num_atoms"].astype(np.int64).cumsum()])
        z, pos = data["z"].astype(np.int64), data["pos"]
    for i in generator.permutation(len(ptr) - 1):
        yield torch.from_numpy(z[ptr[i] : ptr[i + 1]]), torch.from_numpy(pos[ptr[i] : ptr[i + 1]])


def eager_step(model: nn.Module, *args: Tensor, num_graphs: int, **kwargs: object) -> Callable[[], Tensor]:
    """Return an eager step: forward, loss, backward and Adam's update."""
    target = torch.zeros(num_graphs, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    if isinstance(model, SchNet):
        kwargs["num_graphs"] = num_graphs

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(*args, **kwargs), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Training(nn.Module):
    """A model and its loss, for a compiled step."""

    def __init__(self, model: SchNet, num_graphs: int, half_list: bool) -> None:
        super().__init__()
        self.model, self.num_graphs, self.half_list = model, num_graphs, half_list

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor | None = None) -> Tensor:
        out = self.model(z, pos, batch, edge_index, num_graphs=self.num_graphs, half_list=self.half_list)
        return mse_loss(out, torch.zeros_like(out))


def compiled_step(model: SchNet, *args: Tensor, num_graphs: int, half_list: bool = False) -> Callable[[], Tensor]:
    """Return the same step, compiled, on a copy of the model."""
    model = copy.deepcopy(model)
    options = ipu.Options(show_progress=False, strict=False)
    training = ipu.training_model(
        Training(model, num_graphs, half_list), options, torch.optim.Adam(model.parameters(), lr=1e-4)
    )
    return lambda: training(*args)


class Comparison:
    """The compared training steps, on one batch and from the same weights."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.batch = batch = packed_batch(arguments.nodes)
        self.shape = (arguments.channels, arguments.channels, arguments.blocks, GAUSSIANS, CUTOFF)
        self.num_graphs = batch.num_graphs
        self.inputs = batch.z, batch.pos, batch.batch
        self.knn = KNNInteractionGraph(K, CUTOFF, max_num_nodes=MAX_NUM_NODES)
        self.slots = self.knn(batch.pos, batch.batch, num_graphs=batch.num_graphs, nodes_mask=batch.z > 0)
        self.weights = self.peer(*self.slots).state_dict()

    def peer(self, edge_index: Tensor, edge_weight: Tensor) -> pyg.SchNet:
        """Return PyG's model on given edges."""
        torch.manual_seed(0)
        return pyg.SchNet(*self.shape, interaction_graph=KnownEdges(edge_index, edge_weight))

    def peers(self, with_inductor: bool) -> dict[str, Callable[[], Tensor]]:
        """Return PyG's steps: on all neighbor slots, and on the real edges only."""
        edge_index, edge_weight = self.slots
        real = edge_weight < CUTOFF
        alone = edge_index[:, real], edge_weight[real]
        models = {"PyG, KNN slots": self.peer(*self.slots), "PyG, real edges": self.peer(*alone)}
        if with_inductor:
            models["PyG, real edges, inductor"] = torch.compile(self.peer(*alone), dynamic=False)
        steps = {name: eager_step(model, *self.inputs, num_graphs=self.num_graphs) for name, model in models.items()}
        return both_ways(steps)

    def ours(self) -> dict[str, Callable[[], Tensor]]:
        """Return popgeo's steps, eager and compiled."""
        steps: dict[str, Callable[[], Tensor]] = {}
        given = {"half_list": True, "num_graphs": self.num_graphs}
        for name, graph, edges, choices in (
            ("KNN", self.knn, (), {}),
            ("pairs", PairInteractionGraph(CUTOFF, MAX_NUM_NODES), (), {}),
            ("precomputed pairs", self.knn, (self.batch.edge_index,), given),
        ):
            model = SchNet(*self.shape, interaction_graph=graph)
            model.load_state_dict(self.weights)
            choices = choices or {"num_graphs": self.num_graphs}
            steps[f"{name}, compiled"] = compiled_step(model, *self.inputs, *edges, **choices)
            steps[name] = eager_step(model, *self.inputs, *edges, **choices)
        return steps

    def num_filters(self) -> dict[str, int]:
        """Return the number of edges with a computed filter, by model."""
        nodes, real = self.batch.num_nodes, int((self.slots[1] < CUTOFF).sum())
        pairs, known = MAX_NUM_NODES // 2 * nodes, self.batch.num_edges
        return {"PyG, KNN": K * nodes, "PyG, real": real, "KNN": K * nodes, "pairs": pairs, "precomputed": known}

    def flops(self, num_edges: int) -> float:
        """Return the floating-point operations of all products of a step, if backward recomputes nothing.

        Backward needs twice as many as forward, but the filters' input, the Gaussians, needs no gradient.
        """
        hidden, filters, blocks, gaussians, _ = self.shape
        num_nodes = len(self.batch.z)
        of_edges = 2 * gaussians * filters + 3 * filters * filters
        of_nodes = 3 * (2 * hidden * filters + hidden * hidden)
        of_readout = 3 * (hidden + 1) * (hidden // 2)
        return 2.0 * (blocks * (num_edges * of_edges + num_nodes * of_nodes) + num_nodes * of_readout)


def print_goals(seconds: dict[str, float]) -> None:
    """Print each goal and the ratios to PyG, with denormal numbers flushed and with torch's defaults."""
    for ours, peer, goal in GOALS:
        if peer in seconds:
            plain, fair = (seconds[name] / seconds[f"{ours}, compiled"] for name in (peer, f"{peer}, flushed"))
            verdict = "met" if fair >= goal else "missed"
            print(
                f"{ours}, compiled, against {peer}: {fair:.2f}x flushed (goal {goal}: {verdict}), {plain:.2f}x as run"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=576)
    parser.add_argument("--channels", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-inductor", action="store_true", help="leave out inductor, which compiles for a minute")
    parser.add_argument("--quick", action="store_true", help="use a small batch, two rounds, no inductor")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.nodes, arguments.channels, arguments.blocks, arguments.rounds = 96, 16, 2, 2
    one_thread()
    if real_data.shared("qm9.npz") is None:
        real_data.say_random("qm9.npz", "made-up molecules of 9 to 29 atoms")
    comparison = Comparison(arguments)
    variants = comparison.peers(not (arguments.quick or arguments.no_inductor)) | comparison.ours()
    # Each variant's first step starts from the same weights. A flushed variant shares its peer's model.
    losses = {name: float(step()) for name, step in variants.items() if not name.endswith(", flushed")}
    assert max(losses.values()) - min(losses.values()) < 1e-3 * max(losses.values()), losses
    seconds = measure(variants, rounds=arguments.rounds)
    molecules, num_filters = comparison.num_graphs - 1, comparison.num_filters()
    print(
        f"{molecules} molecules in {arguments.nodes} nodes, F = {arguments.channels}, {arguments.blocks} blocks, "
        f"{num_filters['PyG, real']} real edges in {num_filters['KNN']} KNN slots; each step includes Adam's update"
    )
    for name, value in seconds.items():
        slots = next(count for of, count in num_filters.items() if name.startswith(of))
        against = " ".join(f"{seconds[peer] / value:6.2f}" for peer in seconds if peer.endswith("flushed"))
        print(f"{name:34} {1e3 * value:8.1f} ms {molecules / value:8.0f} graphs/s {slots:6} filters   {against}")
    print(f"The last columns: times as fast as {'; '.join(name for name in seconds if name.endswith('flushed'))}.")
    print_goals(seconds)
    for name in ("KNN, compiled", "precomputed pairs, compiled"):
        print(f"Where a step of {name} spends its time:")
        print_shares(variants[name])
        print_roofline(comparison.flops(num_filters[name.partition(",")[0].partition(" ")[0]]), seconds[name])


if __name__ == "__main__":
    run(main)
