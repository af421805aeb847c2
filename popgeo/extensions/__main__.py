"""`python -m popgeo.extensions script.py [arguments]`: runs a program with PyG's extensions by popgeo."""

import argparse
import runpy
import sys
from pathlib import Path

from popgeo import extension_path
from popgeo.command_line import OneLineParser, run


def main() -> None:
    """Run the script or the module that the command line names, as Python would."""
    parser = OneLineParser(
        prog="python -m popgeo.extensions",
        description="Run a Python program with popgeo's torch_scatter, torch_cluster and pyg_lib, if they are missing.",
    )
    parser.add_argument("--shadow", action="store_true", help="use popgeo's versions even if others are installed")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, such as pytest")
    parser.add_argument("program", help="a script (.py), or after -m the name of a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program, its sys.argv[1:]")
    asked = parser.parse_args()
    if not asked.is_module and not Path(asked.program).is_file():
        parser.error(f"file {asked.program} does not exist")
    if asked.shadow:
        extension_path.provide(shadow=True)
        extension_path.log_engines()
    sys.argv = [asked.program, *asked.arguments]
    if asked.is_module:
        runpy.run_module(asked.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(asked.program).resolve().parent)
        runpy.run_path(asked.program, run_name="__main__")


if __name__ == "__main__":
    run(main)
