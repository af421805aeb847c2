"""Gather and scatter-add on a modelled Bow IPU against published times of an A100, over a range of sizes.

    python examples/ipu_vs_gpu.py --out ipu_vs_gpu.png

The published points are in `benchmarks/data`; its README names their source. Columns: op, num_inputs, num_features,
num_outputs, ipu_bow_cycles, a100_us. The script computes the IPU's cycles for each size by compiling the operation; it
uses the published cycles only to print the error.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from popgeo import ipu, plots
from popgeo.command_line import make_folder, run

OPS = {"gather": "gather", "scatter_add": "scatter-add"}
POINTS = Path(__file__).resolve().parents[1] / "benchmarks" / "data" / "bow_microbenchmarks.csv"
FLOOR = 1.2  # a GPU call of at most this multiple of the shortest time is dominated by its launch


def compiled(op: str, num_inputs: int, num_features: int, num_outputs: int) -> ipu.CompiledStep:
    """Compile the operation for one size, without running it."""
    table = torch.empty(num_inputs, num_features)
    if op == "gather":
        return ipu.compile(gather, [table, torch.empty(num_outputs, dtype=torch.int64)])

    def scatter_add(rows: Tensor, index: Tensor) -> Tensor:
        return torch.zeros(num_outputs, num_features).index_add(0, index, rows)

    return ipu.compile(scatter_add, [table, torch.empty(num_inputs, dtype=torch.int64)])


def gather(table: Tensor, index: Tensor) -> Tensor:
    """Return the rows of `table` at `index` [num_outputs, num_features]."""
    return table.index_select(0, index)


def modelled(points: pd.DataFrame) -> pd.DataFrame:
    """Return the published points with the modelled time of one Bow IPU."""
    sizes = zip(points["op"], points["num_inputs"], points["num_features"], points["num_outputs"], strict=True)
    reports = [compiled(op, int(n), int(f), int(m)).report for op, n, f, m in sizes]
    return points.assign(
        modelled_cycles=[report.total_cycles for report in reports],
        modelled_us=[report.microseconds for report in reports],
        speedup=points["a100_us"] / [report.microseconds for report in reports],
        published_speedup=points["a100_us"] / (1e6 * points["ipu_bow_cycles"] / ipu.IpuTarget.bow().clock),
    )


def summary(rows: pd.DataFrame, op: str) -> str:
    """Describe the figure of one operation in words."""
    best, worst = rows.loc[rows["speedup"].idxmax()], rows.loc[rows["speedup"].idxmin()]
    floor = rows["a100_us"].min()
    waiting = rows["a100_us"] <= FLOOR * floor
    busy = rows[~waiting]
    error = (rows["modelled_cycles"] / rows["ipu_bow_cycles"] - 1).abs().median()
    lines = [
        f"{OPS[op]}, {len(rows)} sizes: the IPU is {gmean(rows['speedup']):.1f}x as fast as the A100 (geometric mean; "
        f"published {gmean(rows['published_speedup']):.1f}x); median error of the modelled cycles {error:.1%}.",
        f"  Best {best['speedup']:.1f}x (published {rows['published_speedup'].max():.1f}x) at {_size(best)}, where the "
        f"IPU takes {best['modelled_us']:.2f} µs and the A100 {best['a100_us']:.1f} µs.",
        f"  At {waiting.mean():.0%} of the sizes the A100 takes its shortest time of about {floor:.1f} µs, at any "
        "size: it waits for the launch of its kernel, while the IPU loops on the device.",
    ]
    if len(busy):
        lines.append(
            f"  At the other {len(busy)} sizes, with more work, the ratio is {gmean(busy['speedup']):.1f}x "
            f"(geometric mean); the worst ratio is {worst['speedup']:.2f}x at {_size(worst)}."
        )
    return "\n".join(lines)


def gmean(ratios: pd.Series) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.log(ratios).mean()))


def _size(row: pd.Series) -> str:
    return f"{row['num_inputs']:,} rows in, {row['num_outputs']:,} out, {row['num_features']} features"


def figure(table: pd.DataFrame) -> Figure:
    """Draw one panel per operation, for modelled and published cycles."""
    kinds = {"speedup": "modelled", "published_speedup": "published"}
    parts = [
        table.assign(panel=f"{name}, {kind} IPU", ratio=table[column])[table["op"] == op]
        for op, name in OPS.items()
        for column, kind in kinds.items()
    ]
    panels = plots.surfaces(
        pd.concat(parts), x="num_outputs", y="num_features", panel="panel",
        title="One Bow IPU against one A100: how many times as fast (mean over the rows of the table)",
    )  # fmt: skip
    drawn = panels[0].get_figure(root=True)
    assert drawn is not None
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=POINTS, help="the published points (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("ipu_vs_gpu.png"), help="file for the picture")
    arguments = parser.parse_args()
    if not arguments.data.exists():
        sys.exit(f"ipu_vs_gpu.py: {arguments.data} does not exist; pass the table of published points with --data.")
    make_folder(arguments.out.parent)
    points = pd.read_csv(arguments.data)
    table = modelled(points[points["op"].isin(OPS)])
    for op in OPS:
        print(summary(table[table["op"] == op], op))
    print(
        "So the peaks are real for small operations launched one by one on a GPU, and most of them is launch "
        "latency; for large operations, see the second figure of each operation."
    )
    partial = arguments.out.with_name(f"{arguments.out.name}.part")
    figure(table).savefig(partial, format="png", dpi=120)
    partial.replace(arguments.out)
    print(f"picture: {arguments.out}")


if __name__ == "__main__":
    run(main)
