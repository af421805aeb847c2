"""Predictions for many molecules of mixed size: `popgeo.Predictor` against PyG's DataLoader and the eager model.

    python benchmarks/predict.py [--quick]

Both predict for the same molecules (QM9 if POPGEO_SHARED_DATA names a folder with qm9.npz) with the same weights and
the same number of molecules per batch, at one thread, with denormal numbers flushed. popgeo starts from a list of
graphs (as PyG), from a store and from a loader; its time includes flattening graphs, choosing the shape, compiling,
packing and ordering the results. SchNet reads precomputed pairs within 5 angstrom; PyG reads both directions. Both
sides use the same GIN module, made of PyG's layers. `at defaults` is SchNet with an interaction graph that does not
know the size of the largest molecule, compared with a graph that knows it. The last lines time a new process from its
start to its first result: of a model and of exported files, in Python and, if g++ is installed, in C++
(`examples/cpp_predict`). A graph given as a dictionary of tensors needs no PyG; this time is also printed as a multiple
of the time to import torch in the same process.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import real_data
import torch
from timing import flushed, measure, one_thread
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_add_pool
from torch_geometric.nn import SchNet as PygSchNet

import popgeo
from popgeo.command_line import run
from popgeo.data import FlatStore
from popgeo.nn import KNNInteractionGraph, PairInteractionGraph, SchNet

CHANNELS, BLOCKS, GAUSSIANS, CUTOFF = 64, 3, 32, 5.0
GOALS = {"SchNet": 6.0, "GIN": 3.0}
OF_FEW = 1.5  # goal for 1,000 molecules
FIRST_RESULT = 1.5  # seconds
OF_IMPORT = 1.3
CPP = Path(__file__).parents[1] / "examples" / "cpp_predict" / "predict.cpp"


class Lengths(nn.Module):
    """The interaction graph of PyG's SchNet with precomputed edges."""

    edge_index: Tensor

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = self.edge_index
        return self.edge_index, (pos[src] - pos[dst]).norm(dim=-1)


class PooledGIN(nn.Module):
    """PyG's GIN, summed over each molecule."""

    def __init__(self) -> None:
        super().__init__()
        self.gin, self.lin = GIN(10, CHANNELS, BLOCKS), nn.Linear(CHANNELS, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        return self.lin(global_add_pool(self.gin(x, edge_index), batch, size=num_graphs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=100_000, help="number of molecules (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="molecules per batch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="use 2,000 molecules; takes seconds")
    options = parser.parse_args()
    one_thread()
    count, rounds = (2000, 1) if options.quick else (options.molecules, options.rounds)
    if real_data.shared("qm9.npz") is None:
        real_data.say_random("qm9.npz", "made-up molecules of 5 to 29 atoms")
    molecules = list(islice(iter_molecules(), count))
    for name, make in (("SchNet", schnets), ("GIN", gins)):
        for some in sorted({1000, count}):
            compare(name, make(molecules[:some], options.batch_size), some, rounds)
    for graph in (KNNInteractionGraph, PairInteractionGraph):
        compare_defaults(graph, molecules[:2000], options.batch_size, rounds)
    first_results(molecules)


def compare(name: str, sides: dict[str, Callable[[], Tensor]], count: int, rounds: int) -> None:
    """Print molecules per second, ratios to PyG's time, and the largest difference."""
    found = {side: predict() for side, predict in sides.items()}
    off = max(float((found["PyG"] - one).abs().max() / found["PyG"].abs().max()) for one in found.values())
    seconds = measure({side: flushed(predict) for side, predict in sides.items()}, rounds)
    per_second = ", ".join(f"{side} {count / spent:,.0f}" for side, spent in seconds.items())
    ratios = ", ".join(f"{side} {seconds['PyG'] / seconds[side]:.2f}x" for side in sides if side != "PyG")
    goal = GOALS[name] if count > 1000 else OF_FEW
    print(
        f"{name}, {count:,} molecules: {per_second} per second; {ratios} (goal: {goal:g}); largest difference {off:.0e}"
    )


def compare_defaults(
    graph: Callable[..., nn.Module], molecules: list[tuple[Tensor, Tensor]], batch_size: int, rounds: int
) -> None:
    """Print the ratio of times without and with the known size of the largest molecule."""
    largest = max(len(z) for z, _ in molecules)
    graphs = [Data(z=z, pos=pos) for z, pos in molecules]
    sides = {}
    for side, told in (("told", {"max_num_nodes": largest}), ("at defaults", {})):
        slots = {"k": 16} if graph is KNNInteractionGraph else {}
        model = SchNet(CHANNELS, CHANNELS, BLOCKS, GAUSSIANS, CUTOFF, graph(**slots, cutoff=CUTOFF, **told))
        predictor = popgeo.Predictor(model, batch_size=batch_size)
        predictor(graphs[:200])
        sides[side] = flushed(partial(predictor, graphs))
    seconds = measure(sides, max(rounds, 5))
    print(
        f"SchNet with {graph.__name__}: {seconds['at defaults'] / seconds['told']:.2f} at defaults (goal: at most 1.1)"
    )


def iter_molecules() -> Iterator[tuple[Tensor, Tensor]]:
    """Yield atomic numbers and positions in random order, without end: QM9's if the file exists."""
    generator = np.random.default_rng(0)
    path = real_data.shared("qm9.npz")
    while path is None:
        size = int(generator.integers(5, 30))
        yield torch.from_numpy(generator.integers(1, 9, size)), 2 * torch.randn(size, 3)
    with np.load(path) as data:
        ptr = np.concatenate([[0], data["num_atoms"].astype(np.int64).cumsum()])
        z, pos = torch.from_numpy(data["z"].astype(np.int64)), torch.from_numpy(data["pos"])
    while True:
        for i in generator.permutation(len(ptr) - 1):
            yield z[ptr[i] : ptr[i + 1]], pos[ptr[i] : ptr[i + 1]]


def near(pos: Tensor, cutoff: float) -> Tensor:
    """Return each pair of atoms within the cutoff, once [2, num_pairs]."""
    apart = (pos.unsqueeze(0) - pos.unsqueeze(1)).square().sum(2)
    return (apart <= cutoff * cutoff).triu(1).nonzero().T.flip(0).contiguous()


def both(pairs: Tensor) -> Tensor:
    """Return both directions of each pair."""
    return torch.cat([pairs, pairs.flip(0)], 1)


def eagerly(graphs: list[Data], batch_size: int, predict: Callable[[Batch], Tensor]) -> Callable[[], Tensor]:
    """Return a function that makes all predictions with PyG's loader and the eager model."""

    @torch.inference_mode()
    def run_all() -> Tensor:
        return torch.cat([predict(batch) for batch in DataLoader(graphs, batch_size)])

    return run_all


def compiled(graphs: list[Data], batch_size: int, model: nn.Module, **choices: Any) -> dict[str, Callable[[], Tensor]]:
    """Return functions that make all predictions with a new predictor, from a list, a store, a loader."""

    def run_all(source: Any) -> Tensor:
        return popgeo.Predictor(model, batch_size=batch_size, **choices)(source)["out"]

    store = FlatStore.from_dataset(graphs)
    sources = {"list": graphs, "store": store, "loader": popgeo.FixedSizeDataLoader(store, batch_size)}
    return {name: partial(run_all, source) for name, source in sources.items()}


def schnets(molecules: list[tuple[Tensor, Tensor]], batch_size: int) -> dict[str, Callable[[], Tensor]]:
    """Return the functions of SchNet for both sides, with the same weights."""
    torch.manual_seed(0)
    shape, lengths = (CHANNELS, CHANNELS, BLOCKS, GAUSSIANS, CUTOFF), Lengths()
    peer, ours = PygSchNet(*shape, interaction_graph=lengths).eval(), SchNet(*shape)
    ours.load_state_dict(peer.state_dict())
    pairs = [Data(z=z, pos=pos, edge_index=near(pos, CUTOFF)) for z, pos in molecules]
    edges = [Data(z=one.z, pos=one.pos, edge_index=both(one.edge_index)) for one in pairs]

    def predict(batch: Batch) -> Tensor:
        lengths.edge_index = batch.edge_index
        return peer(batch.z, batch.pos, batch.batch)

    half = {"arguments": {"half_list": True}}
    return {"PyG": eagerly(edges, batch_size, predict), **compiled(pairs, batch_size, ours, **half)}


def gins(molecules: list[tuple[Tensor, Tensor]], batch_size: int) -> dict[str, Callable[[], Tensor]]:
    """Return the functions of one GIN for both sides, with edges between atoms at bond distance."""
    torch.manual_seed(0)
    model = PooledGIN().eval()
    graphs = [Data(x=one_hot(z, 10).float(), edge_index=both(near(pos, 1.7))) for z, pos in molecules]

    def predict(batch: Batch) -> Tensor:
        return model(batch.x, batch.edge_index, batch.batch, batch.num_graphs)

    return {"PyG": eagerly(graphs, batch_size, predict), **compiled(graphs, batch_size, model)}


FIRST = """
import sys, time
start = time.time()
import torch, popgeo
from torch_geometric.data import Data
torch.set_num_threads(1)
predictor = {predictor}
graph = torch.load(sys.argv[1], weights_only=False)
print(predictor([graph])["out"].flatten()[0].item())
"""
OF_DICTIONARY = """
import sys, time
start = time.perf_counter()
import torch
imported = time.perf_counter()
import popgeo
z, pos = torch.tensor([8, 1, 1]), torch.tensor([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
edges = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
popgeo.load(sys.argv[1], sys.argv[2])([{"z": z, "pos": pos, "edge_index": edges}])
print((time.perf_counter() - start) / (imported - start))
"""
OF_MODEL = """popgeo.Predictor(popgeo.nn.SchNet(64, 64, 3, 32, 5.0), popgeo.FixedSizeOptions(40, 800, 2))"""


def first_results(molecules: list[tuple[Tensor, Tensor]]) -> None:
    """Print the time of a new process from its start to its first result."""
    z, pos = molecules[0]
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "graph.pt"
        molecule = Data(z=z, pos=pos, edge_index=both(near(pos, CUTOFF)))
        torch.save(molecule, graph)
        ways = {"a model that is compiled": OF_MODEL}
        for format in ("torch", "aotinductor"):
            file = Path(folder) / format
            model = SchNet(CHANNELS, CHANNELS, BLOCKS, GAUSSIANS, CUTOFF)
            popgeo.export(model, popgeo.FixedSizeOptions(40, 800, 2), file, format, graphs=[molecule])
            ways[f"a file of {format}"] = f"popgeo.load({str(file)!r}, run_machine_code=True)"
        for name, predictor in ways.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", FIRST.format(predictor=predictor), graph], check=True, stdout=-3)
            say_first(name, time.perf_counter() - start)
        for backend in ("cpu", "none"):
            command = [sys.executable, "-c", OF_DICTIONARY, f"{folder}/torch", backend]
            times = [float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(5)]
            name = f"first result of a file of torch, backend {backend!r}, of a dictionary"
            print(f"{name}: {statistics.median(times):.2f} times importing torch (goal: {OF_IMPORT})")
        from_cpp(Path(folder) / "aotinductor.pt2", Path(folder) / "predict")


def from_cpp(file: Path, program: Path) -> None:
    """Print the time to the first result of the C++ example, which predicts for a water molecule."""
    compiler, of_torch = shutil.which("g++"), Path(torch.__file__).parent
    if compiler is None:
        print("first result of a new process, a file of aotinductor from C++: g++ is not installed")
        return
    libraries = [f"-L{of_torch}/lib", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{of_torch}/lib"]
    export_forces(file)
    subprocess.run([compiler, "-std=c++20", f"-I{of_torch}/include", CPP, "-o", program, *libraries], check=True)
    start = time.perf_counter()
    subprocess.run([program, file, "40", "800", "2"], check=True, stdout=-3)
    say_first("a file of aotinductor from C++, energy and forces", time.perf_counter() - start)


def export_forces(file: Path) -> None:
    """Export a model with its forces, in the form that the C++ example reads."""
    z, pos = torch.tensor([8, 1, 1]), torch.randn(3, 3)
    water = Data(z=z, pos=pos, edge_index=both(near(pos, CUTOFF)))
    model = SchNet(CHANNELS, CHANNELS, BLOCKS, GAUSSIANS, CUTOFF)
    popgeo.export(model, popgeo.FixedSizeOptions(40, 800, 2), file, "aotinductor", graphs=[water], forces=True)


def say_first(name: str, seconds: float) -> None:
    """Print a time, and the goal if it is the time of a file."""
    goal = f" (goal: {FIRST_RESULT:g} s)" if "file" in name else ""
    print(f"first result of a new process, {name}: {seconds:.2f} s{goal}")


if __name__ == "__main__":
    run(main)
