"""Parsers of all commands of `popgeo`. They import nothing slow, so `--help` and a wrong option answer at once."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from popgeo.command_line import DefaultsFormatter, OneLineParser, add_options, at_least

_PACKAGE = Path(__file__).parent
MODEL_NAMES = ("schnet", "painn")
LOSS_NAMES = ("mse", "mae", "huber")


def demo(arguments: Sequence[str], version: str = "") -> argparse.Namespace:
    """Return the settings of the demo; `popgeo --help` explains each."""
    parser = OneLineParser(
        prog="popgeo",
        usage="popgeo [demo] [options] | popgeo convert | info | train | compare | predict | report ...",
        description="The demo trains SchNet on the HOMO-LUMO gap of small molecules, with batches of fixed size and "
        "the simulated IPU. It prints errors, and writes figures, predictions, weights and a report. The other "
        "commands, each with --help: popgeo convert writes a dataset to disk; popgeo info prints the content of a "
        "store, a run or a model, or, without an argument, whether the compiled kernels are in use; popgeo train "
        "trains a force field; popgeo compare compares runs of popgeo train; popgeo predict computes the results of "
        "a model; popgeo report prints a report of the simulated IPU.",
        epilog="python -m popgeo is the same command.",
        formatter_class=DefaultsFormatter,
    )
    parser.add_argument("--version", action="version", version=f"popgeo {version}")
    own: dict[str, Any] = {"dataset": {"choices": ["molecules", "qm9"]}, "limit": {"type": at_least(10, int)}}
    add_options(parser, _PACKAGE / "demo_options.csv", own)
    return parser.parse_args(arguments)


def convert(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of `popgeo convert`."""
    parser = OneLineParser(
        prog="popgeo convert",
        description="Writes a dataset to a folder, as a store that FlatStore.open opens without reading all of it.",
    )
    add_options(parser, _PACKAGE / "convert" / "convert_options.csv")
    _add_source(parser)
    return parser.parse_args(arguments)


def info(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of `popgeo info`."""
    parser = OneLineParser(
        prog="popgeo info",
        description="Prints the content of a store or a file of structures, good sizes of batches, and probable "
        "faults; or the results of a run of popgeo train; or the settings of a model.pt. Without a path it prints "
        "the installed versions, and whether popgeo's compiled kernels are in use.",
    )
    own: dict[str, Any] = {"store": {"type": Path, "nargs": "?"}, "graphs": {"type": int}}
    add_options(parser, _PACKAGE / "info_options.csv", own)
    _add_atoms(parser.add_argument_group("files of atoms"))
    return parser.parse_args(arguments)


def report(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of `popgeo report`."""
    parser = OneLineParser(prog="popgeo report", description="Prints a report of the simulated IPU.")
    add_options(parser, _PACKAGE / "report_options.csv")
    return parser.parse_args(arguments)


def predict(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of `popgeo predict`."""
    parser = OneLineParser(
        prog="popgeo predict",
        description="Writes the results of a model for graphs of any sizes, in the order of the graphs.",
    )
    own: dict[str, Any] = {"needed": {"type": Path, "required": True}}
    add_options(parser, _PACKAGE / "deploy" / "predict_options.csv", own)
    _add_source(parser)
    return parser.parse_args(arguments)


def compare(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of `popgeo compare`."""
    parser = OneLineParser(
        prog="popgeo compare",
        description="Prints a table of runs of popgeo train with their errors and the settings that differ, and draws "
        "their losses in one picture.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs of popgeo train")
    parser.add_argument(
        "--out", type=Path, default=Path("compare.png"), help="file for the picture (default: compare.png)"
    )
    return parser.parse_args(arguments)


def train(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of `popgeo train`; options on the command line win over settings of `--config FILE`.

    Raises:
        ValueError: The file of settings cannot be read, or a setting in it is not the name of an option.
    """
    words, parser = train_words(arguments), train_parser()
    parser.set_defaults(**settings_in(parser.parse_args(words).config))
    return parser.parse_args(words)


def train_parser() -> argparse.ArgumentParser:
    """Return the parser of `popgeo train`."""
    parser = OneLineParser(
        prog="popgeo train",
        description="Trains a force field on energies, forces and stress of structures, with a compiled step and "
        "batches of fixed size. Writes the weights, a log, tables of errors, and a picture of predictions over labels. "
        "Energies are in eV, lengths in angstrom, as in ASE. In the names of options you may write _ instead of -.",
        epilog="Ctrl-C stops after the current batch and saves the run; --resume continues it without any difference.",
        formatter_class=DefaultsFormatter,
    )
    choices = {"model": MODEL_NAMES, "loss": LOSS_NAMES, "dtype": ("float32", "float64")}
    own: dict[str, Any] = {name: {"choices": names} for name, names in choices.items()}
    own["file"] = {"type": Path, "nargs": "?"}
    _add_atoms(add_options(parser, _PACKAGE / "train" / "options.csv", own)["data"])
    return parser


def train_words(arguments: Sequence[str]) -> list[str]:
    """Return a command line with `-` for each `_` in names of options: `--batch-size` for `--batch_size`.

    Example:
        >>> train_words(["a_b.xyz", "--batch_size=2", "--config", "a_b.json"])
        ['a_b.xyz', '--batch-size=2', '--config', 'a_b.json']
    """
    parts = [word.partition("=") if word.startswith("--") else ("", "", word) for word in arguments]
    return [name.replace("_", "-") + equals + value for name, equals, value in parts]


def settings_in(path: Path | None) -> dict[str, Any]:
    """Return the settings of `popgeo train` in a JSON file, such as `settings.json` of a run; none without a file.

    Raises:
        ValueError: The file cannot be read, or a setting in it is not the name of an option.
    """
    if path is None:
        return {}
    try:
        settings = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"--config {path} is not JSON: {error}. Take settings.json of a run as an example.") from error
    parser = train_parser()
    options = {action.dest: action for action in parser._actions if action.dest not in ("help", "config")}
    if not isinstance(settings, dict) or settings.keys() - options:
        unknown = sorted(settings.keys() - options) if isinstance(settings, dict) else type(settings).__name__
        raise ValueError(f"--config {path} has {unknown}; its settings are {', '.join(options)}.")
    return {name: vars(parser.parse_args(_words(options[name], own)))[name] for name, own in settings.items()}


def _words(action: argparse.Action, value: Any) -> list[str]:
    """Return an option and its value as words; no words for null, an empty list, or the default of a flag.

    Raises:
        ValueError: The value of a flag is neither of its two values.
    """
    if value is None or (value == [] and action.default == []):
        return []
    option = [name for name in action.option_strings if name.startswith("--")][:1]  # empty for FILE
    if action.nargs == 0:  # a flag, or an option that stores a constant
        if value not in (action.const, action.default):
            allowed = " or ".join(map(json.dumps, (action.const, action.default)))
            raise ValueError(f"--config has {json.dumps(value)} as {action.dest}; it is {allowed}.")
        return option if value == action.const else []
    if isinstance(action, argparse._AppendAction):
        return [word for one in value for word in (*option, str(one))]
    return [*option, *map(str, value if isinstance(value, list) else [value])]


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options of a source of graphs."""
    own: dict[str, Any] = {"names": {"nargs": "+"}, "seed": {"type": int}}
    *_, of_atoms = add_options(parser, _PACKAGE / "convert" / "source_options.csv", own).values()
    _add_atoms(of_atoms)


def _add_atoms(parser: argparse._ArgumentGroup) -> None:
    """Add the options of labels in a file of atoms; see `read_atoms`."""
    partial_labels = {"dest": "labels", "action": "store_const", "const": "partial"}
    add_options(parser, _PACKAGE / "convert" / "atom_options.csv", {"partial": partial_labels})
