"""Speed-up of a compiled training step by threads, next to a large matmul's, with the other cores idle and busy.

    python benchmarks/threads.py

The subject is a SchNet in plain torch operations on batches of QM9's size. The step uses one thread, all threads, or
the number that it chooses; the three are measured in turn. Processes that only loop keep the cores busy.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from executor import SchNet, make_batch
from timing import measure

from popgeo import ipu
from popgeo.command_line import run

GOAL_SHARE, GOAL_WORST = 0.85, 1.2


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy during a block."""
    workers = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def matmul_with(num_threads: int, size: int) -> Callable[[], object]:
    """Return a product of two square matrices that runs with `num_threads` threads."""
    a = torch.randn(size, size)

    def run() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(num_threads)
        a @ a
        torch.set_num_threads(before)

    return run


def step_with(num_threads: int | None, channels: int, blocks: int, sizes: tuple[int, int, int]) -> Callable[[], object]:
    """Return a compiled training step with `num_threads` threads; None lets the step choose."""
    torch.manual_seed(0)
    model, batch = SchNet(channels, blocks), make_batch(*sizes)
    options = ipu.Options(num_threads=num_threads, show_progress=False)
    training = ipu.training_model(model, options, torch.optim.Adam(model.parameters(), lr=1e-4))
    return lambda: training(**batch)


def compare(name: str, most: int, rounds: int, quick: bool) -> None:
    """Print the gains of the matmul and of the step, with their goals."""
    size, channels, blocks, sizes = (256, 32, 1, (120, 1200, 8)) if quick else (1024, 100, 4, (576, 16128, 32))
    products = {f"{n}": matmul_with(n, size) for n in (1, most)}
    steps = {label: step_with(n, channels, blocks, sizes) for label, n in (("one", 1), ("found", None), ("all", most))}
    for _ in range(3 if quick else 10):  # the step chooses its number in its first calls
        steps["found"]()
    seconds = 0.002 if quick else 0.02
    product, step = (measure(each, rounds, seconds, clock=time.perf_counter) for each in (products, steps))
    gain, own = product["1"] / product[f"{most}"], step["one"] / step["found"]
    print(
        f"{name}: a matmul of {size} gains {gain:.2f} from {most} threads, the step {own:.2f} "
        f"({own / max(gain, 1.0):.2f} of it; goal {GOAL_SHARE}); one thread {1e3 * step['one']:.1f} ms, all "
        f"{1e3 * step['all']:.1f} ms, its choice {1e3 * step['found']:.1f} ms "
        f"({step['found'] / step['one']:.2f} of one thread; goal at most {GOAL_WORST})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="runs of each variant (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="most threads (default: torch's)")
    parser.add_argument("--quick", action="store_true", help="use small sizes; takes seconds")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rounds = 1 if options.quick else options.rounds
    compare("idle", options.threads, rounds, options.quick)
    with busy_cores(1):
        compare("one core busy", options.threads, rounds, options.quick)


if __name__ == "__main__":
    run(main)
