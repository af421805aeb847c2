"""`python -m popgeo.compat program.py [arguments]`: runs a program written for PopTorch without changes."""

import argparse
import functools
import os
import pickle
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from popgeo.command_line import OneLineParser, run
from popgeo.compat.import_names import enable
from popgeo.compat.notebook import run_notebook
from popgeo.replaced import replaced


def main() -> int | None:
    """Run the file that the command line names, as Python or Jupyter would."""
    parser = OneLineParser(
        prog="python -m popgeo.compat",
        description="Run a script or notebook written for PopTorch or PopTorch Geometric without changes: "
        "`import poptorch` finds popgeo. Magics and shell commands of a notebook are skipped, with a message.",
        epilog="In the program, poptorch.compat_report() lists the options that were honoured, recorded or ignored.",
    )
    parser.add_argument("--shadow", action="store_true", help="use popgeo's modules even if PopTorch is installed")
    trusts = "let torch.load read any pickle, as before torch 2.6; a pickle can run code, so trust its source"
    parser.add_argument("--trust-files", action="store_true", help=trusts)
    parser.add_argument("program", help="a script (.py) or a notebook (.ipynb)")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program, its sys.argv[1:]")
    asked = parser.parse_args()
    path = Path(asked.program)
    if not path.is_file():
        parser.error(f"file {path} does not exist")
    sys.argv = [str(path), *asked.arguments]
    sys.path[0] = str(path.resolve().parent)
    if asked.trust_files:
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # child processes inherit it
    enable(shadow=asked.shadow)
    try:
        with replaced(torch, "empty", functools.partial(_zeros, torch.empty)):
            if path.suffix == ".ipynb":
                run_notebook(path)
            else:
                runpy.run_path(str(path), run_name="__main__")
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:
        _show(error, str(path))
        return 1
    return None


def _zeros(empty: Callable[..., Tensor], *size: Any, **choices: Any) -> Tensor:
    """Return zeros instead of uninitialized memory, which old programs may read. Fresh memory mostly holds zeros."""
    with torch.no_grad():
        return empty(*size, **choices).zero_()


def _show(error: Exception, program: str) -> None:
    """Print an error as Python prints it, starting with the program's first line."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(program):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
    if isinstance(error, pickle.UnpicklingError) and "weights_only" in str(error):
        print(f"If you trust the file: python -m popgeo.compat --trust-files {program}", file=sys.stderr)


if __name__ == "__main__":
    run(main)
