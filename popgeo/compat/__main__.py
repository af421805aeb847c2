"""`python -m popgeo.compat program.py [arguments]`: runs a program that was written for PopTorch, as it is."""

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
    """Runs the file that the command line names, as Python itself or Jupyter would."""
    parser = OneLineParser(
        prog="python -m popgeo.compat",
        description="Runs a script or a notebook that was written for PopTorch or PopTorch Geometric, unchanged: "
        "`import poptorch` finds popgeo. Magics and shell commands of a notebook are left out, and said so.",
        epilog="In the program, poptorch.compat_report() tells what of it was honoured, recorded or ignored.",
    )
    parser.add_argument("--shadow", action="store_true", help="take popgeo's modules also where PopTorch is installed")
    trusts = "let torch.load read any pickle, as before torch 2.6; a pickle can run code, so only for files you trust"
    parser.add_argument("--trust-files", action="store_true", help=trusts)
    parser.add_argument("program", help="a script (.py) or a notebook (.ipynb)")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given as sys.argv[1:]")
    asked = parser.parse_args()
    path = Path(asked.program)
    if not path.is_file():
        parser.error(f"there is no file {path}")
    sys.argv = [str(path), *asked.arguments]
    sys.path[0] = str(path.resolve().parent)
    if asked.trust_files:
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # which the program's own processes inherit
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
    """What old programs find in memory that they do not write before they read it, as fresh memory mostly holds it."""
    with torch.no_grad():
        return empty(*size, **choices).zero_()


def _show(error: Exception, program: str) -> None:
    """Prints an error as Python prints it, from the program's own first line on."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(program):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
    if isinstance(error, pickle.UnpicklingError) and "weights_only" in str(error):
        print(f"If you trust the file: python -m popgeo.compat --trust-files {program}", file=sys.stderr)


if __name__ == "__main__":
    run(main)
