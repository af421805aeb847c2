"""How fast neighbours are sampled from a large graph, beside PyTorch Geometric on torch_sparse and a plain gather.

    python benchmarks/sampling.py [--quick]

The graph is R-MAT (Chakrabarti, Zhan, Faloutsos 2004, doi 10.1137/1.9781611972740.43): 2^20 nodes, 16 million edges,
100 float32 features. Every batch has 1,024 other seeds, random nodes that have neighbours. One thread. Without
torch_sparse (extra `peers`) there is no peer to compare with, and the rest is still printed.
"""

import argparse
import platform
import warnings
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch_geometric
from timing import measure, one_thread
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

from popgeo import FixedSizeNeighborLoader
from popgeo.command_line import run
from popgeo.data.cut import BatchMemory
from popgeo.native import library
from popgeo.sampling import CompressedGraph, sample_neighbors

QUADRANTS = (0.57, 0.19, 0.19)  # of Graph500; the last one has the rest
FAN_OUTS = ([10, 10], [15, 10, 5])
GOALS = """goals: sampling >= 2 x PyG's sampler; batches >= 4 x PyG's loader, each within 3 gathers of its features;
       16 million edges compressed in <= 1.5 s"""


def rmat(scale: int, num_edges: int, seed: int = 0) -> Tensor:
    """A graph with hubs: each edge falls into one quadrant of the matrix, of that quadrant, and so on.

    Returns:
        Source and destination of each edge, in no order. int64 [2, num_edges]
    """
    random = np.random.default_rng(seed)
    source, destination = np.zeros(num_edges, np.int64), np.zeros(num_edges, np.int64)
    first, second, third = np.cumsum(QUADRANTS)
    for _ in range(scale):
        drawn = random.random(num_edges, dtype=np.float32)
        source = 2 * source + (drawn >= second)
        destination = 2 * destination + (((drawn >= first) & (drawn < second)) | (drawn >= third))
    names = random.permutation(2**scale)  # else the hubs are the first nodes
    return torch.from_numpy(np.stack([names[source], names[destination]]))


def seeds_of_batches(edge_index: Tensor, num_batches: int, batch_size: int) -> list[Tensor]:
    """Different random nodes with neighbours for each batch."""
    nodes = edge_index[1].unique()
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))
    return [nodes[order[i * batch_size : (i + 1) * batch_size]] for i in range(num_batches)]


def each_of(items: Sequence[Any], call: Callable[[Any], object]) -> Callable[[], object]:
    """A call that takes the next item each time."""
    endless = cycle(items)
    return lambda: call(next(endless))


def peers(data: Data, fan_out: list[int], seeds: list[Tensor]) -> dict[str, Callable[[], object]]:
    """PyG's sampler, and its loader, on the same batches; none without torch_sparse."""
    if not torch_geometric.typing.WITH_TORCH_SPARSE:
        return {}
    sampler = NeighborSampler(data, fan_out)
    loader = NeighborLoader(
        data, fan_out, input_nodes=torch.cat(seeds), neighbor_sampler=sampler, batch_size=len(seeds[0])
    )
    batches = [torch.arange(i * len(seeds[0]), (i + 1) * len(seeds[0])) for i in range(len(seeds))]
    return {
        "PyG, sampling": each_of(
            seeds, lambda nodes: sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=nodes))
        ),
        "PyG, batch with features": each_of(batches, loader),
    }


def compare(data: Data, graph: CompressedGraph, fan_out: list[int], seeds: list[Tensor], rounds: int) -> pd.DataFrame:
    """Milliseconds of each way to a batch."""
    loader = FixedSizeNeighborLoader(data, fan_out, torch.cat(seeds), batch_size=len(seeds[0]))
    source, packs = loader.source, [loader.plan()[i : i + 1] for i in range(len(seeds))]
    assert source.layout is not None  # of a graph, whose batches are laid out beforehand
    memory = BatchMemory(source.layout, 1)
    features, samples = data.x, [sample_neighbors(graph, nodes, fan_out, seed=0) for nodes in seeds]

    def without_library(nodes: Tensor) -> object:
        with library.without_native():
            return sample_neighbors(graph, nodes, fan_out, seed=0)

    variants = {
        **peers(data, fan_out, seeds),
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
    """Seconds to put the edges into rows."""
    variants: dict[str, Callable[[], object]] = {
        "popgeo": lambda: CompressedGraph.from_edge_index(data.edge_index, num_nodes),
        "PyG": lambda: NeighborSampler(data, [1], subgraph_type="induced"),
    }
    return measure(variants, rounds=rounds, min_seconds=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way; the median counts (default: 5)")
    parser.add_argument("--quick", action="store_true", help="a small graph and one turn, to see that it runs")
    options = parser.parse_args()
    one_thread()
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message=".*pyg-lib.*")  # that torch_sparse is the peer is meant
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
