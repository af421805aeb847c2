"""Memory of steps, predicted before they run, against the memory that they request; and runs close to a limit.

    python benchmarks/known_memory.py             # 50 pairs of model and shape
    python benchmarks/known_memory.py --runs 200  # 200 trainings at 98 % of a limit of the system

A pair's prediction is `popgeo.memory`, from the sizes of a batch. Its measurement is the most bytes that torch's
allocator holds while a step is compiled and called, or runs in eager mode, with weights, optimizer state and batch.

Runs choose their batch by `FixedSizeOptions.tune(memory=...)`, with 98 % of a memory drawn at random. Ten processes
then get a limit (`RLIMIT_DATA`) above the present size of Python, torch and the dataset, of which the step needs 98 %.
They compile the step and train. As a check of the check, one more process gets 70 % of the needed memory and should
fail; some train nevertheless, in memory that the first process has freed and kept.
"""

import argparse
import contextlib
import ctypes
import gc
import inspect
import os
import random
import re
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timing import one_thread
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch_geometric.data import Data

import popgeo
from popgeo import FixedSizeDataLoader, FixedSizeOptions, Molecules
from popgeo.capture.arguments import BatchArguments
from popgeo.command_line import run
from popgeo.deploy.fixed_program import as_predicted
from popgeo.nn import GCN, GIN, GraphSAGE, PaiNN, PrecomputeInteractionGraph, SchNet, mse_loss
from popgeo.nn.forces import energy_and_forces
from popgeo.quantity import quantity

GOALS = {"compiled": 0.02, "eager": 0.10}
CALLS = 8
LIMIT, TOO_SMALL, REPEATS = 0.98, 0.70, 10
_MMAP_THRESHOLD = -3  # of glibc's mallopt


class OfBonds(nn.Module):
    """A model of bonds with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor, graphs_mask: Tensor, num_graphs: int
    ) -> tuple[Tensor, Tensor]:
        found = self.model(x, edge_index, batch=batch, num_graphs=num_graphs)
        return found, mse_loss(found, y[:, :1], graphs_mask)


class OfAtoms(nn.Module):
    """A model of atoms with its loss, of energies or of forces."""

    def __init__(self, model: nn.Module, forces: bool = False) -> None:
        super().__init__()
        self.model, self.forces = model, forces

    def forward(
        self, z: Tensor, pos: Tensor, batch: Tensor, edge_index: Tensor, y: Tensor, graphs_mask: Tensor, num_graphs: int
    ) -> tuple[Tensor, Tensor]:
        if self.forces:
            energy, forces = energy_and_forces(self.model, z, pos, batch, edge_index, num_graphs=num_graphs)
            return energy, mse_loss(energy, y[:, :1], graphs_mask) + forces.square().mean()
        energy = self.model(z, pos, batch, edge_index, num_graphs=num_graphs)
        return energy, mse_loss(energy, y[:, :1], graphs_mask)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with a purpose.

    Attributes:
        make: Makes the model.
        data: Name of the dataset.
        optimizer: Makes the optimizer; None for a prediction.
        forces: Whether a prediction includes forces.
    """

    make: Callable[[], nn.Module]
    data: str
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] | None = None
    forces: bool = False


def adam(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.1)  # so that updates repeat the check of interpolated filters


def sgd(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def schnet() -> nn.Module:
    return SchNet(64, 64, num_interactions=3, cutoff=5.0)


def painn() -> nn.Module:
    return PaiNN(64, 2, cutoff=5.0)


CASES: Mapping[str, Case] = {
    "GCN, training": Case(make=lambda: OfBonds(GCN(11, 64, 4, 1, readout="mean")), data="bonds", optimizer=sgd),
    "GIN, training": Case(make=lambda: OfBonds(GIN(11, 64, 4, 1, readout="mean")), data="bonds", optimizer=adam),
    "GIN with norms, training": Case(
        make=lambda: OfBonds(GIN(11, 128, 3, 1, norm="batch_norm", readout="add")), data="bonds", optimizer=adam
    ),
    "GraphSAGE, prediction": Case(make=lambda: OfBonds(GraphSAGE(11, 64, 4, 1, readout="mean")), data="bonds"),
    "SchNet, training": Case(make=lambda: OfAtoms(schnet()), data="near", optimizer=adam),
    "SchNet, prediction": Case(make=schnet, data="near"),
    "SchNet, forces": Case(make=schnet, data="near", forces=True),
    "SchNet, training on forces": Case(make=lambda: OfAtoms(schnet(), True), data="near", optimizer=adam),
    "PaiNN, training": Case(make=lambda: OfAtoms(painn()), data="near", optimizer=sgd),
    "PaiNN, forces": Case(make=painn, data="near", forces=True),
}
SHAPES = (32, 64, 128, 256, 512)


def datasets() -> Mapping[str, list[Data]]:
    """Return molecules with bonds, and with all pairs of atoms within the cutoff."""
    molecules, near = list(Molecules()[:2000]), PrecomputeInteractionGraph(5.0, half_list=False)
    return {"bonds": molecules, "near": [near(Data(z=m.z, pos=m.pos, y=m.y)) for m in molecules]}


def requested(act: Callable[[], object]) -> int:
    """Return the most bytes that torch's allocator holds for tensors that an act makes."""
    gc.collect()
    gc.disable()  # garbage of earlier acts would count as negative
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        kept = act()
    changes = list[tuple[int, int]]()
    nodes = list(found.profiler.kineto_results.experimental_event_tree())
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if str(node.tag).endswith("Allocation"):
            changes.append((node.start_time_ns, node.extra_fields.alloc_size))
    held = most = 0
    for _, nbytes in sorted(changes, key=lambda change: change[0]):
        held += nbytes
        most = max(most, held)
    del kept
    gc.enable()
    return most


def called(case: Case, model: nn.Module, batch: Any) -> tuple[nn.Module, Mapping[str, Any]]:
    """Return the module that a user compiles, and the arguments of a call."""
    program: Any = as_predicted(model, forces=True) if case.forces else model
    signature = program.signature if case.forces else inspect.signature(model.forward)
    return program.train(case.optimizer is not None), BatchArguments(signature)([batch], {})[1]


def compiled(case: Case, model: nn.Module, batch: Any) -> object:
    """Compile a step, call it some times, and return it with its last results."""
    program, given = called(case, model, batch)
    if case.optimizer is None:
        step = popgeo.compile_forward(program)
    else:
        step = popgeo.compile_step(program, case.optimizer(program.parameters()))
    for _ in range(CALLS - 1):
        step(**given)
    return step, step(**given)


def eager(case: Case, model: nn.Module, batch: Any) -> object:
    """Run an eager step three times."""
    program, given = called(case, model, batch)
    if case.optimizer is None:
        with contextlib.nullcontext() if case.forces else torch.no_grad():
            for _ in range(3):
                program(**given)
        return None
    optimizer = case.optimizer(program.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        program(**given)[1].backward()
        optimizer.step()
    return optimizer


def batch_of(graphs: list[Data], sizes: FixedSizeOptions) -> Any:
    return next(iter(FixedSizeDataLoader(graphs, fixed_size_options=sizes, fixed_size_strategy="Window")))


def compare(cases: Mapping[str, Case], shapes: Iterable[int]) -> dict[str, float]:
    """Print predictions and measurements, and return the largest error of each way to run a step."""
    data, worst = datasets(), dict.fromkeys(GOALS, 0.0)
    for name, case in cases.items():
        for number in shapes:
            graphs, ways = data[case.data], (compiled, eager)
            sizes = FixedSizeOptions.tune(graphs, number, verbose=False)
            models, start = [case.make() for _ in range(3)], time.perf_counter()
            optimizer = None if case.optimizer is None else case.optimizer(models[0].parameters())
            found = popgeo.memory(models[0], sizes, optimizer, example=graphs[0], forces=case.forces)
            seconds, texts = time.perf_counter() - start, []
            for way, model in zip(ways, models[1:], strict=True):
                batch = batch_of(graphs, sizes)
                taken = called(case, model, batch)[1].values()
                held = [*model.parameters(), *model.buffers(), *(one for one in taken if isinstance(one, Tensor))]
                measured = requested(lambda: way(case, model, batch)) + sum(one.nbytes for one in held)  # noqa: B023
                predicted = getattr(found, way.__name__).peak
                error = predicted / measured - 1
                worst[way.__name__] = max(worst[way.__name__], abs(error))
                texts.append(f"{way.__name__} {quantity(predicted, 'B'):>9}, {error:+6.2%}")
            print(f"{name:<28}{sizes.total_num_nodes:>6,} nodes  {'  '.join(texts)}  in {seconds:.1f} s", flush=True)
    return worst


def give_back_freed_memory() -> None:
    """Let the allocator give each freed tensor back, so that none of it serves a run beyond its limit."""
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 2**18)


def trains_within(case: Case, model: nn.Module, batch: Any, nbytes: int) -> bool:
    """Check whether a copy of this process, which may allocate some bytes, can compile and run a step."""
    process = os.fork()
    if process == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        status = 1
        try:
            ctypes.CDLL(None).malloc_trim(0)
            (kilobytes,) = re.findall(r"VmData:\s*(\d+)", Path("/proc/self/status").read_text())
            allowed = 1024 * int(kilobytes) + nbytes
            resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
            compiled(case, model, batch)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def run_close_to_limits(count: int, least: int, most: int) -> int:
    """Print the runs with a limit of memory, and return the number of runs that failed."""
    data, chance, failed, refused, number = datasets(), random.Random(0), 0, 0, 0
    names = [*CASES]
    for number in range(0, count, REPEATS):
        name, memory = names[number // REPEATS % len(names)], chance.randint(least, most)
        case = CASES[name]
        graphs, model = data[case.data], case.make()
        optimizer = None if case.optimizer is None else case.optimizer(model.parameters())
        sizes = FixedSizeOptions.tune(graphs, memory=LIMIT * memory, model=model, optimizer=optimizer, verbose=False)
        predicted = popgeo.memory(model, sizes, optimizer, example=graphs[0], forces=case.forces).compiled.peak
        batch = batch_of(graphs, sizes)
        gc.collect()
        runs = [trains_within(case, model, batch, int(predicted / LIMIT)) for _ in range(min(REPEATS, count - number))]
        failed, refused = (
            failed + runs.count(False),
            refused + (not trains_within(case, model, batch, int(TOO_SMALL * predicted))),
        )
        text = f"{runs.count(True)} of {len(runs)} runs train"
        print(f"{name:<28}{quantity(predicted, 'B'):>9} of {quantity(predicted / LIMIT, 'B')}: {text}", flush=True)
    print(f"{count} runs at {LIMIT:.0%} of a limit: {failed} failed")
    print(f"{-(-count // REPEATS)} runs with {TOO_SMALL:.0%} of the needed memory: {refused} failed")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=0, help="train this often close to a limit, instead of comparing")
    parser.add_argument("--quick", action="store_true", help="use two models and small batches")
    options = parser.parse_args()
    one_thread()
    torch.manual_seed(0)
    if options.runs:
        give_back_freed_memory()
        return int(run_close_to_limits(options.runs, 25_000_000, 60_000_000) > 0)
    names = ("GIN, training", "PaiNN, forces") if options.quick else tuple(CASES)
    worst = compare({name: CASES[name] for name in names}, SHAPES[2:3] if options.quick else SHAPES)
    for way, goal in GOALS.items():
        print(f"{way}: largest error {worst[way]:.2%} (goal {goal:.0%})")
    return int(any(worst[way] > goal for way, goal in GOALS.items()))


if __name__ == "__main__":
    run(main)
