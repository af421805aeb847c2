"""Step times on a GPU: eager PyG, torch.compile, packed batches, and packed batches in one CUDA graph.

SchNet on molecules of QM9's sizes, GIN on graphs of NCI1's sizes, a layer of graph transformer, at 32 and 512 graphs
per batch. Each line has the time of a training step, graphs per second, the share of the time spent waiting for the
loader, and the ratio to eager PyG on ordinary batches. The lines of the CUDA graph also show the goal: 3 at 32 graphs,
1.5 at 512. Two trainings from the same seed must give bitwise equal weights. Without a CUDA device, the script prints a
message and ends. `--device cpu` tries the same code on the processor; its times say nothing about a GPU. `--limits`
prints the bytes and the arithmetic of SchNet's step, and the least time for them on an H100; it needs no GPU.

`--waiting` prints the share of its time that a training loop waits for the loader; it needs no GPU, too. The step is
emulated: it copies a batch into the step's inputs, as a CUDA graph's step does, and then sleeps until as much time has
passed as the step took on an H100. A thread that sleeps holds neither Python's lock nor a core, as during a GPU's work.
Copies to the device are copies in the processor's memory. Starts of epochs count.
"""

import argparse
import copy
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from gpu_limits import limits_of
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, TransformerConv, global_add_pool

from popgeo import compile_step
from popgeo.byte_block import ByteBlock, starts_in_one_block
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.datasets import Molecules
from popgeo.filter_choice import filters_at_each_edge, parts_with_filters
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import PrecomputeInteractionGraph, SchNet

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from compile_once import Distances

GOALS = {32: 3.0, 512: 1.5}
STEP_SECONDS = {32: 2.6e-3, 512: 7.9e-3}  # a step of SchNet in one CUDA graph on an H100


class Loss(nn.Module):
    """A model and the mean absolute error of its real graphs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Return the loss; `mask` has one entry per graph and is True for real graphs."""
        predicted = self.model(x, pos, edge_index, batch, mask.shape[0])
        return torch.where(mask, (predicted - y).abs(), 0).sum() / mask.sum()


class MolecularSchNet(nn.Module):
    """popgeo's SchNet on precomputed pairs within the cutoff."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.schnet = SchNet(channels, channels, 3, 32, 5.0)

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Return one output per graph [num_graphs]."""
        return self.schnet(x, pos, batch, edge_index, num_graphs=num_graphs).flatten()


class PygSchNet(nn.Module):
    """PyG's SchNet, on the same pairs."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.distances = Distances(channels, 3, 32, 5.0)

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Return one output per graph [num_graphs]."""
        return self.distances(x, x, pos, edge_index, batch, num_graphs)


class Layers(nn.Module):
    """Layers of PyG and a sum over each graph."""

    def __init__(self, make: Callable[[int], nn.Module], depth: int, channels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, channels)
        self.layers = nn.ModuleList(make(channels) for _ in range(depth))
        self.lin = nn.Linear(channels, 1)

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """Return one output per graph [num_graphs]."""
        h = self.embedding(x)
        for layer in self.layers:
            h = layer(h, edge_index).relu()
        return self.lin(global_add_pool(h, batch, num_graphs)).flatten()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A popgeo model, its PyG counterpart, and graphs to train both."""

    name: str
    model: Callable[[], nn.Module]
    peer: Callable[[], nn.Module]
    graphs: list[Data]


def make_cases(num_graphs: int, channels: int) -> list[Case]:
    """Return the three models, with bundled molecules for QM9 and random graphs of NCI1's sizes for NCI1."""
    pairs = PrecomputeInteractionGraph(5.0)
    molecules = [pairs(Data(z=m.z, pos=m.pos, y=m.y[:, 0])) for m in Molecules()[:num_graphs]]
    qm9 = [Data(x=m.z, pos=m.pos, edge_index=m.edge_index, y=m.y) for m in molecules]
    draw = torch.Generator().manual_seed(0)
    nci1 = []
    for _ in range(num_graphs):
        size = int(torch.normal(29.9, 13.6, (1,), generator=draw).clamp(4, 111))
        ends = torch.randint(size, (2, size + size // 12), generator=draw)
        bonds = torch.cat([ends, ends.flip(0)], dim=1)
        nci1.append(
            Data(
                x=torch.randint(37, (size,), generator=draw),
                pos=torch.zeros(size, 3),
                edge_index=bonds,
                y=torch.ones(1),
            )
        )

    def gin(width: int) -> nn.Module:
        return GINConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))

    def transformer(width: int) -> nn.Module:
        return TransformerConv(width, width // 4, heads=4)

    def layers(make: Callable[[int], nn.Module], depth: int) -> dict[str, Callable[[], nn.Module]]:
        return dict.fromkeys(("model", "peer"), lambda: Layers(make, depth, channels))

    schnets = {"model": lambda: MolecularSchNet(channels), "peer": lambda: PygSchNet(channels)}
    return [
        Case(name="SchNet, QM9", graphs=qm9, **schnets),
        Case(name="GIN, NCI1", graphs=nci1, **layers(gin, 5)),
        Case(name="transformer layer, QM9", graphs=qm9, **layers(transformer, 1)),
    ]


def measure(
    step: Callable[..., Tensor], loader: Iterable[Any], inputs: Callable[[Any], tuple[Tensor, ...]], num_steps: int
) -> tuple[float, float]:
    """Return a step's seconds, loader included, and the share spent waiting for the loader; warm up first."""
    for _ in range(2):
        waited, done = 0.0, 0
        loss = None
        start = asked = time.perf_counter()
        while done < num_steps:
            for batch in loader:
                waited += time.perf_counter() - asked
                loss = step(*inputs(batch))
                done += 1
                asked = time.perf_counter()
                if done == num_steps:
                    break
        assert loss is not None  # there is at least one batch
        loss.item()  # waits for the device
        seconds = time.perf_counter() - start
    return seconds / num_steps, waited / seconds


def eager(model: nn.Module) -> Callable[..., Tensor]:
    """Return a training step in plain PyTorch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(*given: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(*given)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def of_packed(batch: Any) -> tuple[Tensor, ...]:
    """Return the arguments of `Loss` from a batch of fixed size."""
    return batch.x, batch.pos, batch.edge_index, batch.batch, batch.y, batch.graphs_mask


def packed_loader(graphs: Any, batch_size: int, **choices: Any) -> FixedSizeDataLoader:
    """Return a loader of batches with about `batch_size` graphs."""
    sizes = FixedSizeOptions.tune(graphs, batch_size, align=64 if batch_size > 64 else 8, verbose=False)
    return FixedSizeDataLoader(graphs, fixed_size_options=sizes, fixed_size_strategy="Window", **choices)


def bench(case: Case, batch_size: int, device: str, num_steps: int) -> None:
    """Print the lines of one model at one batch size."""
    backend = "cuda" if device == "cuda" else "cpu"
    packed = packed_loader(case.graphs, batch_size, shuffle=True, device=device)
    ordinary = DataLoader(case.graphs, batch_size, shuffle=True)
    torch.manual_seed(0)
    first, peer = Loss(case.model()).to(device), Loss(case.peer()).to(device)

    def of_ordinary(batch: Any) -> tuple[Tensor, ...]:
        there = batch.to(device, non_blocking=True)
        mask = torch.ones(batch.num_graphs, dtype=torch.bool, device=device)
        return there.x, there.pos, there.edge_index, there.batch, there.y, mask

    ways: dict[str, tuple[Callable[..., Tensor], Any, Any]] = {
        "eager PyG, ordinary batches": (eager(copy.deepcopy(peer)), ordinary, of_ordinary),
        "torch.compile(dynamic=True)": (
            eager(torch.compile(copy.deepcopy(peer), dynamic=True)),  # type: ignore[arg-type]  # it is a module
            ordinary,
            of_ordinary,
        ),
        "popgeo, packed, eager": (eager(copy.deepcopy(first)), packed, of_packed),
        f"popgeo, packed, compile_step({backend!r})": (compiled(copy.deepcopy(first), backend), packed, of_packed),
    }
    if device == "cpu":
        del ways["torch.compile(dynamic=True)"]  # compiling takes a minute and says nothing about a GPU
    graphs_of = {ordinary: len(case.graphs) / len(ordinary), packed: len(case.graphs) / len(packed)}
    print(f"\n{case.name}, {batch_size} graphs per batch, packed into {packed.fixed_size_options}")
    base = 0.0
    for name, (step, loader, inputs) in ways.items():
        seconds, waited = measure(step, loader, inputs, num_steps)
        rate = graphs_of[loader] / seconds
        base = base or rate
        goal = f" (goal: {GOALS[batch_size]:g})" if "compile_step" in name and batch_size in GOALS else ""
        print(
            f"  {name:38} {1e3 * seconds:8.3f} ms per step, {rate:10,.0f} graphs/s, waited {waited:5.1%}, "
            f"{rate / base:5.2f}x{goal}",
            flush=True,
        )
    ends = [weights_after(copy.deepcopy(first), backend, packed, of_packed) for _ in range(2)]
    same = all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    print(f"  two trainings of popgeo's end in {'the same bits' if same else 'DIFFERENT bits'}")


def compiled(model: nn.Module, backend: str) -> Callable[..., Tensor]:
    """Return the same step, compiled."""
    return compile_step(model, torch.optim.Adam(model.parameters(), lr=1e-3), backend=backend)


def weights_after(
    model: nn.Module, backend: str, loader: FixedSizeDataLoader, inputs: Any, num_steps: int = 6
) -> list[Tensor]:
    """Return the weights after `num_steps` steps on the first batches of epoch 0."""
    loader.set_epoch(0)
    step = compiled(model, backend)
    for batch in islice(chain.from_iterable(repeat(loader)), num_steps):
        step(*inputs(batch))
    return [parameter.detach().clone() for parameter in model.parameters()]


def print_limits(case: Case, batch_size: int) -> None:
    """Print the least bytes, arithmetic and times of a step on one packed batch."""
    loader = packed_loader(case.graphs, batch_size)
    batch = next(iter(loader))
    inputs = of_packed(batch)
    print(f"\n{case.name}, {batch_size} graphs per batch, packed into {loader.fixed_size_options}")
    peer, own = Loss(case.peer()), Loss(case.model())
    for part in parts_with_filters(own):
        part.refine_filters()
    print(f"  PyG's SchNet:                 {limits_of(peer, inputs)}")
    with filters_at_each_edge():
        print(f"  popgeo, filters at each edge: {limits_of(own, inputs)}")
    print(f"  popgeo, filters on a grid:    {limits_of(own, inputs)}")


def emulated_step(seconds: float) -> Callable[..., Tensor]:
    """Return a step that takes as long as a GPU's step; it copies batches of fixed size as a CUDA graph's step does."""
    held: list[ByteBlock] = []

    def step(*given: Tensor) -> Tensor:
        end = time.perf_counter() + seconds
        if given:
            if not held:
                held.append(ByteBlock([(one.shape, one.dtype) for one in given], starts=starts_in_one_block(given)))
            held[0].fill(given)
        time.sleep(max(0.0, end - time.perf_counter()))  # until a deadline, in C
        return torch.zeros(())

    return step


def print_waiting(case: Case, batch_size: int, num_epochs: int) -> None:
    """Print the shares of its time that a loop with an emulated step waits for PyG's and popgeo's loaders."""
    store = FlatStore.from_dataset(case.graphs)
    ordinary = {
        f"PyG's DataLoader, {n} workers": DataLoader(case.graphs, batch_size, shuffle=True, num_workers=n)
        for n in (0, 2)
    }
    packed = {
        "popgeo, a list of graphs": packed_loader(case.graphs, batch_size, shuffle=True, device="cpu"),
        "popgeo, a FlatStore (goal: 5.0 %)": packed_loader(store, batch_size, shuffle=True, device="cpu"),
    }
    seconds = STEP_SECONDS.get(batch_size, STEP_SECONDS[32])
    print(f"\n{case.name}, {batch_size} graphs per batch, {1e3 * seconds:.1f} ms per emulated step")
    for name, loader in {**ordinary, **packed}.items():

        def inputs(batch: Any, copies: bool = name in packed) -> tuple[Tensor, ...]:
            return of_packed(batch) if copies else ()

        num_steps = (num_epochs if name in packed else 1) * len(loader)
        shares = [measure(emulated_step(seconds), loader, inputs, num_steps)[1] for _ in range(3)]
        print(f"  {name:34} waited {statistics.median(shares):5.1%} of the time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="use few graphs and steps of SchNet; takes seconds")
    parser.add_argument("--limits", action="store_true", help="count bytes and operations instead; needs no GPU")
    parser.add_argument("--waiting", action="store_true", help="measure waiting with an emulated step; needs no GPU")
    options = parser.parse_args()
    if options.waiting:
        torch.set_num_threads(1)
        print(f"on {platform.processor() or platform.machine()} with {os.cpu_count()} cores, torch {torch.__version__}")
        for case in make_cases(64 if options.quick else 8192, 8)[: 1 if options.quick else 2]:
            for batch_size in [8] if options.quick else options.batch_sizes:
                print_waiting(case, batch_size, 1 if options.quick else 3)
        return
    if options.limits:
        case = make_cases(32 if options.quick else 2048, 8 if options.quick else 128)[0]
        for batch_size in [8] if options.quick else options.batch_sizes:
            print_limits(case, batch_size)
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu.py: torch finds no CUDA device, so there is nothing to measure.")
        return
    if options.device == "cpu":
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "the processor: no figure of a GPU"
    print(f"on {name}, torch {torch.__version__}")
    num_graphs, channels = (32, 8) if options.quick else (8192, 128)
    for case in make_cases(num_graphs, channels)[: 1 if options.quick else None]:
        for batch_size in [8] if options.quick else options.batch_sizes:
            bench(case, batch_size, options.device, 2 if options.quick else options.steps)


if __name__ == "__main__":
    run(main)
