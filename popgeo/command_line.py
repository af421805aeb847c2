"""Tools of the commands: parsers with one-line errors, folders for results, and the end of a process."""

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
    """A parser that reports an error in one line, without repeating the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print the error in one line and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help lists the options\n")


class DefaultsFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """A help formatter that adds the default of each option with a default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_flag = action.nargs == 0 or action.default is False
        has_one = not is_flag and action.default is not None and action.default != []
        return super()._get_help_string(action) if has_one else action.help


def at_least(least: float, kind: type, most: float = sys.float_info.max) -> Callable[[str], float]:
    """Return a number type for argparse that rejects numbers below `least` or above `most`, and infinity."""

    def read(text: str) -> float:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is too small, {least:g} is the least")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text} is too large, {most:g} is the most")
        return value

    read.__name__ = kind.__name__
    return read


# Arguments of argparse for each kind of option that a table of options names.
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
    """Add the options in a table to a parser and return the parser's groups by name.

    Args:
        parser: Parser of a command, or a group of its options.
        table: CSV file with the columns group, names, kind, default, metavar and help.
        own: Arguments of argparse for kinds that only this table uses. Default: none.
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
    r"""Return the text with control characters as escapes, since a name in a file must not control a terminal.

    Example:
        >>> print(printable("a\x1b[31m\n"), end="")
        a\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in " \n\t" else c.encode("unicode_escape").decode() for c in text)


class PrintableStream:
    """A stream that writes `printable` text; progress bars, which move the cursor, use its `raw` stream."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write a text with escaped control characters."""
        self.raw.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts with escaped control characters."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def run(main: Callable[[], int | None]) -> None:
    """Run a script's `main` and end the process with the status that it returns, unless that is 0.

    After Ctrl-C, or if a file, folder or network cannot be reached, the process ends with one line instead of a trace.

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
        sys.exit(130)  # the status that shells report after Ctrl-C
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended; Python would report the closed pipe again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.exit(f"{name}: {printable(str(error))}")
    if status:
        sys.exit(status)


def found_at(origin: str) -> Any:
    """Return the object that `module:name` names; the module may be in the current folder, as for `python -m`.

    Raises:
        ValueError: The module cannot be imported, or does not have the name.

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
    except (Exception, SystemExit) as error:  # the import of a module may raise anything
        raise ValueError(f"{module} cannot be imported: {described(error)}.") from error
    finally:
        sys.path.remove("")
    return found


def described(error: BaseException) -> str:
    """Return the class and the message of an error, or the status of a `SystemExit`."""
    return f"it calls sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"


def make_folder(folder: Path, option: str = "--out") -> None:
    """Make the folder of the results and test that it can be written to, before any work is done.

    Raises:
        OSError: The folder cannot be written to.

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
    """Make a dataset of PyG; if its download fails, exit with one line that names the missing files.

    Args:
        make: Function that makes the dataset.
        files: Description of the dataset's raw files, with their folder.

    Example:
        >>> pyg_dataset(lambda: [1, 2], "data/MUTAG/raw/MUTAG_A.txt")
        [1, 2]
    """
    try:
        return make()
    except OSError as error:
        name = Path(sys.argv[0]).name
        sys.exit(f"{name}: PyG can neither read nor download the dataset ({error}). Put {files} by hand.")
