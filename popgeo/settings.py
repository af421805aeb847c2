"""What the main job's command line can choose."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from popgeo.command_line import OneLineParser


def at_least(least: float, kind: type) -> Callable[[str], float]:
    """Reads a number for argparse and refuses what is too small."""

    def read(text: str) -> float:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is too small, {least:g} is the least")
        return value

    read.__name__ = kind.__name__
    return read


def parse(arguments: Sequence[str], version: str) -> argparse.Namespace:
    """The settings that a command line asks for, by the names of its options; `popgeo --help` explains each."""
    parser = OneLineParser(
        prog="popgeo",
        usage="popgeo [demo] [options] | popgeo convert | info | train | predict | report ...",
        description="Trains SchNet on the HOMO-LUMO gap of small molecules, on fixed-size batches, through the "
        "simulated IPU executor; shows how it went; writes pictures, figures, the executor's report, the weights. "
        "The other commands, each with --help: popgeo convert writes datasets to disk, popgeo info prints the content "
        "of a store, or without one whether the compiled kernels are in use, popgeo train makes a force field, popgeo "
        "predict uses a model, popgeo report prints a report.",
        epilog="python -m popgeo is the same command.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"popgeo {version}")
    count, number = at_least(1, int), at_least(0, float)
    add = parser.add_argument
    sources = ["molecules", "qm9"]
    add("--dataset", choices=sources, default=sources[0], help="bundled molecules (xTB) or PyG's QM9 (DFT)")
    add("--root", type=Path, help="folder of PyG's QM9, for --dataset qm9")
    add("--limit", type=at_least(10, int), help="use only that many molecules")
    add("--out", type=Path, default=Path("popgeo-run"), help="folder that the results are written to")
    add("--epochs", type=count, default=6, help="passes over the training molecules")
    add("--batch-size", type=count, default=32, help="molecules that a mini-batch holds on average")
    add("--hidden-channels", type=count, default=64, help="features of an atom, and of a filter")
    add("--num-interactions", type=count, default=3, help="interaction blocks of SchNet")
    add("--num-neighbors", type=count, help="find this many nearest neighbours of each atom in each step (KNN), "
        "instead of listing all pairs of atoms within the cutoff once, beforehand")  # fmt: skip
    add("--cutoff", type=number, default=5.0, help="longest interaction, in angstrom")
    add("--lr", type=number, default=2e-3, help="learning rate of AdamW, annealed to 0 by a cosine")
    add("--device-iterations", type=count, default=4, help="training steps in one call of the executor")
    add("--threads", type=count, help="threads of torch and of a step; by default a step measures the best number")
    add("--seed", type=at_least(0, int), default=0, help="what weights, split and order are drawn from")
    return parser.parse_args(arguments)
