"""Speed of sampling neighbors from a large graph, next to PyTorch Geometric on torch_sparse and a plain gather.

PyG's own sampler and loader also run on `popgeo.extensions`, which provides pyg_lib.

    python benchmarks/sampling.py [--quick] [--plan papers100M]

The graph is R-MAT (Chakrabarti, Zhan, Faloutsos 2004, doi 10.1137/1.9781611972740.43): 2^20 nodes, 16 million edges,
100 float32 features. Every batch has 1,024 different seeds, random nodes with neighbors. One thread. Without
torch_sparse (extra `peers`), the script prints only popgeo's figures.
"""

import argparse
import platform
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch_geometric.typing
from timing import measure, one_thread
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

import popgeo.extensions
from popgeo import FixedSizeNeighborLoader
from popgeo.command_line import run
from popgeo.data.cut import BatchMemory
from popgeo.native import library
from popgeo.replaced import replaced
from popgeo.sampling import CompressedGraph, sample_neighbors

QUADRANTS = (0.57, 0.19, 0.19)  # probabilities of Graph500; the fourth quadrant has the rest
FAN_OUTS = ([10, 10], [15, 10, 5])
GOALS = """goals: sampling >= 2 x PyG's sampler; batches >= 4 x PyG's loader, each within 3 gathers of its features;
       PyG's loader on popgeo.extensions >= 1 x on torch_sparse; 16 million edges compressed in <= 1.5 s"""


def rmat(scale: int, num_edges: int, seed: int = 0) -> Tensor:
    """Return a random graph with hubs: each edge chooses a quadrant of the matrix, then a quadrant of it, and so on.

    Returns:
        Source and destination of each edge, unsorted. int64 [2, num_edges]
    """
    random = np.random.default_rng(seed)
    source, destination = np.zeros(num_edges, np.int64), np.zeros(num_edges, np.int64)
    first, second, third = np.cumsum(QUADRANTS)
    for _ in range(scale):
        drawn = random.random(num_edges, dtype=np.float32)
        source = 2 * source + (drawn >= second)
        destination = 2 * destination + (((drawn >= first) & (drawn < second)) | (drawn >= third))
    names = random.permutation(2**scale)  # without this, the hubs would be the first nodes
    return torch.from_numpy(np.stack([names[source], names[destination]]))


def seeds_of_batches(edge_index: Tensor, num_batches: int, batch_size: int) -> list[Tensor]:
    """Return different random nodes with neighbors for each batch."""
    nodes = edge_index[1].unique()
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))
    return [nodes[order[i * batch_size : (i + 1) * batch_size]] for i in range(num_batches)]


def each_of(items: Sequence[Any], call: Callable[[Any], object]) -> Callable[[], object]:
    """Return a function that calls `call` with the next item each time."""
    endless = cycle(items)
    return lambda: call(next(endless))


def pyg(data: Data, fan_out: list[int], seeds: list[Tensor]) -> dict[str, Callable[[], object]]:
    """Return PyG's sampler and loader on the same batches, over popgeo.extensions and, if installed, torch_sparse."""
    sampler = NeighborSampler(data, fan_out)
    loader = NeighborLoader(
        data, fan_out, input_nodes=torch.cat(seeds), neighbor_sampler=sampler, batch_size=len(seeds[0])
    )
    batches = [torch.arange(i * len(seeds[0]), (i + 1) * len(seeds[0])) for i in range(len(seeds))]

    def sample(nodes: Tensor) -> object:
        return sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=nodes))

    def without_pyg_lib(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            with replaced(torch_geometric.typing, "WITH_PYG_LIB", False):
                return call()

        return run

    ways = {"sampling": each_of(seeds, sample), "batch with features": each_of(batches, loader)}
    on_popgeo = {f"PyG on popgeo.extensions, {name}": call for name, call in ways.items()}
    if not torch_geometric.typing.WITH_TORCH_SPARSE:
        return on_popgeo
    return {f"PyG, {name}": without_pyg_lib(call) for name, call in ways.items()} | on_popgeo


def compare(data: Data, graph: CompressedGraph, fan_out: list[int], seeds: list[Tensor], rounds: int) -> pd.DataFrame:
    """Return the milliseconds of each way to make a batch."""
    loader = FixedSizeNeighborLoader(data, fan_out, torch.cat(seeds), batch_size=len(seeds[0]))
    source, packs = loader.source, [loader.plan()[i : i + 1] for i in range(len(seeds))]
    assert source.layout is not None  # a graph's batches have a known layout
    memory = BatchMemory(source.layout, 1)
    features, samples = data.x, [sample_neighbors(graph, nodes, fan_out, seed=0) for nodes in seeds]

    def without_library(nodes: Tensor) -> object:
        with library.without_native():
            return sample_neighbors(graph, nodes, fan_out, seed=0)

    variants = {
        **pyg(data, fan_out, seeds),
        "popgeo, sampling": each_of(seeds, lambda nodes: sample_neighbors(graph, nodes, fan_out)),
        "popgeo, sampling and features": each_of(
            seeds, lambda nodes: features.index_select(0, sample_neighbors(graph, nodes, fan_out).node)
        ),
        "popgeo, batch of one shape": each_of(packs, lambda pack: source.cut(pack, (0, 0), 1)),
        "popgeo, batch in reused memory": each_of(packs, lambda pack: source.cut(pack, (0, 0), 1, memory)),
        "popgeo, no compiled library": each_of(seeds[:1], without_library),
        "plain gather of the features": each_of(samples, lambda sample: features.index_select(0, sample.node)),
    }
    seconds = measure(variants, rounds=rounds, min_seconds=0.3 if rounds > 1 else 0.0)
    table = pd.DataFrame({"ms": 1000 * pd.Series(seconds)})
    table.insert(0, "fan-out", str(fan_out))
    table.insert(1, "nodes", int(np.mean([len(sample.node) for sample in samples])))
    table.insert(2, "edges", int(np.mean([len(sample.row) for sample in samples])))
    table["gathers"] = table.ms / table.ms["plain gather of the features"]
    for name in ("PyG, sampling", "PyG, batch with features"):
        if name in table.index:
            table[f"x {name.replace(' with features', '')}"] = table.ms[name] / table.ms
    return table.rename_axis("way").reset_index()


def compressing(data: Data, num_nodes: int, rounds: int) -> dict[str, float]:
    """Return the seconds to compress the edges into rows."""
    variants: dict[str, Callable[[], object]] = {
        "popgeo": lambda: CompressedGraph.from_edge_index(data.edge_index, num_nodes),
        "PyG": lambda: NeighborSampler(data, [1], subgraph_type="induced"),
    }
    return measure(variants, rounds=rounds, min_seconds=0.0)


# Nodes, edges in both directions, features of two bytes each, training seeds; source: ogb.stanford.edu.
GRAPHS = {
    "papers100M": (111_059_956, 3_228_124_952, 128, 1_207_179),
    "MAG240M": (121_751_666, 2_595_497_852, 768, 1_112_392),
}
PLAN = """{name}: {nodes:,} nodes, {edges:,} edges, {width} features of 2 bytes, {seeds:,} seeds; {machines} machines
rates of this machine: {edge_rate:,.0f} edges sampled/s, {row_rate:,.0f} rows gathered/s
memory of a machine = edges * 8 bytes + (nodes + 1) * 8 + edges * 8 * unsorted + nodes * 10 + nodes * row / machines
  = {graph:.1f} GB of graph, {numbers:.1f} GB of edge numbers if edges are not sorted, {features:.1f} GB of features
network of a machine = batches / machines * nodes of a batch * (machines - 1) / machines * (row + 8)
  = {network:.1f} GB per epoch; keeping the most requested rows saves the share that benchmarks/stores.py shows
time of an epoch = max(batches / machines * (edges of a batch / edge rate + nodes of a batch / row rate), network)
  = {seconds:.0f} s on one thread; the network at {gigabits} Gbit/s alone takes {wire:.0f} s
a batch of {batch} seeds, fan-out {fan_out}: at most {most_nodes:,} nodes and edges, so this is an upper bound"""


def plan(name: str, machines: int, gigabits: float, quick: bool) -> str:
    """Estimate the time of an epoch from this machine's rates, and print the formulas."""
    nodes, edges, width, seeds = GRAPHS[name]
    fan_out, batch, row = [15, 10, 5], 1024, 2 * width
    edge_index = rmat(10 if quick else 18, 16 << (10 if quick else 18))
    num_nodes = 1 << (10 if quick else 18)
    graph = CompressedGraph.from_edge_index(edge_index, num_nodes)
    features = torch.zeros(num_nodes, width, dtype=torch.float16)
    starts = [torch.randint(num_nodes, (batch,)) for _ in range(4)]
    samples = [sample_neighbors(graph, of_batch, fan_out, seed=0) for of_batch in starts]
    variants = {
        "sample": each_of(starts, lambda of_batch: sample_neighbors(graph, of_batch, fan_out, seed=0)),
        "gather": each_of(samples, lambda sample: features.index_select(0, sample.node)),
    }
    seconds = measure(variants, rounds=1 if quick else 3, min_seconds=0.0)
    edge_rate = float(np.mean([len(sample.row) for sample in samples])) / seconds["sample"]
    row_rate = float(np.mean([len(sample.node) for sample in samples])) / seconds["gather"]
    most, reached = batch, batch
    for number in fan_out:
        reached *= number
        most += reached
    batches = -(-seeds // batch)
    network = batches / machines * most * (machines - 1) / machines * (row + 8)
    wire = 8 * network / (gigabits * 1e9)
    made = batches / machines * (most / edge_rate + most / row_rate)
    numbers = {"nodes": nodes, "edges": edges, "width": width, "seeds": seeds, "machines": machines, "batch": batch}
    return PLAN.format(
        **numbers, name=name, edge_rate=edge_rate, row_rate=row_rate, fan_out=fan_out, most_nodes=most,
        graph=(8 * edges + 8 * (nodes + 1) + 10 * nodes) / 1e9, numbers=8 * edges / 1e9,
        features=nodes * row / machines / 1e9, network=network / 1e9, wire=wire, seconds=max(made, wire),
        gigabits=gigabits,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs per variant; the median is printed (default: 5)")
    parser.add_argument("--quick", action="store_true", help="use a small graph and one round, to check the script")
    parser.add_argument("--plan", choices=[*GRAPHS], help="estimate an epoch of this graph from measured rates")
    parser.add_argument("--machines", type=int, default=4, help="machines of the plan (default: 4)")
    parser.add_argument("--gigabits", type=float, default=10.0, help="Gbit/s between the machines (default: 10)")
    options = parser.parse_args()
    one_thread()
    if options.plan:
        print(plan(options.plan, options.machines, options.gigabits, options.quick))
        return
    torch.manual_seed(0)
    popgeo.extensions.enable(shadow=True)
    scale, num_edges, batch_size = (10, 16_000, 64) if options.quick else (20, 16_000_000, 1024)
    rounds = 1 if options.quick else options.rounds
    edge_index = rmat(scale, num_edges)
    data = Data(x=torch.rand(2**scale, 100), edge_index=edge_index)
    print(
        f"R-MAT, {2**scale:,} nodes, {num_edges:,} edges, {batch_size:,} seeds; Python {platform.python_version()}, "
        f"torch {torch.__version__}, PyG {torch_geometric.__version__}, "
        f"{'' if torch_geometric.typing.WITH_TORCH_SPARSE else 'no '}torch_sparse; "
        f"{'compiled library' if library.is_available() else library.reason()}"
    )
    for name, seconds in compressing(data, 2**scale, rounds).items():
        print(f"edges into rows, {name}: {seconds:.3f} s")
    graph = CompressedGraph.from_edge_index(edge_index, 2**scale)
    seeds = seeds_of_batches(edge_index, 2 if options.quick else 24, batch_size)
    tables = [compare(data, graph, fan_out, seeds, rounds) for fan_out in FAN_OUTS]
    with pd.option_context("display.width", 160, "display.float_format", lambda value: f"{value:,.2f}"):
        print(pd.concat(tables).to_string(index=False))
    print(GOALS)


if __name__ == "__main__":
    run(main)
