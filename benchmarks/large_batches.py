"""Cost per molecule in a small and in a large batch: SchNet's compiled step with forces, time and memory.

    python benchmarks/large_batches.py

One thread, packed QM9 molecules (random molecules if POPGEO_SHARED_DATA is not set), all pairs within 10 angstrom.
PyG's eager step, with denormal numbers flushed, is measured up to about 500 molecules; for 2,000 it needs 7 GB.
"""

import argparse

import torch
from forces import Comparison
from timing import measure, one_thread

from popgeo.command_line import run

OURS, PEER = "SchNet on pairs, compiled", "PyG's SchNet"
GOAL = 1.15  # time per molecule, largest over smallest batch
LARGEST_OF_PEER = 10_000  # atoms


def main() -> None:
    """Print a line for each size, and the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[576, 2304, 9216, 36_864], help="atoms per batch")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=3)
    options = parser.parse_args()
    one_thread()
    torch.set_flush_denormal(True)
    costs = [cost_of(nodes, options.channels, options.blocks) for nodes in options.nodes]
    growth = costs[-1] / costs[0]
    print(f"largest over smallest: {growth:.2f} (goal {GOAL}: {'met' if growth <= GOAL else 'missed'})")


def cost_of(nodes: int, channels: int, blocks: int) -> float:
    """Print the cost per molecule in a batch of `nodes` atoms; return the milliseconds of the compiled step."""
    comparison = Comparison(argparse.Namespace(nodes=nodes, channels=channels, blocks=blocks))
    peers, ours = comparison.schnets(with_inductor=False)
    steps = {OURS: ours[OURS]} | (peers if nodes <= LARGEST_OF_PEER else {})
    seconds = measure(steps, 5)
    molecules = comparison.batch.num_graphs - 1
    each = {name: 1e3 * spent / molecules for name, spent in seconds.items()}
    megabytes = {name: comparison.memory[name]() / 1e6 for name in steps}
    beside = f"; {PEER} {each[PEER]:.2f} ms, {megabytes[PEER]:,.0f} MB" if PEER in each else ""
    print(f"{molecules:5,} molecules: {each[OURS]:.3f} ms each, {megabytes[OURS]:,.0f} MB{beside}", flush=True)
    return each[OURS]


if __name__ == "__main__":
    run(main)
