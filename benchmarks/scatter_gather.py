"""Time of cfconv, scatter-add and segment sums against eager PyTorch, PyG, torch_scatter and inductor.

One thread, float32, all variants in turn, medians. Freed memory stays in the process for every variant (`mallopt`);
otherwise page faults of new results would dominate the times. torch_scatter is optional.

    python benchmarks/scatter_gather.py                     all sections
    python benchmarks/scatter_gather.py --only cfconv       one of cfconv, inductor, scatter, sorted, grid, overhead
    python benchmarks/scatter_gather.py --quick             small sizes, seconds
    python benchmarks/scatter_gather.py --out figures       draws the surfaces of the grid

The grid has the points of a published sweep on a Graphcore Bow IPU (fp32, random indices; Graphcore Research, 2023;
`benchmarks/data`); the script also prints the published cycles.
"""

import argparse
import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from real_data import PUBLISHED
from timing import geometric_mean, measure, one_thread
from torch import Tensor
from torch_geometric.utils import scatter as pyg_scatter

from popgeo import plots
from popgeo.command_line import make_folder, run
from popgeo.ops import EdgePlan, ScatterPlan, cfconv, scatter_sum, segment_csr

try:
    import torch_scatter
except ImportError:
    torch_scatter = None

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
NEIGHBORS = 28  # edges per atom in a molecular batch
ATOMS = 29  # atoms per molecule; neighbors are near in memory


def keep_memory() -> str:
    """Make glibc keep freed memory in the process; return the resulting setting in words."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
        kept = mallopt(M_MMAP_THRESHOLD, 1 << 30) and mallopt(M_TRIM_THRESHOLD, 2 << 30)
    except (OSError, AttributeError):
        kept = False
    return "kept in the process for all variants (mallopt)" if kept else "the system's own setting"


def molecular_batch(num_nodes: int, channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return node features, filters, and sources and sorted destinations of 28 edges per node in molecules."""
    generator = torch.Generator().manual_seed(num_nodes)
    dst = torch.arange(num_nodes).repeat_interleave(NEIGHBORS)
    src = dst // ATOMS * ATOMS + torch.randint(ATOMS, dst.shape, generator=generator)
    x = torch.randn(num_nodes, channels, generator=generator)
    w = torch.randn(len(dst), channels, generator=generator)
    return x, w, src.clamp(max=num_nodes - 1), dst


Convolution = Callable[[Tensor, Tensor], Tensor]


def convolutions(src: Tensor, dst: Tensor, num_nodes: int, plan: EdgePlan) -> dict[str, Convolution]:
    """Return the same convolution by each library."""

    def eager(x: Tensor, w: Tensor) -> Tensor:
        return x.new_zeros(num_nodes, x.shape[1]).index_add_(0, dst, x.index_select(0, src) * w)

    variants: dict[str, Convolution] = {
        "popgeo": lambda x, w: cfconv(x, w, src, dst, num_nodes, plan),
        "eager": eager,
        "pyg": lambda x, w: pyg_scatter(x.index_select(0, src) * w, dst, 0, num_nodes, "sum"),
    }
    if torch_scatter is not None:
        variants["torch_scatter"] = lambda x, w: torch_scatter.scatter(
            x.index_select(0, src) * w, dst, dim=0, dim_size=num_nodes
        )
    return variants


def with_backward(convolve: Convolution, x: Tensor, w: Tensor) -> Callable[[], object]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    grad = torch.ones_like(convolve(x, w))
    return lambda: torch.autograd.grad(convolve(x, w), (x, w), grad)


def bench_cfconv(sizes: list[tuple[int, int]], rounds: int) -> pd.DataFrame:
    """Compare forward, and forward with backward; also with streaming the filters and with making the plans."""
    table = pd.DataFrame([molecular_row(num_nodes, channels, rounds) for num_nodes, channels in sizes])
    show("cfconv on molecular batches, k=28: time of each peer / ours", table)
    for column in table.columns[table.columns.str.endswith(" fwd")]:
        judge(f"{column}, smallest", table[column].min(), 4.0)
    for column in table.columns[table.columns.str.endswith(" f+b")]:
        judge(f"{column}, smallest", table[column].min(), 3.3)
    for kind in ("cfconv", "sum"):
        for channels, goal in ((128, 0.75), (100, 0.5)):
            fractions = table.loc[table["F"] == channels, f"roof {kind}"]
            if len(fractions):
                judge(f"fraction of a streaming read, {kind} F={channels}, smallest", fractions.min(), goal)
    judge("plans of both ends / fwd+bwd, largest", table["plan/f+b"].max(), 0.1, at_most=True)
    return table


def molecular_row(num_nodes: int, channels: int, rounds: int) -> dict[str, float]:
    x, w, src, dst = molecular_batch(num_nodes, channels)
    edge_index = torch.stack([src, dst])
    plan = EdgePlan.from_edge_index(edge_index, num_nodes)
    variants = convolutions(src, dst, num_nodes, plan)
    forward: dict[str, Callable[[], object]] = {name: partial(convolve, x, w) for name, convolve in variants.items()}
    forward |= {
        "read": w.sum,
        "plan": lambda: EdgePlan.from_edge_index(edge_index, num_nodes),
        "segment sum": partial(scatter_sum, w, dst, 0, None, num_nodes, plan.dst),
    }
    one = measure(forward, rounds)
    two = measure({name: with_backward(convolve, x, w) for name, convolve in variants.items()}, rounds)
    peers = [name for name in variants if name != "popgeo"]
    row: dict[str, float] = {"N": num_nodes, "F": channels}
    row |= {"fwd µs": one["popgeo"] * 1e6, "fwd+bwd µs": two["popgeo"] * 1e6}
    row |= {f"{peer} fwd": one[peer] / one["popgeo"] for peer in peers}
    row |= {f"{peer} f+b": two[peer] / two["popgeo"] for peer in peers}
    row |= {"roof cfconv": one["read"] / one["popgeo"], "roof sum": one["read"] / one["segment sum"]}
    return row | {"plan/f+b": one["plan"] / two["popgeo"]}


def bench_inductor(sizes: list[tuple[int, int]], rounds: int) -> pd.DataFrame:
    """Compare with torch.compile of the eager convolution; most of the time is compilation."""
    table = pd.DataFrame([inductor_row(num_nodes, channels, rounds) for num_nodes, channels in sizes])
    show("cfconv against torch.compile's inductor: its time / ours", table)
    judge("inductor, smallest", table[["fwd", "f+b"]].min().min(), 1.2)
    return table


def inductor_row(num_nodes: int, channels: int, rounds: int) -> dict[str, float]:
    x, w, src, dst = molecular_batch(num_nodes, channels)
    ours = partial(
        cfconv, src=src, dst=dst, num_nodes=num_nodes, plan=EdgePlan.from_edge_index(torch.stack([src, dst]), num_nodes)
    )

    def eager(x: Tensor, w: Tensor) -> Tensor:
        return x.new_zeros(num_nodes, x.shape[1]).index_add_(0, dst, x.index_select(0, src) * w)

    inductor = torch.compile(eager, fullgraph=True, dynamic=False)
    one = measure({"popgeo": partial(ours, x, w), "inductor": partial(inductor, x, w)}, rounds)
    two = measure({"popgeo": with_backward(ours, x, w), "inductor": with_backward(inductor, x, w)}, rounds)
    forward, both = (seconds["inductor"] / seconds["popgeo"] for seconds in (one, two))
    return {"N": num_nodes, "F": channels, "fwd": forward, "f+b": both}


def sums(src: Tensor, index: Tensor, num_rows: int) -> dict[str, Callable[[], object]]:
    """Return scatter-add of the same rows by each library; popgeo's with and without a plan made once."""
    plan = ScatterPlan.from_index(index, num_rows)
    channels = src.shape[1]
    full = index.unsqueeze(1).expand_as(src)
    variants: dict[str, Callable[[], object]] = {
        "popgeo": lambda: scatter_sum(src, index, 0, None, num_rows, plan),
        "no plan": lambda: scatter_sum(src, index, 0, None, num_rows),
        "index_add_": lambda: src.new_zeros(num_rows, channels).index_add_(0, index, src),
        "scatter_add_": lambda: src.new_zeros(num_rows, channels).scatter_add_(0, full, src),
    }
    if torch_scatter is not None:
        variants["torch_scatter"] = lambda: torch_scatter.scatter(src, index, dim=0, dim_size=num_rows)
    return variants


def bench_scatter(num_edges: list[int], channels: list[int], rounds: int) -> pd.DataFrame:
    """Compare scatter-add with random indices, 32 edges per row."""
    rows = []
    for edges in num_edges:
        for width in channels:
            num_rows = max(edges // 32, 1)
            generator = torch.Generator().manual_seed(edges)
            index = torch.randint(num_rows, (edges,), generator=generator)
            seconds = measure(sums(torch.randn(edges, width, generator=generator), index, num_rows), rounds)
            rows.append({"edges": edges, "F": width, "us": seconds["popgeo"] * 1e6} | ratios(seconds))
    table = pd.DataFrame(rows)
    show("scatter-add, random index, 32 edges per row: time of each peer / ours", table)
    for peer in table.columns[4:]:
        judge(f"{peer}, geometric mean", geometric_mean(list(table[peer])), 2.0)
        judge(f"{peer}, smallest", table[peer].min(), 1.5)
    return table


def bench_sorted(num_edges: list[int], channels: list[int], rounds: int) -> pd.DataFrame:
    """Compare segment sums with sorted indices, 32 edges per row."""
    rows = []
    for edges in num_edges:
        for width in channels:
            num_rows = max(edges // 32, 1)
            generator = torch.Generator().manual_seed(edges)
            index = torch.randint(num_rows, (edges,), generator=generator).sort().values
            src = torch.randn(edges, width, generator=generator)
            indptr = torch.cat([index.new_zeros(1), torch.bincount(index, minlength=num_rows).cumsum(0)])
            variants = sums(src, index, num_rows)
            variants["our segment_csr"] = partial(segment_csr, src, indptr)
            variants["segment_reduce"] = partial(torch.segment_reduce, src, "sum", offsets=indptr)
            if torch_scatter is not None:
                variants["ts.segment_csr"] = partial(torch_scatter.segment_csr, src, indptr)
            seconds = measure(variants, rounds)
            rows.append({"edges": edges, "F": width, "us": seconds["popgeo"] * 1e6} | ratios(seconds))
    table = pd.DataFrame(rows)
    show("segment sum, sorted index, 32 edges per row: time of each peer / ours", table)
    if "ts.segment_csr" in table:
        judge("ts.segment_csr, geometric mean", geometric_mean(list(table["ts.segment_csr"])), 3.0)
    return table


def bench_grid(points: pd.DataFrame, rounds: int, out: Path | None) -> pd.DataFrame:
    """Compare scatter-add over the published sweep with the best of torch's ops, and print an IPU's cycles."""
    rows = []
    for point in points.itertuples():
        generator = torch.Generator().manual_seed(0)
        index = torch.randint(int(point.M), (int(point.N),), generator=generator)
        variants = sums(torch.randn(int(point.N), int(point.F), generator=generator), index, int(point.M))
        seconds = measure(variants, rounds, min_seconds=0.002)
        best = min(seconds["index_add_"], seconds["scatter_add_"])
        row = {
            "N": point.N,
            "F": point.F,
            "M": point.M,
            "us": seconds["popgeo"] * 1e6,
            "ratio": best / seconds["popgeo"],
        }
        rows.append(row | {"IPU cycles": getattr(point, "cycles", float("nan"))})
    table = pd.DataFrame(rows)
    show("scatter-add of N rows of F into M: best of torch / ours", table)
    judge("geometric mean", geometric_mean(list(table["ratio"])), 1.0)
    large = table[table["N"] * table["F"] >= 1 << 16]
    if len(large):
        judge("smallest, at least 65,536 elements", large["ratio"].min(), 0.9)
    judge("smallest of all", table["ratio"].min(), 0.9)
    if out is not None:
        panels = table.assign(panel="F = " + table["F"].astype(int).astype(str))
        axes = plots.surfaces(panels, x="N", y="M", ratio="ratio", panel="panel", title="torch's best / popgeo")
        figure = axes[0].get_figure(root=True)
        assert figure is not None
        figure.savefig(out / "scatter_gather.png", dpi=150)
        print(f"surfaces drawn to {out / 'scatter_gather.png'}")
    return table


def bench_overhead(rounds: int) -> pd.DataFrame:
    """Compare the time of a call with almost nothing to compute: eight edges of eight channels."""
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    src, dst = torch.randint(4, (8,)), torch.randint(4, (8,)).sort().values
    plan = EdgePlan(src=ScatterPlan.from_index(src, 4), dst=ScatterPlan.from_index(dst, 4))
    variants = convolutions(src, dst, 4, plan)
    calls: dict[str, Callable[[], object]] = {
        f"cfconv, {name}": partial(convolve, x, w) for name, convolve in variants.items()
    }
    calls |= {f"cfconv fwd+bwd, {name}": with_backward(convolve, x, w) for name, convolve in variants.items()}
    calls |= {f"scatter-add, {name}": call for name, call in sums(w, dst, 4).items()}
    seconds = measure(calls, rounds)
    table = pd.DataFrame({"call": list(seconds), "us": [second * 1e6 for second in seconds.values()]})
    show("call overhead, in microseconds", table)
    judge("cfconv forward, µs", seconds["cfconv, popgeo"] * 1e6, 10.0, at_most=True)
    return table


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    return {name: second / seconds["popgeo"] for name, second in seconds.items() if name != "popgeo"}


def show(title: str, table: pd.DataFrame) -> None:
    print(f"\n{title}\n{table.to_string(index=False, float_format=lambda number: f'{number:.3g}')}", flush=True)


def judge(name: str, value: float, goal: float, *, at_most: bool = False) -> None:
    met = value <= goal if at_most else value >= goal
    print(f"  {name}: {value:.2f}, goal {'<=' if at_most else '>='} {goal:g}: {'met' if met else 'MISSED'}", flush=True)


def published_points() -> pd.DataFrame:
    """Return the scatter-add points of the published sweep."""
    table = pd.read_csv(PUBLISHED / "bow_microbenchmarks.csv").query("op == 'scatter_add'")
    names = {"num_inputs": "N", "num_features": "F", "num_outputs": "M", "ipu_bow_cycles": "cycles"}
    return table.rename(columns=names)[[*names.values()]].reset_index(drop=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("cfconv", "inductor", "scatter", "sorted", "grid", "overhead")
    parser.add_argument("--only", choices=sections, nargs="+", default=sections, help="the sections to run")
    parser.add_argument("--quick", action="store_true", help="use small sizes and few rounds; no inductor")
    parser.add_argument("--out", type=Path, help="folder for the picture of surfaces")
    arguments = parser.parse_args()
    if arguments.out is not None:
        make_folder(arguments.out)
    one_thread()
    print(f"one thread, float32, torch {torch.__version__}; freed memory: {keep_memory()}")
    quick, rounds = arguments.quick, 2 if arguments.quick else 7
    molecular = [(224, 128)] if quick else [(n, f) for n in (224, 1024, 4096, 8192) for f in (128, 100)]
    edges, channels = ([1024], [16, 64]) if quick else ([1000, 10_000, 100_000], [16, 32, 64, 128, 256])
    points = published_points()
    points = points.iloc[:: max(len(points) // 4, 1)] if quick else points
    for section in arguments.only:
        if section == "cfconv":
            bench_cfconv(molecular, rounds)
        elif section == "inductor" and not quick:
            bench_inductor([(224, 128), (4096, 128)], rounds)
        elif section == "scatter":
            bench_scatter(edges, channels, rounds)
        elif section == "sorted":
            bench_sorted(edges, channels, rounds)
        elif section == "grid":
            bench_grid(points, rounds, arguments.out)
        elif section == "overhead":
            bench_overhead(rounds)


if __name__ == "__main__":
    run(main)
