"""Speed of writing, opening and reading a dataset on disk, next to memory and a plain read of the same files.

    python benchmarks/storage.py [--quick] [--graphs 400000] [--folder DIR]

The graphs are random, with QM9's sizes, about 2.6 kB each. One thread makes batches. For the cold figures, the files'
pages are first dropped from memory; the peer is a cold, plain sequential read of all files. The last part limits the
process to a quarter of the store beyond its present memory, and trains an epoch.
"""

import argparse
import gc
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from loader import made_up_molecules, sizes_for
from timing import measure, one_thread
from torch_geometric.data import Batch, Data

from popgeo.command_line import run
from popgeo.data import FixedSizeOptions, FlatStore, write
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from popgeo.nn import GCN

PYTHON = (sys.executable,)
_PIECE = 1 << 20


def as_written(num_graphs: int) -> Iterator[Data]:
    """Yield molecules one by one, as a generating program does; a few are repeated to save time."""
    few = list(made_up_molecules(min(num_graphs, 2000)))
    return (few[i % len(few)] for i in range(num_graphs))


def writing(folder: Path, num_graphs: int) -> float:
    """Return the number of molecules (`Data` objects) written per second."""
    molecules = as_written(num_graphs)
    start = time.perf_counter()
    write(molecules, folder, progress_bar=False)
    return num_graphs / (time.perf_counter() - start)


def opening(folder: Path, num_graphs: int) -> float:
    """Return the seconds to open a store of `num_graphs` graphs with one node and one edge each."""
    ones = torch.ones(num_graphs, dtype=torch.int64)
    few = FlatStore.from_dataset([Data(x=torch.ones(1, 1), edge_index=torch.zeros(2, 1, dtype=torch.int64))])
    pointer = torch.arange(num_graphs + 1)
    parts = {"x": torch.ones(num_graphs, 1), "edge_index": torch.zeros(2, num_graphs, dtype=torch.int64)}
    attributes = tuple(
        replace(a, values=parts[a.name], increments=None if a.increments is None else ones[:, None])
        for a in few.attributes
    )
    many = replace(few, attributes=attributes, row_pointers=dict.fromkeys(few.row_pointers, pointer), _cache={})
    many.save(folder, progress_bar=False)
    return measure({"open": lambda: FlatStore.open(folder)}, rounds=5, clock=time.perf_counter)["open"]


def loader_over(store: FlatStore, options: FixedSizeOptions, epoch: int, shuffle_bytes: int) -> FixedSizeDataLoader:
    """Return the loader of every figure: shuffled, packed by windows."""
    made = FixedSizeDataLoader(
        store,
        shuffle=True,
        fixed_size_options=options,
        fixed_size_strategy=FixedSizeStrategy.Window,
        shuffle_bytes=shuffle_bytes,
        num_buffers=32,
    )
    made.set_epoch(epoch)
    made.plan()  # planning is the same for memory and disk
    return made


def epoch_seconds(made: FixedSizeDataLoader, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one epoch without its plan."""
    start = clock()
    for _ in made:
        pass
    return clock() - start


def warm(folder: Path, rounds: int, shuffle_bytes: int) -> tuple[float, float]:
    """Return median processor seconds of an epoch from memory, and from disk with all pages in memory."""
    on_disk = FlatStore.open(folder)
    in_memory = in_memory_copy(on_disk)
    options = sizes_for(in_memory, 32)
    turns: dict[str, list[float]] = {"memory": [], "disk": []}
    for epoch in range(rounds + 1):
        for name, store in (("memory", in_memory), ("disk", on_disk)):
            turns[name].append(epoch_seconds(loader_over(store, options, epoch, shuffle_bytes), time.process_time))
    return statistics.median(turns["memory"][1:]), statistics.median(turns["disk"][1:])


def in_memory_copy(store: FlatStore) -> FlatStore:
    """Return the same graphs with all arrays in memory."""
    attributes = tuple(
        replace(a, values=a.tensor.clone(), increments=None if a.increments is None else a.increments.clone())
        for a in store.attributes
    )
    pointers = {axis: pointer.clone() for axis, pointer in store.row_pointers.items()}
    return replace(store, attributes=attributes, row_pointers=pointers, _cache={})


def drop_pages(folder: Path) -> None:
    """Drop the files' pages from memory; no process may have the files mapped."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def sequential_read(folder: Path) -> float:
    """Return the seconds to read all files from first to last byte, cold."""
    drop_pages(folder)
    start = time.perf_counter()
    for path in folder.iterdir():
        with path.open("rb", buffering=0) as file:
            piece = bytearray(_PIECE)
            while file.readinto(piece):
                pass
    return time.perf_counter() - start


def in_new_process(folder: Path, shuffle_bytes: int, limit: int) -> dict[str, float]:
    """Return the results of `job` from a new process without mapped files."""
    command = [*PYTHON, __file__, "--folder", str(folder), "--shuffle-bytes", str(shuffle_bytes)]
    done = subprocess.run([*command, "--job", str(limit)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The process with the limit failed: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def job(folder: Path, shuffle_bytes: int, limit: int) -> dict[str, float]:
    """Measure a cold epoch; if `limit` is not 0, also train an epoch within the limit."""
    found = cold_epoch(folder, shuffle_bytes)
    return {**found, **limited_epoch(folder, limit, shuffle_bytes)} if limit else found


def cold_epoch(folder: Path, shuffle_bytes: int) -> dict[str, float]:
    """Return the seconds of an epoch over a store with only its row pointers in memory."""
    store = FlatStore.open(folder)
    made = loader_over(store, sizes_for(store, 32), 0, shuffle_bytes)
    return {"cold": epoch_seconds(made)}


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Run one training step on the first target."""
    of_nodes = model(batch.x, batch.edge_index)
    of_graphs = torch.zeros(batch.num_graphs, 1).index_add(0, batch.batch, of_nodes)
    loss = ((of_graphs[:, 0] - batch.y[:, 0]) * batch.graphs_mask).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def limited_epoch(folder: Path, limit: int, shuffle_bytes: int) -> dict[str, float]:
    """Train an epoch with at most `limit` more bytes; then try to hold the store in memory."""
    torch.manual_seed(0)
    store = FlatStore.open(folder)
    options = sizes_for(store, 32)
    model = GCN(11, 16, 2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    made = loader_over(store, options, 0, shuffle_bytes)
    for batch in made:  # the first step's lasting memory is not memory of graphs
        step(model, optimizer, batch)
        break
    made.set_epoch(0)
    status = Path("/proc/self/status").read_text().splitlines()
    data = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + limit, data + limit))
    num_graphs, start = 0, time.perf_counter()
    for batch in made:
        step(model, optimizer, batch)
        num_graphs += int(batch.graphs_mask.sum())
    seconds = time.perf_counter() - start
    try:
        in_memory_copy(store)
        fits = 1.0
    except (MemoryError, RuntimeError):
        fits = 0.0
    return {"graphs": num_graphs, "seconds": seconds, "fits": fits}


def measure_all(
    home: Path, num_graphs: int, num_to_open: int, rounds: int, shuffle_bytes: int
) -> list[tuple[str, str, str]]:
    """Return every measurement with its goal."""
    molecules, many = home / "molecules", home / "many"
    rows = []
    per_second = writing(molecules, num_graphs)
    rows.append(("writing molecules, one by one", f"{per_second:,.0f}/s", ">= 20,000/s"))
    seconds = opening(many, num_to_open)
    rows.append((f"opening {num_to_open:,} graphs", f"{1000 * seconds:.1f} ms", "<= 200 ms"))
    shutil.rmtree(many)
    num_bytes = sum(path.stat().st_size for path in molecules.iterdir())
    from_memory, from_disk = warm(molecules, rounds, shuffle_bytes)
    gc.collect()  # mapped pages of this process would stay in memory
    rows.append(("batches from memory", f"{num_graphs / from_memory:,.0f} graphs/s", ""))
    rows.append(("batches from disk, pages in memory", f"{from_memory / from_disk:.2f} of memory", ">= 0.5"))
    plain, cold = [], []
    limit, done = num_bytes // 4, {}
    for turn in range(rounds):
        plain.append(sequential_read(molecules))
        drop_pages(molecules)
        done = in_new_process(molecules, shuffle_bytes, limit if turn == rounds - 1 else 0)
        cold.append(done["cold"])
    of_read, of_cold = statistics.median(plain), statistics.median(cold)
    rows.append(("a plain sequential read, cold", f"{num_bytes / of_read / 1e6:,.0f} MB/s", ""))
    rows.append(("an epoch from disk, pages in memory", f"{num_bytes / from_disk / 1e6:,.0f} MB/s", ""))
    rows.append(("an epoch from disk, cold, in chunks", f"{num_bytes / of_cold / 1e6:,.0f} MB/s", ""))
    share = max(of_read, from_disk) / of_cold
    rows.append(("  of the slower of the two above", f"{share:.2f}", ">= 0.6"))
    trained = f"{done['graphs']:,.0f} of {num_graphs:,} graphs" if not done["fits"] else "the limit does not hold"
    rows.append((f"trained with {limit / 1e6:,.0f} MB for {num_bytes / 1e6:,.0f} MB", trained, "all of them"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=400_000, help="molecules in the store (default: 400,000)")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="use few graphs and one round, to check the script")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--shuffle-bytes", type=int, default=1 << 26, help="bytes shuffled together (default: 67 MB)")
    options = parser.parse_args()
    one_thread()
    if options.job is not None:
        print(json.dumps(job(options.folder, options.shuffle_bytes, options.job)))
        return
    sizes = (5_000, 10_000, 1, 1 << 22) if options.quick else (options.graphs, 10**7, 3, options.shuffle_bytes)
    with tempfile.TemporaryDirectory(dir=options.folder) as home:
        rows = measure_all(Path(home), *sizes)
    width = max(len(what) for what, _, _ in rows)
    print(f"{sizes[0]:,} random molecules; goals at the right")
    for what, found, goal in rows:
        print(f"{what:<{width}}  {found:>26}  {goal}")


if __name__ == "__main__":
    run(main)
