"""Cost of features stored outside of memory: on disk, in a database, in other processes.

    python benchmarks/stores.py [--quick] [--part disk|database|machines]

Disk: rows of a 4 GB file in random order, read by a process with a limit of 1 GB, next to a plain read of each row
(`os.pread`); the file's pages are first dropped from memory. Database: an epoch of GraphSAGE with features in an
embedded database (`ladybug`, extra `stores`), next to memory, and next to PyG's loader on the same store if PyG's
extension is installed. Machines: two processes on an R-MAT graph, with and without keeping the most requested rows.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch_geometric
from sampling import rmat
from timing import one_thread
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

from popgeo import FixedSizeNeighborLoader
from popgeo.command_line import run
from popgeo.loader import DiskFeatures, PartitionedFeatures

WIDTH = 128  # float32 features per row


def drop_pages(path: Path) -> None:
    """Drop a file's pages from memory; no process may have it mapped."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def read_rows(path: Path, way: str, seed: int, num_rows: int, limit: int) -> float:
    """Return the seconds to read random rows of a file with at most `limit` more bytes of memory."""
    features = DiskFeatures({None: {"x": path}})
    count, width = features.get_tensor_size(group_name=None, attr_name="x")
    numbers = np.unique(np.random.default_rng(seed).integers(count, size=num_rows))
    status = Path("/proc/self/status").read_text().splitlines()
    data = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + limit, data + limit))
    handle = os.open(path, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    header = path.stat().st_size - 4 * count * width
    start = time.perf_counter()
    if way == "plain":
        rows = np.empty((len(numbers), width), np.float32)
        for i, number in enumerate(numbers.tolist()):
            rows[i] = np.frombuffer(os.pread(handle, 4 * width, header + 4 * width * number), np.float32)
    else:
        parts = torch.from_numpy(numbers).split(5000)
        rows = torch.cat([features.get_tensor(group_name=None, attr_name="x", index=part) for part in parts]).numpy()
    seconds = time.perf_counter() - start
    assert (np.asarray(rows[:, 0], np.int64) == numbers % 1024).all()
    return seconds


def disk(quick: bool) -> None:
    """Print the rate of rows read from disk."""
    count, num_rows, limit = (1 << 16, 2_000, 1 << 28) if quick else (1 << 23, 40_000, 1 << 30)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, WIDTH))
        for first in range(0, count, 1 << 16):
            file[first : first + (1 << 16)] = (np.arange(first, first + (1 << 16)) % 1024)[:, None]
        file.flush()
        del file
        seconds: dict[str, list[float]] = {"plain": [], "DiskFeatures": []}
        for turn in range(1 if quick else 3):
            for way, found in seconds.items():
                drop_pages(path)
                job = json.dumps([str(path), way, turn, num_rows, limit])
                done = subprocess.run(
                    [sys.executable, __file__, "--job", job], capture_output=True, text=True, check=True
                )
                found.append(float(done.stdout))
    medians = {way: float(np.median(found)) for way, found in seconds.items()}
    print(
        f"disk: {num_rows:,} of {count:,} rows of {4 * WIDTH} bytes ({4 * count * WIDTH / 1e9:.1f} GB), "
        f"{limit / 1e6:,.0f} MB of memory allowed"
    )
    for way, median in medians.items():
        print(f"  {way:<14}{num_rows / median:>12,.0f} rows/s")
    print(f"  {medians['plain'] / medians['DiskFeatures']:.2f} of a plain random read; goal: >= 0.6")


def one_of_two(rank: int, folder: str, scale: int, num_cached: int) -> None:
    """Run one of two processes; the first prints the bytes sent in an epoch."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    edge_index = rmat(scale, 16 << scale)
    data = Data(x=torch.rand(1 << scale, WIDTH), edge_index=edge_index)
    # PyG's Data is also a feature store and a graph store.
    features = PartitionedFeatures(data, num_cached=num_cached)
    loader = FixedSizeNeighborLoader(
        (features, data), [10, 5], torch.arange(min(8192, 1 << scale)), batch_size=128, shuffle=True
    )
    features.num_bytes = features.num_asked = 0
    start = time.perf_counter()
    number = sum(1 for _ in loader)
    if rank == 0:
        print(json.dumps([number, features.num_bytes, features.num_asked, time.perf_counter() - start]))
    dist.barrier()


def machines(quick: bool) -> None:
    """Print the bytes sent over the network with and without kept rows."""
    scale = 10 if quick else 17
    print(f"machines: R-MAT, {1 << scale:,} nodes, {16 << scale:,} edges, 2 processes, rows of {4 * WIDTH} bytes")
    first = 0.0
    for share in (0, 0.01, 0.05, 0.2):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--job"]
            jobs = [json.dumps([rank, folder, scale, int(share * (1 << scale))]) for rank in range(2)]
            running = [subprocess.Popen([*command, job], stdout=subprocess.PIPE, text=True) for job in jobs]
            said = [process.communicate()[0] for process in running]
        number, sent, asked, _ = json.loads(said[0])
        first = first or sent
        print(
            f"  {share:.0%} of rows kept: {sent / number / 1e6:.2f} MB per batch sent ({1 - sent / first:.0%} less), "
            f"{asked / number:,.0f} rows requested"
        )


def epoch(model: torch.nn.Module, batches: Any, seeds: int) -> tuple[float, float]:
    """Return the seconds of a training epoch, and the share spent waiting for batches."""
    optimizer = torch.optim.Adam(model.parameters())
    start, waited = time.perf_counter(), 0.0
    items = iter(batches)
    while True:
        asked = time.perf_counter()
        batch = next(items, None)
        waited += time.perf_counter() - asked
        if batch is None:
            break
        x, edges = batch["paper"].x, batch["paper", "cites", "paper"].edge_index
        loss = torch.nn.functional.cross_entropy(model(x, edges)[:seeds], batch["paper"].y[:seeds])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = time.perf_counter() - start
    return total, waited / total


def database(quick: bool) -> None:
    """Print the time of an epoch from the database next to an epoch from memory."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
    from graph_in_database import DatabaseEdges, DatabaseFeatures, made_up, put
    from torch_geometric.data import HeteroData
    from torch_geometric.nn import GraphSAGE

    num_nodes, num_edges, batches = (2_000, 20_000, 2) if quick else (1_000_000, 10_000_000, 32)
    x, y, edge_index = made_up(num_nodes, num_edges, 32)
    data = HeteroData()
    data["paper"].x, data["paper"].y, data["paper", "cites", "paper"].edge_index = x, y, edge_index
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        connection = put(Path(folder) / "graph", x, y, edge_index)
        print(f"database: {num_nodes:,} nodes, {num_edges:,} edges, put in {time.perf_counter() - start:.0f} s")
        stores = DatabaseFeatures(connection, 32), DatabaseEdges(connection, num_nodes)
        seeds = torch.randperm(num_nodes)[: batches * 512]
        ways: dict[str, Any] = {
            "memory": FixedSizeNeighborLoader(data, [10, 5], ("paper", seeds), batch_size=512, background=True),
            "database": FixedSizeNeighborLoader(stores, [10, 5], ("paper", seeds), batch_size=512),
        }
        if torch_geometric.typing.WITH_TORCH_SPARSE or torch_geometric.typing.WITH_PYG_LIB:
            ways["database, PyG's loader"] = NeighborLoader(stores, [10, 5], ("paper", seeds), batch_size=512)
        else:
            print("  PyG's loader needs an extension (torch_sparse), which is not installed")
        found: dict[str, tuple[float, float]] = {}
        for _ in range(1 if quick else 3):
            for way, loader in ways.items():
                torch.manual_seed(0)
                once = epoch(GraphSAGE(32, 128, 2, 5), loader, 512)
                found[way] = min(found.get(way, once), once)
        for way, (seconds, share) in found.items():
            times = seconds / found["memory"][0]
            print(f"  {way:<24}{seconds:>8.2f} s, {share:.0%} of it waiting for batches; {times:.2f} x memory")
    print("  fastest of three turns; goals: <= 1.5 x memory, >= 2 x PyG's loader on the same store")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["disk", "database", "machines"], help="run only this part")
    parser.add_argument("--quick", action="store_true", help="use small sizes and one round, to check the script")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_thread()
    warnings.filterwarnings("ignore", message=".*pyg-lib.*")
    if options.job is not None:
        arguments = json.loads(options.job)
        if isinstance(arguments[0], str):
            print(read_rows(Path(arguments[0]), *arguments[1:]))
        else:
            one_of_two(*arguments)
        return
    for part in (disk, machines, database):
        if options.part in (None, part.__name__):
            part(options.quick)


if __name__ == "__main__":
    run(main)
