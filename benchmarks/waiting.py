"""The share of its time that a training loop waits for its loader, with a step that takes as long as a GPU's.

SchNet on molecules of QM9's sizes and GIN on graphs of NCI1's sizes, at 32 and 512 graphs per batch, with popgeo's
loader and PyG's. It needs no GPU. The step is emulated: it copies a batch into the step's inputs, as a CUDA graph's
step does, and then sleeps until as much time has passed as the step took on an H100. A thread that sleeps holds neither
Python's lock nor a core, as during a GPU's work. Copies to the device are copies in the processor's memory. Starts of
epochs count.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu import Case, make_cases, measure, of_packed, packed_loader
from timing import one_thread
from torch import Tensor
from torch_geometric.loader import DataLoader

from popgeo.byte_block import ByteBlock, starts_in_one_block
from popgeo.command_line import run
from popgeo.data import FlatStore

STEP_SECONDS = {32: 2.6e-3, 512: 7.9e-3}  # a step of SchNet in one CUDA graph on an H100


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
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--quick", action="store_true", help="use few graphs and steps; takes seconds")
    options = parser.parse_args()
    one_thread()
    print(f"on {platform.processor() or platform.machine()} with {os.cpu_count()} cores, torch {torch.__version__}")
    for case in make_cases(64 if options.quick else 8192, 8)[: 1 if options.quick else 2]:
        for batch_size in [8] if options.quick else options.batch_sizes:
            print_waiting(case, batch_size, 1 if options.quick else 3)


if __name__ == "__main__":
    run(main)
