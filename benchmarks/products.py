"""Matrix products in the sizes of layers: popgeo's kernel, which compiled steps use, next to torch's.

    python benchmarks/products.py

One thread, variants in turn, medians, denormal numbers flushed. `forward` adds a bias; `inputs` and `weights` are the
gradients of a layer by its inputs and by its weights. Both sides write into existing memory.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from forces import processor
from timing import flushed, geometric_mean, measure, one_thread
from torch import Tensor

from popgeo.capture.capture import bind, capture
from popgeo.command_line import run
from popgeo.engine.products import prepare_product

SIZES = ((128, 64, 64), (617, 64, 64), (1088, 128, 128), (1088, 256, 256), (5500, 50, 64), (12000, 64, 128))


def products(num_rows: int, num_inner: int, num_columns: int) -> dict[str, tuple[Tensor, ...]]:
    """Return the operands of a layer's three products."""
    x, weight = torch.randn(num_rows, num_inner), torch.randn(num_columns, num_inner)
    grad, bias = torch.randn(num_rows, num_columns), torch.randn(num_columns)
    return {"forward": (bias, x, weight.t()), "inputs": (grad, weight), "weights": (grad.t(), x)}


def sides(operands: tuple[Tensor, ...]) -> dict[str, Callable[[], object]]:
    """Return a product by torch, and by the kernel if there is one for this processor."""
    function = torch.addmm if len(operands) == 3 else torch.mm
    out = torch.empty(operands[-2].shape[0], operands[-1].shape[1])
    graph = capture(function, bind(function, *operands)).graph
    (op,) = graph.ops
    places = dict(zip(graph.inputs.values(), operands, strict=True)) | {op.makes()[0]: out}
    kernel = prepare_product(graph, op, places)
    found: dict[str, Callable[[], object]] = {"torch": flushed(partial(function, *operands, out=out))}
    return found if kernel is None else found | {"popgeo": flushed(kernel)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="runs of each side (default: %(default)s)")
    rounds = parser.parse_args().rounds
    one_thread()
    print(f"{processor()}; GFLOP/s of torch and of popgeo, and torch's time over popgeo's")
    ratios = []
    for size in SIZES:
        line = []
        for name, operands in products(*size).items():
            seconds = measure(sides(operands), rounds)
            speeds = " / ".join(f"{2e-9 * size[0] * size[1] * size[2] / one:.0f}" for one in seconds.values())
            ratios += [seconds["torch"] / seconds["popgeo"]] if "popgeo" in seconds else []
            line.append(f"{name} {speeds}" + (f" ({ratios[-1]:.2f})" if "popgeo" in seconds else ""))
        print(f"  {' x '.join(map(str, size)):>16}: {', '.join(line)}")
    print(f"  geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}" if ratios else "  no kernel here")


if __name__ == "__main__":
    run(main)
