"""Number of graphs that torch.compile makes of PyG's own models over shuffled epochs: ordinary and fixed-size batches.

The script counts graphs and measures no times: inductor compiles each graph that dynamo traces. `automatic` is the
default of torch.compile, which uses symbolic shapes after a size changes. `static` compiles for each size
(`dynamic=False`) and runs the model eagerly after `torch._dynamo.config.recompile_limit` sizes. Goal: one graph on
batches of fixed size.
"""

import argparse
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch_geometric.loader import DataLoader

from popgeo.command_line import run
from popgeo.datasets import Molecules
from popgeo.loader import FixedSizeDataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from compile_once import LAYERS, make_model

MODELS = [*LAYERS, "schnet"]
BATCH_SIZE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--molecules", type=int, default=640, help="number of bundled molecules")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="use few molecules and one model; takes seconds")
    options = parser.parse_args()
    if options.quick:
        options.molecules, options.epochs, options.models = 96, 1, ["graphconv"]
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # no warning at the limit; graphs are counted below
    torch.set_num_threads(1)
    torch.manual_seed(0)
    molecules = Molecules()[: options.molecules]
    fixed = FixedSizeDataLoader(molecules, BATCH_SIZE + 1, shuffle=True)
    ordinary = DataLoader(molecules, BATCH_SIZE, shuffle=True)
    print(
        f"graphs that torch.compile makes over {options.epochs * len(ordinary)} shuffled batches, forward and backward"
    )
    print(f"{'model':12} {'fixed size':>10} {'ordinary, automatic':>20} {'ordinary, static':>17}")
    for name in options.models:
        model = make_model(name, molecules.num_features, 16)
        counts = [
            count_graphs(model, loader, options.epochs, dynamic)
            for loader, dynamic in ((fixed, None), (ordinary, None), (ordinary, False))
        ]
        print(f"{name:12} {counts[0]:10} {counts[1]:20} {counts[2]:17}", flush=True)


def count_graphs(model: torch.nn.Module, loader: Iterable[Any], epochs: int, dynamic: bool | None) -> int:
    """Count the graphs made for forward and backward passes over `epochs` epochs, with an empty compiler cache."""
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="eager", dynamic=dynamic)
    for _ in range(epochs):
        for batch in loader:
            given = batch.x, batch.z, batch.pos, batch.edge_index, batch.batch
            compiled(*given, batch.num_graphs).sum().backward()
    return int(counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    run(main)
