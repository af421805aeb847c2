"""popgeo's torch_scatter and torch_cluster next to the original packages, at one thread: ratios of times.

Build the originals for the installed torch: `pip install --no-build-isolation torch_scatter torch_cluster`. Without
them the script prints popgeo's times only.

python benchmarks/extensions.py
python benchmarks/extensions.py --only radius
"""

import argparse
import importlib
import importlib.util
import platform
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from timing import geometric_mean, measure
from torch import Tensor

from popgeo.command_line import run

PACKAGES = ("torch_scatter", "torch_cluster")
Call = Callable[[Any], object]


def processor() -> str:
    """Return the name of the processor."""
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())


def call(name: str, *given: Any, **named: Any) -> Call:
    """Return a call of a package's function."""
    return lambda of: getattr(of, name)(*given, **named)


def gradient(reduce: Callable[[Any, Tensor], Tensor], src: Tensor, weight: Tensor) -> Call:
    """Return a call that computes the gradient of a weighted sum of a reduction."""

    def run(of: Any) -> Tensor:
        leaf = src.detach().requires_grad_()
        return torch.autograd.grad((reduce(of, leaf) * weight).sum(), leaf)[0]

    return run


def scatter_cases(num_rows: int, num_edges: int, channels: int) -> Iterator[tuple[str, Call]]:
    """Yield the functions of torch_scatter on edges of a graph, by sorted and by shuffled index."""
    draw = torch.Generator().manual_seed(0)
    row = torch.randint(num_rows, (num_edges,), generator=draw).sort().values
    shuffled = row[torch.randperm(num_edges, generator=draw)]
    indptr = torch.searchsorted(row, torch.arange(num_rows + 1))
    src, of_rows, weight = (torch.randn(n, channels, generator=draw) for n in (num_edges, num_rows, num_rows))
    for reduce in ("sum", "mean", "min", "max", "mul"):
        for order, index in (("sorted", row), ("shuffled", shuffled)):
            yield f"scatter {reduce}, {order}", call("scatter", src, index, 0, None, num_rows, reduce)
    for reduce in ("sum", "mean", "min", "max"):
        yield f"segment_coo {reduce}", call("segment_coo", src, row, None, num_rows, reduce)
        yield f"segment_csr {reduce}", call("segment_csr", src, indptr, None, reduce)
    yield "gather_coo", call("gather_coo", of_rows, row)
    yield "gather_csr", call("gather_csr", of_rows, indptr)
    for name in ("softmax", "log_softmax", "std", "logsumexp"):
        yield f"scatter_{name}", call(f"scatter_{name}", src, shuffled, dim=0, dim_size=num_rows)
    for reduce in ("sum", "mean", "max"):

        def by_index(of: Any, x: Tensor, reduce: str = reduce) -> Tensor:
            return of.scatter(x, shuffled, 0, None, num_rows, reduce)

        def by_pointers(of: Any, x: Tensor, reduce: str = reduce) -> Tensor:
            return of.segment_csr(x, indptr, None, reduce)

        yield f"gradient of scatter {reduce}", gradient(by_index, src, weight)
        yield f"gradient of segment_csr {reduce}", gradient(by_pointers, src, weight)


def cluster_cases(num_clouds: int, num_points: int, dims: int) -> Iterator[tuple[str, Call]]:
    """Yield the searches of torch_cluster in clouds of points."""
    x = torch.randn(num_clouds * num_points, dims, generator=torch.Generator().manual_seed(0))
    batch = torch.arange(num_clouds).repeat_interleave(num_points)
    y, of_y = x[::4].contiguous(), batch[::4].contiguous()
    some = torch.cdist(x[: min(num_points, 500)], x[:num_points]).sort(1).values
    r = float(some[:, min(24, num_points - 1)].median())  # about 24 neighbors
    for k in (4, 16):
        yield f"knn_graph k={k}", call("knn_graph", x, k, batch)
    yield "knn of every fourth point", call("knn", x, y, 8, batch, of_y)
    yield "radius_graph", call("radius_graph", x, r, batch)
    yield "radius of every fourth point", call("radius", x, y, r, batch, of_y)
    for ratio in (0.05, 0.25):
        yield f"fps {ratio}", call("fps", x, batch, ratio, False)


SIZES: dict[str, list[tuple[Callable[..., Iterator[tuple[str, Call]]], tuple[int, int, int]]]] = {
    "torch_scatter": [
        (scatter_cases, (1000, 8000, 16)),
        *((scatter_cases, (20_000, 170_000, c)) for c in (1, 16, 64, 256)),
    ],
    "torch_cluster": [
        (cluster_cases, size)
        for size in (
            (1, 1000, 3),
            (1, 20_000, 3),
            (64, 30, 3),
            (32, 1024, 3),
            (1, 2000, 2),
            (8, 512, 64),
            (1, 4096, 16),
        )
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only cases whose names contain this text")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    peers = {name: importlib.import_module(name) for name in PACKAGES if importlib.util.find_spec(name)}
    print(f"{processor()}, one thread, torch {torch.__version__}")
    for package, sizes in SIZES.items():
        variants = {"popgeo": importlib.import_module(f"popgeo.extensions.{package}")}
        if package in peers:
            variants["original"] = peers[package]
        ratios: dict[str, float] = {}
        for make, size in sizes:
            for name, use in make(*size):
                case = f"{package} {size}, {name}"
                if asked.only in case:
                    calls = {key: partial(use, of) for key, of in variants.items()}
                    seconds = measure(calls, rounds=asked.rounds)
                    ratios[case] = seconds.get("original", 0.0) / seconds["popgeo"]
                    compared = f"{ratios[case]:6.2f}x" if package in peers else ""
                    print(f"{case:70} {1e6 * seconds['popgeo']:10.1f} us   {compared}", flush=True)
        for part in ("", "knn", "radius", "fps", "gradient") if package in peers else ():
            chosen = {case: ratio for case, ratio in ratios.items() if part in case}
            if chosen:
                worst = min(chosen, key=chosen.__getitem__)
                mean = geometric_mean([*chosen.values()])
                print(f"{package} {part}: {mean:.2f}x in the mean of {len(chosen)}, {chosen[worst]:.2f}x in {worst}")


if __name__ == "__main__":
    run(main)
