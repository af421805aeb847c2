"""Step times on a GPU: eager PyG, torch.compile, packed batches, and packed batches in one CUDA graph.

SchNet on molecules of QM9's sizes, with and without forces, and GIN on graphs of NCI1's sizes, at 32 and 512 graphs per
batch. Each line has the time of a training step, graphs per second, the share of the time spent waiting for the
loader, the most memory of a step, and the ratios to eager PyG on ordinary batches. The lines of the CUDA graph also
show the goal: 3 at 32 graphs, 1.5 at 512. Then come the batches per second of the loader alone and of the step alone.
Two trainings from the same seed must give bitwise equal weights. After `--minutes` (6), the peers that torch.compile
compiles are left out, so that the rest ends within two minutes more; `--minutes 0` leaves out all of them. Without a
CUDA device, the script prints a message and ends. `--device cpu` tries the same code on the processor; its times say
nothing about a GPU. `--limits` prints the bytes and the arithmetic of SchNet's step, and the least time for them on an
H100; it needs no GPU.
"""

import argparse
import copy
import gc
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
from torch_geometric.nn import GINConv, global_add_pool

from popgeo import compile_step
from popgeo.command_line import run
from popgeo.data import FixedSizeOptions
from popgeo.datasets import Molecules
from popgeo.filter_choice import filters_at_each_edge, parts_with_filters
from popgeo.loader import FixedSizeDataLoader
from popgeo.nn import PrecomputeInteractionGraph, SchNet
from popgeo.quantity import quantity

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from compile_once import Distances

GOALS = {32: 3.0, 512: 1.5}


class Loss(nn.Module):
    """A model and the mean absolute error of its real graphs, and of its forces if asked; their targets are 0."""

    def __init__(self, model: nn.Module, forces: bool = False) -> None:
        super().__init__()
        self.model, self.forces = model, forces

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Return the loss; `mask` has one entry per graph and is True for real graphs."""
        pos = pos.detach().requires_grad_(self.forces)
        predicted = self.model(x, pos, edge_index, batch, mask.shape[0])
        loss = torch.where(mask, (predicted - y).abs(), 0).sum()
        if self.forces:
            loss = loss + torch.autograd.grad(predicted.sum(), pos, create_graph=True)[0].abs().sum()
        return loss / mask.sum()


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
    forces: bool = False


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

    def gins() -> nn.Module:
        return Layers(gin, 5, channels)

    schnets: dict[str, Any] = {"model": lambda: MolecularSchNet(channels), "peer": lambda: PygSchNet(channels)}
    return [
        Case(name="SchNet, QM9", graphs=qm9, **schnets),
        Case(name="GIN, NCI1", graphs=nci1, model=gins, peer=gins),
        Case(name="SchNet with forces, QM9", graphs=qm9, forces=True, **schnets),
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


def bench(case: Case, batch_size: int, device: str, num_steps: int, end: float) -> None:
    """Print the lines of one model at one batch size; after the time `end` without the peers of torch.compile."""
    packed = packed_loader(case.graphs, batch_size, shuffle=True, device=device)
    ordinary = DataLoader(case.graphs, batch_size, shuffle=True)
    torch.manual_seed(0)
    first, peer = (Loss(make(), case.forces).to(device) for make in (case.model, case.peer))

    def of_ordinary(batch: Any) -> tuple[Tensor, ...]:
        there = batch.to(device, non_blocking=True)
        mask = torch.ones(batch.num_graphs, dtype=torch.bool, device=device)
        return there.x, there.pos, there.edge_index, there.batch, there.y, mask

    def own() -> Callable[..., Tensor]:
        return compiled(copy.deepcopy(first))

    def by_torch(**how: Any) -> Callable[..., Tensor]:
        return eager(torch.compile(copy.deepcopy(peer), **how))  # type: ignore[arg-type]  # it is a module

    ways: dict[str, tuple[Callable[[], Callable[..., Tensor]], Any, Any]] = {
        "eager PyG, ordinary batches": (lambda: eager(copy.deepcopy(peer)), ordinary, of_ordinary),
        "popgeo, packed, eager": (lambda: eager(copy.deepcopy(first)), packed, of_packed),
        "popgeo, packed, compile_step": (own, packed, of_packed),
        "PyG, torch.compile(dynamic=True)": (lambda: by_torch(dynamic=True), ordinary, of_ordinary),
        "PyG, packed, reduce-overhead": (lambda: by_torch(mode="reduce-overhead"), packed, of_packed),
    }
    graphs_of = {ordinary: len(case.graphs) / len(ordinary), packed: len(case.graphs) / len(packed)}
    print(f"\n{case.name}, {batch_size} graphs per batch, packed into {packed.fixed_size_options}")
    base, memory = 0.0, 0
    for name, (make, loader, inputs) in ways.items():
        # On the processor, compiling takes a minute and says nothing about a GPU.
        if name.startswith("PyG") and (device == "cpu" or time.perf_counter() > end):
            print(f"  {name:33} left out")
            continue
        held = start_of_memory(device)
        try:
            seconds, waited = measure(make(), loader, inputs, num_steps)
        except Exception as error:  # torch.compile has no double backward pass
            print(f"  {name:33} {failure(error)}", flush=True)
            continue
        most = torch.cuda.max_memory_allocated() - held if device == "cuda" else 0
        rate = graphs_of[loader] / seconds
        base, memory = base or rate, memory or most
        goal = f" (goal: {GOALS[batch_size]:g})" if "compile_step" in name and batch_size in GOALS else ""
        shown = f", {quantity(most, 'B'):>8}, {most / memory:4.2f}x" if memory else ""
        print(
            f"  {name:33} {1e3 * seconds:8.3f} ms per step, {rate:10,.0f} graphs/s, waited {waited:5.1%}{shown}, "
            f"{rate / base:5.2f}x{goal}",
            flush=True,
        )
    alone, _ = measure(lambda *given: given[4].sum(), packed, of_packed, num_steps)
    step_alone, _ = measure(own(), [next(iter(packed))], of_packed, num_steps)
    print(f"  alone, the loader makes {1 / alone:,.0f} batches/s, and the step runs {1 / step_alone:,.0f} batches/s")
    ends = [weights_after(copy.deepcopy(first), packed, of_packed) for _ in range(2)]
    same = all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    print(f"  two trainings of popgeo's end in {'the same bits' if same else 'DIFFERENT bits'}", flush=True)


def failure(error: Exception) -> str:
    """Return the class and the first line of an error."""
    return f"fails: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:150]}"


def start_of_memory(device: str) -> int:
    """Return the bytes in use on the GPU, and forget the largest number so far."""
    if device == "cpu":
        return 0
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def compiled(model: nn.Module) -> Callable[..., Tensor]:
    """Return the same step, compiled."""
    return compile_step(model, torch.optim.Adam(model.parameters(), lr=1e-3))


def weights_after(model: nn.Module, loader: FixedSizeDataLoader, inputs: Any, num_steps: int = 6) -> list[Tensor]:
    """Return the weights after `num_steps` steps on the first batches of epoch 0."""
    loader.set_epoch(0)
    step = compiled(model)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=6, help="after this time leave out the peers of torch.compile")
    parser.add_argument("--quick", action="store_true", help="use few graphs and steps; takes seconds")
    parser.add_argument("--limits", action="store_true", help="count bytes and operations instead; needs no GPU")
    options = parser.parse_args()
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
    end = time.perf_counter() + 60 * options.minutes
    for case in make_cases(num_graphs, channels):
        for batch_size in [8] if options.quick else options.batch_sizes:
            try:
                bench(case, batch_size, options.device, 2 if options.quick else options.steps, end)
            except Exception as error:  # the other models are measured in spite of it
                print(f"  {failure(error)}", flush=True)


if __name__ == "__main__":
    run(main)
