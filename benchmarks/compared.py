"""Checks the statements of docs/compared.md about PyTorch Geometric against the installed package.

    python benchmarks/compared.py

Each row of the table is checked by a signature, a call or a batch. The statements about PopTorch Geometric and jraph,
which cannot be installed with a current torch, come from their documentation; the script prints the addresses.
"""

import argparse
import importlib.util
import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch_geometric
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DynamicBatchSampler, NeighborLoader
from torch_geometric.transforms import Pad

from popgeo.command_line import run

PAGES = {
    "PopTorch Geometric 3.3": "https://docs.graphcore.ai/projects/poptorch-geometric-user-guide/",
    "jraph 0.0.6": "https://jraph.readthedocs.io/en/latest/api.html",
}


def ring(num_nodes: int) -> Data:
    """Return a ring of `num_nodes` nodes."""
    nodes = torch.arange(num_nodes)
    return Data(x=torch.ones(num_nodes, 1), edge_index=torch.stack([nodes, nodes.roll(1)]))


def one_shape() -> tuple[bool, str]:
    graphs = [ring(3 + i % 5) for i in range(20)]
    padded = {Pad(max_num_nodes=8, max_num_edges=9)(graph).num_nodes for graph in graphs}
    sampler = DynamicBatchSampler(graphs, max_num=16, mode="node")
    batches = [Batch.from_data_list([graphs[i] for i in ids]) for ids in sampler]
    sizes = sorted({(batch.num_nodes, batch.num_edges) for batch in batches})
    return padded == {8} and len(sizes) > 1, f"Pad makes 8 nodes of each graph; DynamicBatchSampler's sizes: {sizes}"


def packing() -> tuple[bool, str]:
    graphs = [ring(3 + i % 5) for i in range(20)]
    batches = [*iter(DynamicBatchSampler(graphs, max_num=16, mode="node", shuffle=False))]  # it has no len()
    return [i for ids in batches for i in ids] == list(range(20)), f"DynamicBatchSampler in order: {batches[:3]} ..."


def sizes_by_hand() -> tuple[bool, str]:
    needed = inspect.signature(Pad.__init__).parameters["max_num_nodes"]
    budget = inspect.signature(DynamicBatchSampler.__init__).parameters["max_num"]
    found = needed.default is inspect.Parameter.empty and budget.default is inspect.Parameter.empty
    return found, "Pad(max_num_nodes) and DynamicBatchSampler(max_num) have no default"


def heterogeneous() -> tuple[bool, str]:
    graph = HeteroData()
    for kind, count in {"atom": 3, "ring": 1}.items():
        graph[kind].x = torch.ones(count, 1)
    graph["atom", "in", "ring"].edge_index = torch.tensor([[0, 1], [0, 0]])
    padded = Pad(max_num_nodes={"atom": 5, "ring": 2}, max_num_edges={("atom", "in", "ring"): 4})(graph)
    found = {kind: padded[kind].num_nodes for kind in ("atom", "ring")}
    return found == {"atom": 5, "ring": 2}, f"Pad for each type: {found}"


def masks() -> tuple[bool, str]:
    norms = [getattr(pyg.norm, name) for name in pyg.norm.__all__]
    knowing = [cls.__name__ for cls in norms if "mask" in str(inspect.signature(cls.forward))]
    return knowing in (
        [],
        ["DenseLayerNorm"],
    ), f"layers of torch_geometric.nn.norm that take a mask: {knowing or 'none'}"


def fixed_models() -> tuple[bool, str]:
    """Check that PyG's SchNet finds a varying number of edges, and that `to_fixed_size` exists."""
    found = hasattr(pyg, "to_fixed_size") and hasattr(pyg, "SchNet")
    graph = inspect.getsource(pyg.models.schnet.RadiusInteractionGraph.forward)
    return found and "radius_graph" in graph, "SchNet's interaction graph is radius_graph; to_fixed_size is there"


def ahead_of_time() -> tuple[bool, str]:
    return hasattr(torch_geometric, "compile") or hasattr(torch, "compile"), "through torch.compile"


def cycles() -> tuple[bool, str]:
    files = Path(torch_geometric.__path__[0]).rglob("*.py")
    about = [path.stem for path in files if path.stem in ("cost", "cost_model", "cycles", "ipu", "simulator")]
    return not about, f"modules that model the cost on another machine: {about or 'none'}"


def sampling() -> tuple[bool, str]:
    extension = any(importlib.util.find_spec(name) for name in ("pyg_lib", "torch_sparse"))
    warnings.filterwarnings("ignore", "Using 'NeighborSampler' without")
    try:
        batch = next(iter(NeighborLoader(ring(10), num_neighbors=[2], batch_size=2)))
        return extension, f"NeighborLoader: {batch.num_nodes} nodes, by the installed extension"
    except ImportError as error:
        return not extension, f"NeighborLoader without an extension: {error}"


def poptorch_programs() -> tuple[bool, str]:
    files = Path(torch_geometric.__path__[0]).rglob("*.py")
    about = [path.stem for path in files if "poptorch" in path.stem]
    return not about, f"modules that replace PopTorch: {about or 'none'}"


def runs_on() -> tuple[bool, str]:
    devices = re.findall(r"torch\.device\('(\w+)'\)", inspect.getsource(torch_geometric.device))
    return "cuda" in devices and not {"ipu", "xla"} & {*devices}, f"torch_geometric.device knows {', '.join(devices)}"


def framework() -> tuple[bool, str]:
    return issubclass(pyg.GCNConv, torch.nn.Module), "its layers are torch.nn.Module"


# The rows of docs/compared.md, word for word.
ROWS: dict[str, Callable[[], tuple[bool, str]]] = {
    "batches of one shape": one_shape,
    "packing": packing,
    "choice of sizes": sizes_by_hand,
    "heterogeneous graphs": heterogeneous,
    "losses, metrics, norms that know the masks": masks,
    "fixed-shape SchNet, GCN, GIN, transformers, TGN, NBFNet, embeddings": fixed_models,
    "a step compiled ahead of time, backward and optimizer included": ahead_of_time,
    "cycles and tile memory without the machine": cycles,
    "sampling of large graphs: clusters, neighbors": sampling,
    "programs for PopTorch": poptorch_programs,
    "runs on an IPU, GPU, TPU": runs_on,
    "framework": framework,
}


def main() -> int:
    """Check each row; return the number of rows that the installed package contradicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(f"PyTorch Geometric {torch_geometric.__version__}, torch {torch.__version__}")
    wrong = 0
    for row, ask in ROWS.items():
        holds, evidence = ask()
        wrong += not holds
        print(f"{'as the page says' if holds else 'NOT AS THE PAGE SAYS':20} {row}: {evidence}")
    for package, page in PAGES.items():
        print(f"not installed here; from its documentation: {package}, {page}")
    return wrong


if __name__ == "__main__":
    run(main)
