"""`popgeo train FILE`: a force field from a file of structures, in one command."""

import argparse
import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from popgeo.atomic_write import write_atomically
from popgeo.command_line import OneLineParser, ShowsDefaults, make_folder
from popgeo.convert.command import keys_of
from popgeo.data import FixedSizeOptions
from popgeo.deploy.force_field import MODELS, ForceField
from popgeo.folder_lock import folder_lock
from popgeo.loader import FixedSizeDataLoader
from popgeo.settings import at_least
from popgeo.train.evaluate import draw_parity, predictions, table
from popgeo.train.fit import BEST, CHECKPOINT, Fit
from popgeo.train.force_loss import LOSSES
from popgeo.train.training_set import UNITS, TrainingSet, as_training_set, drawn_parts, read_structures

SETTINGS = "settings.json"
_MAY_CHANGE = {"out", "resume", "epochs", "patience", "threads"}  # of a run that is gone on with


def train(arguments: Sequence[str]) -> int:
    """Trains what a command line asks for; the exit status is 2 where that cannot be done, 130 after Ctrl-C."""
    asked = _parser().parse_args([_with_dashes(word) for word in arguments])
    try:
        make_folder(asked.out)
        settings = {name: value for name, value in vars(asked).items() if name not in _MAY_CHANGE}
        with folder_lock(asked.out):
            _check_folder(asked.out, asked.resume, json.loads(json.dumps(settings, default=str)))
            return _train(asked)
    except (ValueError, OSError) as error:
        print(f"popgeo: {error}", file=sys.stderr)
        return 2


def _with_dashes(word: str) -> str:
    """An option as it is written here, `--batch-size`, where others write `--batch_size`."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _check_folder(folder: Path, resume: bool, settings: dict[str, object]) -> None:
    """Sees that a run begins in a folder of its own, or goes on with what it was begun with.

    Raises:
        ValueError: it does not.
    """
    begun = (folder / CHECKPOINT).exists()
    if not resume:
        if begun:
            raise ValueError(f"{folder} holds a run. Pass --resume to go on with it, or name another folder by --out.")
        write_atomically(folder / SETTINGS, json.dumps(settings, indent=1).encode())
        return
    if not begun:
        raise ValueError(f"{folder} holds no run to go on with: it has no {CHECKPOINT}. Leave --resume out.")
    before = json.loads((folder / SETTINGS).read_text())
    if other := [name for name in settings if settings[name] != before.get(name)]:
        told = ", ".join(f"--{name.replace('_', '-')} was {before.get(name)}, is {settings[name]}" for name in other)
        raise ValueError(f"The run in {folder} was begun otherwise: {told}. Pass the same, or another --out.")


def _train(asked: argparse.Namespace) -> int:
    torch.manual_seed(asked.seed)
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    data = _read(asked)
    parts = [name for name in data.parts if len(data.parts[name])]
    print("structures: " + ", ".join(f"{len(data.parts[name]):,} for {name}" for name in parts))
    field = _field(asked, data)
    print("energies of elements (eV): " + ", ".join(f"{z}: {data.references[z]:.4f}" for z in field.elements))
    loaders = _loaders(asked, data, parts)
    weights = {name: 1000.0 if asked.weights[name] is None else asked.weights[name] for name in data.labels}
    fit = Fit(field, loaders, weights, asked)
    print(f"model: {asked.model}, {sum(w.numel() for w in field.parameters()):,} weights; learns {weights}")
    print(f"batches: {loaders['train']}", flush=True)
    if asked.resume:
        fit.resume()
        print(f"going on after {fit.epoch} epochs", flush=True)
    status, why = 0, ""
    try:
        for row in fit.run():
            print(_line(row, asked.epochs, len(data.parts["train"])), flush=True)
    except KeyboardInterrupt:
        status, why = 130, f"stopped in epoch {fit.epoch + 1}; go on with --resume --out {asked.out}"
        if not (asked.out / BEST).exists():
            fit.keep_best()
    _tell_results(asked.out, fit, parts, why or fit.why_over)
    return status


def _read(asked: argparse.Namespace) -> TrainingSet:
    """The structures of all files, in their parts."""
    asked.weights = {name: getattr(asked, f"{name}_weight") for name in UNITS}
    wanted = [name for name, weight in asked.weights.items() if weight]
    keys = keys_of(asked.key) | {name: None for name, weight in asked.weights.items() if weight == 0}
    keys |= {name: getattr(asked, f"{name}_key") for name in UNITS if getattr(asked, f"{name}_key")}
    found = {
        name: read_structures(path, asked.cutoff, keys, wanted) if path is not None else []
        for name, path in (("train", asked.source), ("valid", asked.valid), ("test", asked.test))
    }
    valid, test = (0.0 if found[name] else getattr(asked, f"{name}_fraction") for name in ("valid", "test"))
    drawn = drawn_parts(len(found["train"]), valid, test, asked.seed)
    parts = {name: found[name] or [found["train"][i] for i in drawn[name]] for name in ("valid", "test")}
    parts = {"train": [found["train"][i] for i in drawn["train"]], **parts}
    energies = asked.E0s if asked.E0s in ("average", "none") else _energies(asked.E0s)
    return as_training_set(parts, energies, getattr(torch, asked.dtype))


def _energies(text: str) -> dict[int, float]:
    try:
        return {int(z): float(energy) for z, energy in ast.literal_eval(text).items()}
    except (ValueError, SyntaxError, AttributeError, TypeError):
        raise ValueError(
            f"--E0s is {text!r}; write average, none, or energies such as '{{1: -13.6, 8: -2041.8}}'."
        ) from None


def _field(asked: argparse.Namespace, data: TrainingSet) -> ForceField:
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"--device is {asked.device}, and torch finds no such GPU here. Leave it out for the processor."
        )
    settings = {"hidden_channels": asked.num_channels, "num_interactions": asked.num_interactions}
    of_model = {
        "schnet": {"num_filters": asked.num_channels, "num_gaussians": asked.num_radial},
        "painn": {"num_radial": asked.num_radial},
    }
    settings |= {"cutoff": asked.cutoff, **of_model[asked.model]}
    field = ForceField(asked.model, settings, data.references, data.spread)
    return (field.double() if asked.dtype == "float64" else field).to(asked.device)


def _loaders(asked: argparse.Namespace, data: TrainingSet, parts: list[str]) -> dict[str, FixedSizeDataLoader]:
    sizes = FixedSizeOptions.tune(data.store, target_graphs=asked.batch_size, verbose=False)
    return {
        name: FixedSizeDataLoader(
            data.part(name),
            shuffle=name == "train",
            fixed_size_options=sizes,
            fixed_size_strategy="Window" if name == "train" else "StreamPack",
            seed=asked.seed,
            device=None if asked.device == "cpu" else asked.device,
        )
        for name in parts
    }


def _line(row: dict[str, float], epochs: int, count: int) -> str:
    errors = ", ".join(f"{name.removesuffix(' MAE')} {value:.3g}" for name, value in row.items() if "MAE" in name)
    losses = f"train loss {row['train loss']:.4g}, valid loss {row['valid loss']:.4g}"
    return f"epoch {row['epoch']}/{epochs}: {losses}; {errors}; {count / row['seconds']:,.0f} structures/s"


def _tell_results(folder: Path, fit: Fit, parts: list[str], why: str) -> None:
    """Prints the errors of the best weights and writes all results."""
    fit.best.load_state_dict(ForceField.load(folder / BEST).state_dict())
    found = {name: predictions(fit.evaluate, fit.loaders[name], fit.labels) for name in parts}
    last = parts[-1]
    nothing = {name: (label, torch.zeros_like(label)) for name, (label, _) in found[last].items()}
    errors = table({**found, f"{last}, if 0 were predicted": nothing})
    two_lines = errors.set_axis(pd.MultiIndex.from_tuples([name.rsplit(" ", 1) for name in errors]), axis=1)
    shown = two_lines.to_string(float_format="{:.3g}".format)
    text = f"{why}; the best was epoch {int(fit.reached['best_epoch'])}\n\n{shown}"
    print(f"\n{text}")
    write_atomically(folder / "errors.csv", errors.to_csv(index_label="part").encode())
    write_atomically(folder / "summary.txt", f"{text}\n".encode())
    draw_parity(found[last], f"predicted for {last}", folder / "parity.png")
    print(f"\nwrote {BEST}, log.csv, errors.csv, summary.txt, parity.png and {CHECKPOINT} to {folder}/")
    print(f"use it: popgeo predict {folder / BEST} FILE --out results.csv")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="popgeo train",
        description="Trains a force field on energies, forces and stress of structures, as one compiled step on "
        "batches of fixed size; writes the weights, a log, tables of errors and a picture of parity. Energies are in "
        "eV, lengths in angstrom, as in ASE. Options may be written with _ for -.",
        epilog="Ctrl-C stops after the batch and keeps what was reached; --resume goes on as if it had not happened.",
        formatter_class=ShowsDefaults,
    )
    count, share, number = at_least(1, int), at_least(0, float), at_least(0, float)
    add = parser.add_argument
    add("source", type=Path, metavar="FILE", help="extended XYZ, a database or trajectory of ASE, MACE's HDF5, or a "
        "store that popgeo convert wrote")  # fmt: skip
    add("--out", type=Path, default=Path("popgeo-train"), help="folder that the results are written to")
    add("--resume", "--restart-latest", action="store_true", help="go on with the run in --out")
    add("--seed", type=at_least(0, int), default=0, help="what weights, split and order are drawn from")
    of_data = parser.add_argument_group("data").add_argument
    of_data("--valid", "--valid-file", type=Path, help="structures to validate on, instead of a share of FILE")
    of_data("--test", "--test-file", type=Path, help="structures to test on, instead of a share of FILE")
    of_data("--valid-fraction", type=share, default=0.1, help="share of FILE kept for validation")
    of_data("--test-fraction", type=share, default=0.1, help="share of FILE kept for the test")
    for name in UNITS:
        of_data(f"--{name}-key", metavar="NAME", help=f"what the file calls {name}, if not {name} or REF_{name}")
    of_data("--key", action="append", default=[], metavar="NAME=KEY", help="what it calls weight; NAME= leaves it out")
    of_data("--E0s", default="average", help="energies of elements in eV: average, by least squares; none; or as "
            "'{1: -13.6, 8: -2041.8}'")  # fmt: skip
    of_model = parser.add_argument_group("model").add_argument
    of_model("--model", choices=list(MODELS), default="painn", help="the network")
    of_model("--cutoff", "--r-max", type=number, default=5.0, help="longest interaction, in angstrom")
    of_model("--num-channels", type=count, default=64, help="features of an atom")
    of_model("--num-interactions", type=count, default=3, help="blocks")
    of_model("--num-radial", "--num-radial-basis", type=count, default=20, help="functions that expand a distance")
    of_model("--dtype", "--default-dtype", choices=["float32", "float64"], default="float32", help="of all numbers")
    of_fit = parser.add_argument_group("training").add_argument
    of_fit("--epochs", "--max-num-epochs", type=count, default=100, help="passes over the structures at most")
    of_fit("--batch-size", type=count, default=10, help="structures of a batch on average")
    of_fit("--loss", choices=list(LOSSES), default="mse", help="of each error; huber: squared below 0.01")
    of_fit("--energy-weight", type=number, default=100.0, help="weight of energies an atom in the loss")
    of_fit("--forces-weight", type=number, default=100.0, help="weight of forces; 0 trains without")
    of_fit("--stress-weight", type=number, help="weight of stress; 0 trains without (default: 1000 where there is any)")
    of_fit("--lr", type=number, default=2e-3, help="first learning rate of AdamW")
    of_fit("--lr-factor", type=share, default=0.8, help="what it is multiplied by where validation stands still")
    of_fit("--lr-patience", "--scheduler-patience", type=count, default=10, help="epochs before it falls")
    of_fit("--weight-decay", type=number, default=0.0, help="decay of weights")
    of_fit("--clip-grad", type=number, help="longest gradient of an update (default: any)")
    of_fit("--ema-decay", type=share, default=0.99, help="of the average of weights that is kept; 0: no average")
    of_fit("--patience", type=count, default=50, help="epochs without a better one before the run ends")
    of_fit("--device", default="cpu", help="cpu, or a GPU, such as cuda")
    of_fit("--threads", type=count, help="threads of torch (default: as torch chooses)")
    return parser
