"""A training step of SchNet on packed QM9 molecules: popgeo's against PyG's, eager and compiled, and where time goes.

    python benchmarks/models.py

One thread. Every model has the same parameters and sees the same interactions; ratios are PyG's time over ours, so
above 1 ours is faster. Real molecules come from the folder that POPGEO_SHARED_DATA names, random
ones stand in where it is not set.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import real_data
import torch
import torch_geometric.nn as pyg
from timing import measure, one_thread
from torch import Tensor, nn
from torch.profiler import profile
from torch_geometric.data import Batch, Data

from popgeo.command_line import run
from popgeo.nn import KNNInteractionGraph, PairInteractionGraph, PrecomputeInteractionGraph, SchNet, mse_loss

CUTOFF, K, MAX_NUM_NODES = 10.0, 28, 29


class KnownEdges(nn.Module):
    """An interaction graph for PyG's model that costs nothing: the edges were found before."""

    def __init__(self, edge_index: Tensor, edge_weight: Tensor) -> None:
        super().__init__()
        self.edges = edge_index, edge_weight

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.edges


def packed_batch(num_nodes: int) -> Batch:
    """Molecules in order of the data until the next would not fit with one padding atom; the rest is padding."""
    transform = PrecomputeInteractionGraph(CUTOFF, half_list=True)
    molecules, free = [], num_nodes - 1
    for z, pos in iter_molecules():
        if len(z) > free:
            break
        molecules.append(transform(Data(z=z, pos=pos)))
        free -= len(z)
    padding = Data(z=torch.zeros(free + 1, dtype=torch.long), pos=torch.zeros(free + 1, 3))
    padding.edge_index = torch.empty(2, 0, dtype=torch.long)
    return Batch.from_data_list([*molecules, padding])


def iter_molecules() -> Iterator[tuple[Tensor, Tensor]]:
    """Atomic numbers and positions, real ones if the data is there."""
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


def training_step(model: Any, *args: Tensor, num_graphs: int, **kwargs: object) -> Callable[[], Tensor]:
    """Forward, loss and backward; the optimizer costs everyone the same."""
    target = torch.zeros(num_graphs, 1)
    if not isinstance(model, pyg.SchNet) and not hasattr(model, "_orig_mod"):
        kwargs["num_graphs"] = num_graphs

    def step() -> Tensor:
        model.zero_grad()
        loss = mse_loss(model(*args, **kwargs), target)
        loss.backward()
        return loss.detach()

    return step


def print_profile(step: Callable[[], Tensor], seconds: float, flops: float) -> None:
    """Where a step spends its time, and how long its arithmetic would take at the speed of a large matmul."""
    a = torch.randn(1024, 1024)
    peak = 2 * 1024**3 / measure({"matmul": lambda: a @ a}, rounds=3)["matmul"]
    with profile() as profiler:
        for _ in range(3):
            step()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    for event in events[:10]:
        print(f"  {event.key[:52]:52} {100 * event.self_cpu_time_total / total:5.1f} %")
    print(
        f"  arithmetic limit: {flops / 1e9:.2f} GFLOP of filters at {peak / 1e9:.0f} GFLOP/s (a matmul of 1024) is "
        f"{1e3 * flops / peak:.1f} ms of the {1e3 * seconds:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=576)
    parser.add_argument("--channels", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-inductor", action="store_true", help="leave out the compiled peer (it compiles a minute)")
    parser.add_argument("--quick", action="store_true", help="a small batch, two rounds, no inductor")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.nodes, arguments.channels, arguments.blocks, arguments.rounds = 96, 16, 2, 2
    one_thread()
    torch.manual_seed(0)
    if real_data.shared("qm9.npz") is None:
        real_data.say_random("qm9.npz", "made-up molecules of 9 to 29 atoms")
    batch = packed_batch(arguments.nodes)
    num_graphs, inputs = batch.num_graphs, (batch.z, batch.pos, batch.batch)
    shape = (arguments.channels, arguments.channels, arguments.blocks, 50, CUTOFF)
    knn = KNNInteractionGraph(K, CUTOFF, max_num_nodes=MAX_NUM_NODES)
    edges = knn(batch.pos, batch.batch, num_graphs=num_graphs, nodes_mask=batch.z > 0)
    peer = pyg.SchNet(*shape, interaction_graph=KnownEdges(*edges))

    def ours(interaction_graph: nn.Module) -> SchNet:
        model = SchNet(*shape, interaction_graph=interaction_graph)
        model.load_state_dict(peer.state_dict())
        return model

    variants = {
        "PyG, KNN edges given": training_step(peer, *inputs, num_graphs=num_graphs),
        "KNN": training_step(ours(knn), *inputs, num_graphs=num_graphs),
        "pairs": training_step(ours(PairInteractionGraph(CUTOFF, MAX_NUM_NODES)), *inputs, num_graphs=num_graphs),
        "precomputed pairs": training_step(ours(knn), *inputs, batch.edge_index, num_graphs=num_graphs, half_list=True),
    }
    if not (arguments.quick or arguments.no_inductor):
        start = time.monotonic()
        compiled = training_step(torch.compile(peer, dynamic=False), *inputs, num_graphs=num_graphs)
        compiled()
        print(f"PyG compiled with inductor in {time.monotonic() - start:.0f} s")
        variants["PyG, inductor"] = compiled
    losses = {name: float(step()) for name, step in variants.items()}
    assert max(losses.values()) - min(losses.values()) < 1e-3 * max(losses.values()), losses
    seconds = measure(variants, rounds=arguments.rounds)
    num_slots = {"KNN": K * arguments.nodes, "pairs": MAX_NUM_NODES // 2 * arguments.nodes}
    num_slots |= {"precomputed pairs": batch.num_edges}
    print(
        f"{num_graphs - 1} molecules in {arguments.nodes} nodes, F = {arguments.channels}, {arguments.blocks} blocks, "
        f"{int((edges[1] < CUTOFF).sum())} real edges in {edges[1].numel()} KNN slots"
    )
    reference = seconds["PyG, KNN edges given"]
    for name, value in seconds.items():
        slots = f"{num_slots[name]:6} filters" if name in num_slots else ""
        rate = (num_graphs - 1) / value
        print(f"{name:22} {1e3 * value:8.1f} ms  {rate:7.0f} graphs/s  {reference / value:5.2f}x PyG  {slots}")
    if "PyG, inductor" in seconds:
        fastest = seconds["pairs"]
        print(f"pairs against inductor: {seconds['PyG, inductor'] / fastest:.2f}x")
    # Forward once, backward twice as much, except that the first layer's input needs no gradient.
    filters = arguments.channels * (2 * 50 + 3 * arguments.channels)
    print("Where a step on precomputed pairs spends its time:")
    flops = 2.0 * arguments.blocks * batch.num_edges * filters
    print_profile(variants["precomputed pairs"], seconds["precomputed pairs"], flops)


if __name__ == "__main__":
    run(main)
