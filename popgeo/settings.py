"""What the main job's command line can choose."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from popgeo.command_line import OneLineParser, add_options, at_least


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
    own: dict[str, Any] = {"dataset": {"choices": ["molecules", "qm9"]}, "limit": {"type": at_least(10, int)}}
    add_options(parser, Path(__file__).with_suffix(".csv"), own)
    return parser.parse_args(arguments)
