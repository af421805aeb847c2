"""How a command starts and ends: what is wrong is said in one line, and nothing is left half done."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

Dataset = TypeVar("Dataset")


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without repeating the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists the options\n")


class ShowsDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default not in (None, [], False) else action.help


def run(main: Callable[[], int | None]) -> None:
    """Runs a script's `main`; where it returns a status other than 0 the process ends with that.

    Ctrl-C, and files, folders or networks that cannot be reached, end the process with one line instead of a trace.

    Example:
        >>> run(lambda: None)
    """
    name = Path(sys.argv[0]).name
    status = None
    try:
        status = main()
    except KeyboardInterrupt:
        print(f"\n{name}: stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)  # what a shell reports of a program that Ctrl-C ended
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has seen enough; Python would complain once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.exit(f"{name}: {error}")
    if status:
        sys.exit(status)


def make_folder(folder: Path, option: str = "--out") -> None:
    """Makes the folder that results go to and tries to write there, before any work is done.

    Raises:
        OSError: it cannot be written to.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_folder(Path(folder) / "new" / "run")
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"{option} is {folder}, which cannot be written to: {reason}. Name another.") from error


def pyg_dataset(make: Callable[[], Dataset], files: str) -> Dataset:
    """A dataset of PyG, which downloads what it does not find; without a network, one line says what to put where.

    Args:
        make: Makes the dataset.
        files: The raw files that it reads, with their folder, in words.

    Example:
        >>> pyg_dataset(lambda: [1, 2], "data/MUTAG/raw/MUTAG_A.txt")
        [1, 2]
    """
    try:
        return make()
    except OSError as error:
        name = Path(sys.argv[0]).name
        sys.exit(f"{name}: PyG can neither read nor download the dataset ({error}). Put {files} by hand.")
