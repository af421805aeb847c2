"""Published measurements of a Bow IPU, and the measured functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.nn.models.schnet import InteractionBlock
from torch_geometric.utils import scatter

from popgeo import ipu

FAMILIES = ("gather", "scatter_add", "matmul", "schnet_block")
# Number of points of each family for fitting constants; the other points are for checking.
NUM_FITTED = {"gather": 60, "scatter_add": 60, "matmul": 18, "schnet_block": 30}
SEED = 0
FOLDER = Path(__file__).resolve().parent / "data"
TARGET = ipu.IpuTarget.bow()
_DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
_NUM_GAUSSIANS, _CUTOFF = 50, 10.0


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement.

    Attributes:
        family: One of `FAMILIES`.
        sizes: Rows of the input, features, rows of the result; for a product rows, contraction, columns.
        dtype: Type of the elements.
        cycles: Cycles measured on one Bow IPU at 1.85 GHz.
    """

    family: str
    sizes: tuple[int, int, int]
    dtype: torch.dtype
    cycles: float


def points(folder: Path, family: str) -> list[Point]:
    """Return all published points of a family, in the order of the file."""
    if family == "matmul":
        table = pd.read_csv(folder / "bow_dense_matmul.csv")
        return [
            Point(family=family, sizes=(m, k, n), dtype=_DTYPES[dtype], cycles=float(cycles))
            for dtype, m, k, n, cycles in table[["dtype", "m", "k", "n", "cycles_at_1.85GHz"]].itertuples(index=False)
        ]
    table = pd.read_csv(folder / "bow_microbenchmarks.csv")
    columns = ["num_inputs", "num_features", "num_outputs", "ipu_bow_cycles"]
    return [
        Point(family=family, sizes=(n, f, m), dtype=torch.float32, cycles=float(cycles))
        for n, f, m, cycles in table[table.op == family][columns].itertuples(index=False)
    ]


def split(family: str, every: Sequence[Point], seed: int = SEED) -> tuple[list[Point], list[Point]]:
    """Return the points for fitting constants, drawn by a seed, and the other points, for checking."""
    order = np.random.default_rng(seed).permutation(len(every))
    cut = NUM_FITTED[family]
    return [every[i] for i in order[:cut]], [every[i] for i in order[cut:]]


def compile_point(point: Point, target: ipu.IpuTarget = TARGET) -> ipu.CompiledStep:
    """Return the measured function, compiled for the point's shapes."""
    function, inputs = _FUNCTIONS[point.family](point)
    return ipu.compile(function, inputs, target=target, strict=False)


def _gather(point: Point) -> tuple[Callable[..., Tensor], list[Tensor]]:
    num_inputs, features, num_outputs = point.sizes
    x, index = torch.empty(num_inputs, features), torch.zeros(num_outputs, dtype=torch.long)
    return lambda x, index: x.index_select(0, index), [x, index]


def _scatter_add(point: Point) -> tuple[Callable[..., Tensor], list[Tensor]]:
    num_inputs, features, num_outputs = point.sizes
    src, index = torch.empty(num_inputs, features), torch.zeros(num_inputs, dtype=torch.long)
    return lambda src, index: scatter(src, index, 0, dim_size=num_outputs, reduce="sum"), [src, index]


def _matmul(point: Point) -> tuple[Callable[..., Tensor], list[Tensor]]:
    rows, contraction, columns = point.sizes
    a, b = torch.empty(rows, contraction, dtype=point.dtype), torch.empty(contraction, columns, dtype=point.dtype)
    return lambda a, b: a @ b, [a, b]


class FastSoftplus(nn.Module):
    """The shifted softplus as measured: log(0.5 exp(x) + 0.5)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(0.5 * torch.exp(x) + 0.5)


def _schnet_block(point: Point) -> tuple[Callable[..., Tensor], list[Tensor]]:
    num_nodes, features, num_edges = point.sizes
    block = InteractionBlock(features, _NUM_GAUSSIANS, features, _CUTOFF)
    block.act, block.mlp[1] = FastSoftplus(), FastSoftplus()
    x, edge_index = torch.empty(num_nodes, features), torch.zeros(2, num_edges, dtype=torch.long)
    return block, [x, edge_index, torch.empty(num_edges), torch.empty(num_edges, _NUM_GAUSSIANS)]


_FUNCTIONS: dict[str, Callable[[Point], tuple[Callable[..., Tensor], list[Tensor]]]] = {
    "gather": _gather,
    "scatter_add": _scatter_add,
    "matmul": _matmul,
    "schnet_block": _schnet_block,
}
