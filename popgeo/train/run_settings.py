"""The options of `popgeo train`, and the file in which a run keeps them for `--resume`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from popgeo.atomic_write import write_atomically
from popgeo.command_line import OneLineParser, ShowsDefaults
from popgeo.convert.command import add_atoms
from popgeo.deploy.force_field import MODELS
from popgeo.settings import at_least
from popgeo.train.fit import CHECKPOINT
from popgeo.train.force_loss import LOSSES
from popgeo.train.training_set import UNITS

SETTINGS = "settings.json"
_MAY_CHANGE = {"out", "resume", "epochs", "patience", "threads", "device"}  # of a run that is resumed


def with_dashes(word: str) -> str:
    """An option as it is written here, `--batch-size`, where others write `--batch_size`."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def begun(asked: argparse.Namespace) -> argparse.Namespace:
    """Notes the settings of a new run in its folder, for `--resume`.

    Raises:
        ValueError: the folder holds a run, or no file is named.
    """
    if (asked.out / CHECKPOINT).exists():
        raise ValueError(f"{asked.out} holds a run. Pass --resume to continue it, or name another folder by --out.")
    if asked.source is None:
        raise ValueError("FILE is missing: name the structures to train on, or pass --resume to continue a run.")
    write_atomically(asked.out / SETTINGS, json.dumps(_as_json(asked), indent=1).encode())
    return asked


def of_run(asked: argparse.Namespace, words: Sequence[str]) -> argparse.Namespace:
    """The settings of the run in a folder, with those that may change taken from the command line.

    Raises:
        ValueError: the folder holds no run, its settings are damaged, or another setting is stated.
    """
    if not (asked.out / CHECKPOINT).exists():
        raise ValueError(f"{asked.out} holds no run to continue: it has no {CHECKPOINT}. Leave --resume out.")
    path, given = asked.out / SETTINGS, _given(words)
    try:
        before = json.loads(path.read_text())
        kept = {name: before[name] for name in vars(asked) if name not in (_MAY_CHANGE & given | {"out", "resume"})}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} was not written by `popgeo train`: {error!r}. Start a run with --init.") from error
    now = _as_json(asked)
    if other := [name for name in given - _MAY_CHANGE if now[name] != before[name]]:
        told = ", ".join(f"--{name.replace('_', '-')} was {before[name]}, is {now[name]}" for name in sorted(other))
        raise ValueError(f"The run in {asked.out} has other settings: {told}. Leave them out, or pass another --out.")
    kept |= {"out": asked.out, "resume": True}
    paths = {name: Path(kept[name]) for name in ("source", "valid", "test", "init") if kept[name] is not None}
    return argparse.Namespace(**{**vars(asked), **kept, **paths})


def _given(words: Sequence[str]) -> set[str]:
    """The settings that a command line states, without those that have their defaults."""
    silent = parser()
    for action in silent._actions:
        action.default = argparse.SUPPRESS
    return {name for name, value in vars(silent.parse_args(words)).items() if str(value) != argparse.SUPPRESS}


def _as_json(asked: argparse.Namespace) -> dict[str, Any]:
    """The settings as they are written down, with paths that hold from any folder."""
    return {
        name: str(value.absolute()) if isinstance(value, Path) else value
        for name, value in vars(asked).items()
        if name not in ("out", "resume")
    }


def parser() -> argparse.ArgumentParser:
    """Reads the options."""
    made = OneLineParser(
        prog="popgeo train",
        description="Trains a force field on energies, forces and stress of structures, as one compiled step on "
        "batches of fixed size; writes the weights, a log, tables of errors and a picture of parity. Energies are in "
        "eV, lengths in angstrom, as in ASE. Options may be written with _ for -.",
        epilog="Ctrl-C stops after the batch and keeps what was reached; --resume continues as if it had not happened.",
        formatter_class=ShowsDefaults,
    )
    count, share, number = at_least(1, int), at_least(0, float), at_least(0, float)
    add = made.add_argument
    add("source", type=Path, nargs="?", metavar="FILE", help="extended XYZ, a database or trajectory of ASE, MACE's "
        "HDF5, or a store that popgeo convert wrote")  # fmt: skip
    add("--out", type=Path, default=Path("popgeo-train"), help="folder that the results are written to")
    add("--resume", "--restart-latest", action="store_true", help="continue the run in --out with its settings")
    add("--init", type=Path, metavar="MODEL", help="start from the weights and the element energies of a model.pt")
    add("--recompute-E0s", action="store_true", help="with --init: fit energies of elements and the scale again")
    add("--seed", type=at_least(0, int), default=0, help="what weights, split and order are drawn from")
    data = made.add_argument_group("data")
    of_data = data.add_argument
    of_data("--valid", "--valid-file", type=Path, help="structures to validate on, instead of a share of FILE")
    of_data("--test", "--test-file", type=Path, help="structures to test on, instead of a share of FILE")
    of_data("--valid-fraction", type=share, default=0.1, help="share of FILE kept for validation")
    of_data("--test-fraction", type=share, default=0.1, help="share of FILE kept for the test")
    for name in UNITS:
        of_data(f"--{name}-key", metavar="NAME", help=f"what the file calls {name}, if not {name} or REF_{name}")
    add_atoms(data)
    of_data("--E0s", default="average", help="energies of elements in eV: average, by least squares; none; or as "
            "'{1: -13.6, 8: -2041.8}'")  # fmt: skip
    of_model = made.add_argument_group("model").add_argument
    of_model("--model", choices=list(MODELS), default="painn", help="the network")
    of_model("--cutoff", "--r-max", type=number, default=5.0, help="longest interaction, in angstrom")
    of_model("--num-channels", type=count, default=64, help="features of an atom")
    of_model("--num-interactions", type=count, default=3, help="blocks")
    of_model("--num-radial", "--num-radial-basis", type=count, default=20, help="functions that expand a distance")
    of_model("--dtype", "--default-dtype", choices=["float32", "float64"], default="float32", help="of all numbers")
    of_fit = made.add_argument_group("training").add_argument
    of_fit("--epochs", "--max-num-epochs", type=count, default=100, help="passes over the structures at most")
    of_fit("--batch-size", type=count, default=10, help="structures of a batch on average")
    of_fit("--loss", choices=list(LOSSES), default="mse", help="of each error; huber: squared below 0.01")
    of_fit("--energy-weight", type=number, default=100.0, help="weight of energies per atom; 0 trains without")
    of_fit("--forces-weight", type=number, default=100.0, help="weight of forces; 0 trains without")
    of_fit("--stress-weight", type=number, help="weight of stress; 0 trains without (default: 1000 if there is any)")
    of_fit("--lr", type=number, default=2e-3, help="first learning rate of AdamW")
    of_fit("--lr-factor", type=share, default=0.8, help="what it is multiplied by where validation stands still")
    of_fit("--lr-patience", "--scheduler-patience", type=count, default=10, help="epochs before it falls")
    of_fit("--weight-decay", type=number, default=0.0, help="decay of weights")
    of_fit("--clip-grad", type=number, help="longest gradient of an update (default: any)")
    of_fit("--ema-decay", type=share, default=0.99, help="of the average of weights that is kept; 0: no average")
    of_fit("--patience", type=count, default=50, help="epochs without a better one before the run ends")
    of_fit("--device", default="cpu", help="cpu, or a GPU, such as cuda")
    of_fit("--tensorboard", action="store_true", help="write logs for TensorBoard to --out, too")
    of_fit("--threads", type=count, help="threads of torch (default: as torch chooses)")
    return made
