"""How a command starts and ends: errors take one line, and nothing is left half done."""

import argparse
import csv
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

Dataset = TypeVar("Dataset")


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without repeating the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists the options\n")


class DefaultsFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_one = action.default is not None and action.default is not False and action.default != []
        return super()._get_help_string(action) if has_one else action.help


def at_least(least: float, kind: type, most: float = sys.float_info.max) -> Callable[[str], float]:
    """Reads a number for argparse and refuses what is too small, or too large, as infinity is."""

    def read(text: str) -> float:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is too small, {least:g} is the least")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text} is too large, {most:g} is the most")
        return value

    read.__name__ = kind.__name__
    return read


# Arguments of argparse for each kind of option, as a table of options calls it.
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "count": {"type": at_least(1, int)},
    "whole": {"type": at_least(0, int)},
    "number": {"type": at_least(0, float)},
    "share": {"type": at_least(0, float, 1)},
    "path": {"type": Path},
    "flag": {"action": "store_true"},
    "any": {"type": float},
    "text": {},
    "list": {"nargs": "+", "default": []},
    "several": {"action": "append", "default": []},
}


def add_options(parser: Any, table: Path, own: Mapping[str, Mapping[str, Any]] = {}) -> dict[str, Any]:
    """Adds the options that a table lists to a parser, and returns its groups by name.

    Args:
        parser: Of a command, or a group of its options.
        table: A file with the columns group, names, kind, default, metavar and help.
        own: Arguments of argparse for the kinds that only this table has.
    """
    groups: dict[str, Any] = {"": parser}
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["group"] not in groups:
                groups[row["group"]] = parser.add_argument_group(row["group"])
            given = {name: row[name] for name in ("default", "metavar", "help") if row[name]}
            groups[row["group"]].add_argument(*row["names"].split(), **{**_KINDS, **own}[row["kind"]], **given)
    return groups


def printable(text: str) -> str:
    r"""The text with control characters as escapes: a name in a file must not move the cursor or colour a terminal.

    Example:
        >>> print(printable("a\x1b[31m\n"), end="")
        a\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in " \n\t" else c.encode("unicode_escape").decode() for c in text)


class PrintableStream:
    """A stream that writes `printable` text; progress bars, which move the cursor, take its `raw` stream."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        self.raw.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def run(main: Callable[[], int | None]) -> None:
    """Runs a script's `main`; if it returns a status other than 0 the process ends with that.

    Ctrl-C, and files, folders or networks that cannot be reached, end the process with one line instead of a trace.

    Example:
        >>> run(lambda: None)
    """
    name = Path(sys.argv[0]).name
    status = None
    try:
        with redirect_stdout(PrintableStream(sys.stdout)), redirect_stderr(PrintableStream(sys.stderr)):
            status = main()
    except KeyboardInterrupt:
        print(f"\n{name}: stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)  # what a shell reports of a program that Ctrl-C ended
    except BrokenPipeError:
        # Whoever read the output, such as `head`, has seen enough; Python would complain once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.exit(f"{name}: {printable(str(error))}")
    if status:
        sys.exit(status)


def found_at(origin: str) -> Any:
    """The object that `module:name` names; the module may be in the current folder, as for `python -m`.

    Raises:
        ValueError: the module cannot be imported, or does not have the name.

    Example:
        >>> found_at("math:sqrt")(4.0)
        2.0
    """
    module, _, name = origin.partition(":")
    try:
        sys.path.insert(0, "")
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{origin} is not found: {error}. Name a factory as package.module:function.") from error
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise ValueError(f"{module} cannot be imported: {described(error)}.") from error
    finally:
        sys.path.remove("")
    return found


def described(error: BaseException) -> str:
    """The kind of an error and its words; of `sys.exit()` what it does."""
    return f"it calls sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"


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
