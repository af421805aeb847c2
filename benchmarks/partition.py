"""Edge cut, balance and time of popgeo's partitioner next to METIS's (`pip install pymetis`), at one thread.

python benchmarks/partition.py
"""

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from popgeo.command_line import run
from popgeo.sampling import PartitionMethod, edge_cut, partition


def mesh(num_nodes: int) -> Tensor:
    """Return a square grid."""
    side = int(num_nodes**0.5)
    node = torch.arange(side * side).view(side, side)
    across = torch.stack([node[:, :-1].flatten(), node[:, 1:].flatten()])
    return torch.cat([across, torch.stack([node[:-1].flatten(), node[1:].flatten()])], dim=1)


def communities(num_nodes: int, size: int = 1000, share: float = 0.8) -> Tensor:
    """Return five edges per node; a fraction `share` of them stays in the node's community."""
    generator = torch.Generator().manual_seed(0)
    size = min(size, num_nodes // 4)
    source = torch.randint(num_nodes // size * size, (5 * num_nodes,), generator=generator)
    near = source // size * size + torch.randint(size, source.shape, generator=generator)
    far = torch.randint(num_nodes // size * size, source.shape, generator=generator)
    stays = torch.rand(len(source), generator=generator) < share
    return torch.stack([source, torch.where(stays, near, far)])


def r_mat(num_nodes: int) -> Tensor:
    """Return an R-MAT graph (Chakrabarti, Zhan and Faloutsos 2004) with sixteen edges per node."""
    generator, edges = torch.Generator().manual_seed(0), torch.zeros(2, 16 * num_nodes, dtype=torch.int64)
    for _ in range((num_nodes - 1).bit_length()):
        quarter = torch.rand(edges.shape[1], generator=generator)
        bits = torch.stack([quarter >= 0.76, ((quarter >= 0.57) & (quarter < 0.76)) | (quarter >= 0.95)])
        edges = 2 * edges + bits
    return edges % num_nodes


GRAPHS: dict[str, Callable[[int], Tensor]] = {"mesh": mesh, "communities": communities, "R-MAT": r_mat}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--parts", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    methods = [m for m in PartitionMethod if m is not PartitionMethod.Metis or find_spec("pymetis")]
    print(f"{'graph':12} {'method':11} {'edges cut':>9} {'max / mean':>10} {'seconds':>8}")
    for name, make in GRAPHS.items():
        edges = make(arguments.nodes)
        cuts = {}
        for method in methods:
            start = time.perf_counter()
            parts = partition(edges, arguments.parts, num_nodes=arguments.nodes, method=method)
            seconds = time.perf_counter() - start
            cuts[method] = edge_cut(edges, parts) / edges.shape[1]
            balance = float(parts.bincount(minlength=arguments.parts).max()) * arguments.parts / arguments.nodes
            print(f"{name:12} {method.name:11} {cuts[method]:9.1%} {balance:10.3f} {seconds:8.2f}")
        if len(cuts) == 2:
            print(f"{name:12} cut relative to METIS's: {cuts[PartitionMethod.Multilevel] / cuts[methods[0]]:.2f} x")


if __name__ == "__main__":
    run(main)
