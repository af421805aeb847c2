"""Speed of making batches of fixed size, compared with PyTorch Geometric and with a plain copy of the same bytes.

    python benchmarks/loader.py [--quick] [--graphs 6400]

All loaders read the same molecules: real molecules if POPGEO_SHARED_DATA names a folder with qm9.npz, otherwise random
molecules of the same sizes. One thread; each measurement is one epoch. PyG's epochs are warm: its dataset has already
cached all graphs as `Data`. The copy reads, in order, as many bytes as the batches have.
"""

import argparse
import gc
import platform
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import real_data
import torch
import torch_geometric
from timing import measure, one_thread
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.loader import DataLoader, DynamicBatchSampler

from popgeo.command_line import run
from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from popgeo.native import library


class Molecules(InMemoryDataset):
    """Molecules in the layout of PyG's QM9: bonds as edges, 11 atom features, 4 bond features, 19 targets."""

    def __init__(self, num_atoms: np.ndarray, num_bonds: np.ndarray, bonds: np.ndarray, z: np.ndarray) -> None:
        super().__init__()
        atoms, edges = np.concatenate([[0], num_atoms.cumsum()]), np.concatenate([[0], 2 * num_bonds.cumsum()])
        random = torch.Generator().manual_seed(0)
        graph = np.repeat(np.arange(len(num_bonds)), num_bonds)
        row, column = np.concatenate([bonds[:, 0], bonds[:, 1]]), np.concatenate([bonds[:, 1], bonds[:, 0]])
        order = np.lexsort((column, row, np.concatenate([graph, graph])))
        total = int(atoms[-1])
        self._data = Data(
            x=torch.rand(total, 11, generator=random),
            edge_index=torch.from_numpy(np.stack([row[order], column[order]]).astype(np.int64)),
            edge_attr=torch.rand(int(edges[-1]), 4, generator=random),
            y=torch.rand(len(num_atoms), 19, generator=random),
            pos=torch.rand(total, 3, generator=random),
            z=torch.from_numpy(z.astype(np.int64)),
        )
        nodes, edge_slices, graphs = map(torch.from_numpy, (atoms, edges, np.arange(len(num_atoms) + 1)))
        self.slices = {
            "x": nodes,
            "edge_index": edge_slices,
            "edge_attr": edge_slices,
            "y": graphs,
            "pos": nodes,
            "z": nodes,
        }


def real_molecules(path: Path, num_graphs: int) -> Molecules:
    """Return the first molecules of QM9, with random features that take as long to copy as chemical ones."""
    arrays = np.load(path)
    num_atoms = arrays["num_atoms"].astype(np.int64)[:num_graphs]
    num_bonds = arrays["num_bonds"].astype(np.int64)[:num_graphs]
    bonds, z = arrays["bond"][: num_bonds.sum(), :2], arrays["z"][: num_atoms.sum()]
    return Molecules(num_atoms, num_bonds, bonds, z)


def made_up_molecules(num_graphs: int) -> Molecules:
    """Return random molecules of QM9's sizes: 9 to 29 atoms, about as many bonds as atoms."""
    random = np.random.default_rng(0)
    num_atoms = np.clip(random.normal(18, 3, num_graphs).round().astype(np.int64), 9, 29)
    num_bonds = num_atoms + random.integers(-1, 3, num_graphs)
    limit = np.repeat(num_atoms, num_bonds)
    bonds = np.stack([random.integers(0, limit), random.integers(0, limit)], axis=1)
    return Molecules(num_atoms, num_bonds, bonds, random.integers(1, 9, num_atoms.sum()))


def sizes_for(store: FlatStore, batch_size: int) -> FixedSizeOptions:
    """Return sizes for about `batch_size` graphs per batch, with 0.5 % more edges than the mean."""
    nodes, edges = store.sizes.sum(axis=0)
    num_nodes = round(nodes / len(store) * batch_size)
    return FixedSizeOptions(num_nodes + 1, round(num_nodes * edges / nodes * 1.005), round(batch_size * 1.4) + 1)


def epoch_of(loader: Iterable[Any]) -> Callable[[], None]:
    """Return a function that iterates over a loader once."""

    def run() -> None:
        for _ in loader:
            pass

    return run


def planned_epoch_of(loader: FixedSizeDataLoader) -> Callable[[], None]:
    """Return a function that iterates over epoch 0, which the loader plans only once."""

    def run() -> None:
        loader.set_epoch(0)
        for _ in loader:
            pass

    return run


def without_library(call: Callable[[], None]) -> Callable[[], None]:
    """Return the call, run without the compiled library."""

    def run() -> None:
        with library.without_native():
            call()

    return run


def copy_of(num_bytes: int, new_memory: bool) -> Callable[[], None]:
    """Return a function that copies `num_bytes` bytes in order, in pieces as large as a few batches."""
    piece = 1 << 20
    pieces = torch.ones(max(1, num_bytes // piece), piece, dtype=torch.uint8)
    target = torch.empty(piece, dtype=torch.uint8)

    def run() -> None:
        for part in pieces:
            if new_memory:
                part.clone()
            else:
                target.copy_(part)

    return run


def bytes_of_epoch(loader: FixedSizeDataLoader) -> int:
    """Return the bytes of all tensors of an epoch."""
    batch = next(iter(loader))
    tensors = [value for value in batch.to_dict().values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) * len(loader)


def compare(dataset: Molecules, batch_size: int, rounds: int) -> pd.DataFrame:
    """Return graphs per second of every loader at one batch size, with ratios to PyG and to the copy."""
    store = FlatStore.from_dataset(dataset)
    options, strategy = sizes_for(store, batch_size), FixedSizeStrategy.StreamPack

    def ours(**settings: Any) -> FixedSizeDataLoader:
        return FixedSizeDataLoader(
            dataset, shuffle=True, fixed_size_options=options, fixed_size_strategy=strategy, **settings
        )

    fresh = epoch_of(ours())
    dynamic = DynamicBatchSampler(dataset, max_num=options.total_num_nodes - 1, mode="node", shuffle=True)
    num_bytes = bytes_of_epoch(ours())
    variants = {
        "PyG DataLoader": epoch_of(DataLoader(dataset, batch_size=batch_size, shuffle=True)),
        "PyG DynamicBatchSampler": epoch_of(DataLoader(dataset, batch_sampler=dynamic)),
        "popgeo, epoch and its plan": fresh,
        "popgeo, new memory": planned_epoch_of(ours()),
        "popgeo, reused memory": planned_epoch_of(ours(num_buffers=32)),
        "popgeo, no compiled library": without_library(fresh),
        "copy into new memory": copy_of(num_bytes, new_memory=True),
        "copy into reused memory": copy_of(num_bytes, new_memory=False),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns that the length of a DynamicBatchSampler is unknown
        seconds = measure(variants, rounds=rounds)
    table = pd.DataFrame({"seconds": seconds})
    table.insert(0, "batch size", batch_size)
    table["graphs/s"] = len(dataset) / table.seconds
    table["MB/s"] = [num_bytes / s / 1e6 if "PyG" not in name else float("nan") for name, s in seconds.items()]
    table["x PyG"] = seconds["PyG DataLoader"] / table.seconds
    table["x dynamic"] = seconds["PyG DynamicBatchSampler"] / table.seconds
    table["of a copy"] = seconds["copy into reused memory"] / table.seconds
    return table.rename_axis("loader").reset_index().drop(columns="seconds")


def first_batch(num_graphs: int) -> float:
    """Return the milliseconds from `iter()` to the first batch of a large dataset, planning included."""
    dataset = made_up_molecules(num_graphs)
    strategy = FixedSizeStrategy.Window
    options = sizes_for(FlatStore.from_dataset(dataset), 32)
    loader = FixedSizeDataLoader(dataset, shuffle=True, fixed_size_options=options, fixed_size_strategy=strategy)
    times = []
    for _ in range(5):
        start = time.process_time()
        next(iter(loader))
        times.append(time.process_time() - start)
    return 1000 * float(np.median(times))


GOALS = """goals: new memory >= 40 x PyG, >= 0.15 of a copy; reused >= 80 x PyG, >= 0.3 of a copy;
       epoch and its plan >= 60 x PyG's DynamicBatchSampler; no compiled library >= 5 x PyG"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=6400, help="molecules in the dataset (default: 6400)")
    parser.add_argument("--rounds", type=int, default=5, help="epochs per loader; the median is printed (default: 5)")
    parser.add_argument("--quick", action="store_true", help="use few graphs and one epoch, to check the script")
    options = parser.parse_args()
    one_thread()
    num_graphs, rounds = (200, 1) if options.quick else (options.graphs, options.rounds)
    path = real_data.shared("qm9.npz")
    if path is None:
        real_data.say_random("qm9.npz", "made-up molecules with sizes like QM9's")
    dataset = made_up_molecules(num_graphs) if path is None else real_molecules(path, num_graphs)
    print(
        f"{'made-up molecules' if path is None else 'real molecules of QM9'}: {len(dataset):,} graphs; Python "
        f"{platform.python_version()}, torch {torch.__version__}, PyG {torch_geometric.__version__}; "
        f"{'compiled library' if library.is_available() else library.reason()}"
    )
    gc.collect()
    tables = [compare(dataset, batch_size, rounds) for batch_size in (32, 128)]
    with pd.option_context("display.width", 160, "display.float_format", lambda value: f"{value:,.2f}"):
        print(pd.concat(tables).to_string(index=False))
    print(GOALS)
    many = 2_000 if options.quick else 130_000
    print(f"first batch of {many:,} graphs after iter(): {first_batch(many):.1f} ms (goal: 50)")


if __name__ == "__main__":
    run(main)
