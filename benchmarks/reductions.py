"""Time of every reduction by index, against torch's: eager, without gradients, one thread, float32.

    python benchmarks/reductions.py             all sizes, a minute
    python benchmarks/reductions.py --quick     three sizes, seconds

The peer is `Tensor.scatter_reduce_` with the index expanded to every channel; the peer of softmax is PyG's. Variants
run in turn, times are medians. Both sides write new results into memory that the process has kept.
"""

import argparse
from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from scatter_gather import judge, keep_memory, show
from timing import geometric_mean, measure, one_thread
from torch import Tensor
from torch_geometric.utils import softmax as pyg_softmax

from popgeo.command_line import run
from popgeo.ops import ScatterPlan, scatter, scatter_softmax

OF_TORCH = {"sum": "sum", "mean": "mean", "mul": "prod", "min": "amin", "max": "amax"}
SIZES = [  # rows to reduce, channels, rows of the result
    (100_000, 128, 100), (100_000, 128, 10_000), (100_000, 128, 50_000), (100_000, 16, 1_000), (100_000, 1, 1_000),
    (10_000, 256, 1_000), (10_000, 64, 1_000), (1_000, 64, 1_000), (1_000, 16, 100), (8, 8, 4),
]  # fmt: skip


def reduced_by_torch(src: Tensor, index: Tensor, num_rows: int, reduce: str) -> Tensor:
    """Reduce rows with torch only."""
    out = src.new_ones(num_rows, src.shape[1]) if reduce == "prod" else src.new_zeros(num_rows, src.shape[1])
    return out.scatter_reduce_(0, index.unsqueeze(1).expand_as(src), src, reduce, include_self=False)


def variants(src: Tensor, index: Tensor, num_rows: int, reduce: str) -> dict[str, Callable[[], Tensor]]:
    """Return a reduction by torch, by popgeo, and by popgeo with a plan of the index."""
    plan = ScatterPlan.from_index(index, num_rows)
    if reduce == "softmax":
        ours = partial(scatter_softmax, src, index, 0, dim_size=num_rows)
        return {
            "torch": partial(pyg_softmax, src, index, num_nodes=num_rows),
            "ours": ours,
            "plan": partial(ours, plan=plan),
        }
    ours = partial(scatter, src, index, 0, dim_size=num_rows, reduce=reduce)
    return {
        "torch": partial(reduced_by_torch, src, index, num_rows, OF_TORCH[reduce]),
        "ours": ours,
        "plan": partial(ours, plan=plan),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="use three sizes and few rounds")
    quick = parser.parse_args().quick
    one_thread()
    print(f"one thread, float32, torch {torch.__version__}; freed memory: {keep_memory()}")
    for reduce in (*OF_TORCH, "softmax"):
        rows = []
        for size in SIZES[3::3] if quick else SIZES:
            edges, channels, num_rows = size
            generator = torch.Generator().manual_seed(0)
            index = torch.randint(num_rows, (edges,), generator=generator)
            src = torch.randn(edges, channels, generator=generator)
            seconds = measure(variants(src, index, num_rows, reduce), 2 if quick else 5, min_seconds=0.002)
            ratios = {name: seconds["torch"] / seconds[name] for name in ("ours", "plan")}
            rows.append(dict(zip(("edges", "F", "rows"), size, strict=True)) | {"us": seconds["ours"] * 1e6} | ratios)
        table = pd.DataFrame(rows)
        show(f"{reduce}: time of torch / ours", table)
        judge("geometric mean", geometric_mean(list(table["ours"])), 1.0)
        judge("smallest", table["ours"].min(), 1.0)


if __name__ == "__main__":
    run(main)
