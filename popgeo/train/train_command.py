"""`popgeo train FILE`: train a force field on a file of structures."""

import argparse
import ast
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from popgeo import command_parsers
from popgeo.atomic_write import write_atomically
from popgeo.command_line import make_folder
from popgeo.convert.command import atoms_options
from popgeo.convert.set_checks import with_one_head
from popgeo.data import FixedSizeOptions
from popgeo.deploy.force_field import MODELS, ForceField
from popgeo.folder_lock import folder_lock
from popgeo.loader import FixedSizeDataLoader
from popgeo.plots.training import error_curves
from popgeo.train.evaluate import doubts, draw, draw_parity, predictions, table
from popgeo.train.fit import BEST, CHECKPOINT, Fit
from popgeo.train.run_settings import begun, of_run
from popgeo.train.training_set import UNITS, TrainingSet, as_training_set, drawn_parts, read_structures

# Option of each setting of a network; arguments of each network.
_OPTIONS = {"num_filters": "num_channels", "hidden_channels": "num_channels", "num_interactions": "num_interactions"}
_OPTIONS |= {"num_gaussians": "num_radial", "num_radial": "num_radial"}
_TAKEN = {name: signature(network).parameters.keys() for name, network in MODELS.items()}


def train(arguments: Sequence[str]) -> int:
    """Train a force field with the options of a command line; the exit status is 130 after Ctrl-C."""
    asked = command_parsers.train(arguments)
    make_folder(asked.out)
    with folder_lock(asked.out):
        return _train(of_run(asked, command_parsers.train_words(arguments)) if asked.resume else begun(asked))


def _train(asked: argparse.Namespace) -> int:
    torch.manual_seed(asked.seed)
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    before = None if asked.init is None else _taken_over(asked)
    data = _read(asked, None if before is None or asked.recompute_E0s else before.references)
    parts = [name for name in data.parts if len(data.parts[name])]
    print("".join(f"note: {remark}\n" for remark in data.remarks), end="")
    print("structures: " + ", ".join(f"{len(data.parts[name]):,} for {name}" for name in parts))
    field = _field(asked, data, before)
    print("energies of elements (eV): " + ", ".join(f"{z}: {data.references[z]:.4f}" for z in field.elements))
    loaders = _loaders(asked, data, parts)
    weights = {name: 1000.0 if asked.weights[name] is None else asked.weights[name] for name in data.labels}
    if not weights:
        raise ValueError("Nothing is learned: the weights of energy, forces and stress are 0, or there are no labels.")
    fit = Fit(field, loaders, weights, asked, data.checksums)
    weighted = "; structures and labels count by their weights" if data.is_weighted else ""
    print(f"model: {asked.model}, {sum(w.numel() for w in field.parameters()):,} weights; learns {weights}{weighted}")
    print(f"batches: {loaders['train']}", flush=True)
    if asked.resume:
        fit.resume()
        print(f"continuing after {fit.epoch} epochs", flush=True)
    status, why, log = 0, "", _tensorboard(asked)
    try:
        for row in fit.run():
            print(_line(row, asked.epochs, len(data.parts["train"])), flush=True)
            log(row)
    except KeyboardInterrupt:
        status, why = 130, f"stopped in epoch {fit.epoch + 1}; continue with --resume --out {asked.out}"
        if not (asked.out / BEST).exists():
            fit.best.save(asked.out / BEST)
    _tell_results(asked.out, fit, parts, why or fit.why_over, data.is_weighted)
    return status


def _tensorboard(asked: argparse.Namespace) -> Callable[[dict[str, float]], None]:
    """Return a function that writes an epoch's row to TensorBoard, or does nothing without `--tensorboard`.

    Raises:
        ValueError: The package tensorboard is not installed.
    """
    if not asked.tensorboard:
        return lambda row: None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError("--tensorboard needs tensorboard: pip install tensorboard.") from error
    writer = SummaryWriter(str(asked.out / "tensorboard"))

    def log(row: dict[str, float]) -> None:
        for name, value in row.items():
            if name != "epoch":
                writer.add_scalar(name.replace("^", ""), value, int(row["epoch"]))
        writer.flush()

    return log


def _taken_over(asked: argparse.Namespace) -> ForceField:
    """Load the force field that `--init` names, and set the options of its architecture.

    Raises:
        ValueError: An option contradicts its architecture.
    """
    field = ForceField.load(asked.init)
    own = {option: field.settings[name] for name, option in _OPTIONS.items() if name in field.settings}
    own |= {"model": field.name, "cutoff": field.cutoff}
    defaults = vars(command_parsers.train([]))
    for name, value in own.items():
        if getattr(asked, name) not in (value, defaults[name]):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} is {getattr(asked, name)}, {asked.init} has {value}. Leave the option out.")
        setattr(asked, name, value)
    return field


def _read(asked: argparse.Namespace, fixed: Tensor | None) -> TrainingSet:
    """Read the structures of all files and divide them into parts."""
    asked.weights = {name: getattr(asked, f"{name}_weight") for name in UNITS}
    wanted = [name for name, weight in asked.weights.items() if weight]
    options = atoms_options(asked)
    options["keys"] |= {name: getattr(asked, f"{name}_key") for name in UNITS if getattr(asked, f"{name}_key")}
    options["keys"] |= {name: None for name, weight in asked.weights.items() if weight == 0}
    paths = {"train": asked.source, "valid": asked.valid, "test": asked.test}
    found = {name: read_structures(path, asked.cutoff, options, wanted) if path else [] for name, path in paths.items()}
    found = with_one_head(found, paths, asked.head)
    valid, test = (0.0 if found[name] else getattr(asked, f"{name}_fraction") for name in ("valid", "test"))
    drawn = drawn_parts(len(found["train"]), valid, test, asked.seed)
    parts = {name: found[name] or [found["train"][i] for i in drawn[name]] for name in ("valid", "test")}
    parts = {"train": [found["train"][i] for i in drawn["train"]], **parts}
    energies = asked.E0s if asked.E0s in ("average", "none") else _energies(asked.E0s)
    return as_training_set(parts, energies, getattr(torch, asked.dtype), fixed, wanted)


def _energies(text: str) -> dict[int, float]:
    try:
        return {int(z): float(energy) for z, energy in ast.literal_eval(text).items()}
    except (ValueError, SyntaxError, AttributeError, TypeError):
        example = "'{1: -13.6, 8: -2041.8}'"
        raise ValueError(f"--E0s is {text!r}; write average, none, or energies such as {example}.") from None


def _field(asked: argparse.Namespace, data: TrainingSet, before: ForceField | None) -> ForceField:
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device is {asked.device}, and torch finds no GPU. Leave it out for the processor.")
    if before is not None:
        spread = data.spread if asked.recompute_E0s else float(before.scale)
        field = ForceField(before.name, before.settings, data.references, spread)
        field.net.load_state_dict(before.net.state_dict())
    else:
        settings = {name: getattr(asked, option) for name, option in _OPTIONS.items() if name in _TAKEN[asked.model]}
        field = ForceField(asked.model, {**settings, "cutoff": asked.cutoff}, data.references, data.spread)
    return (field.double() if asked.dtype == "float64" else field).to(asked.device)


def _loaders(asked: argparse.Namespace, data: TrainingSet, parts: list[str]) -> dict[str, FixedSizeDataLoader]:
    sizes = FixedSizeOptions.tune(data.store, target_graphs=asked.batch_size, verbose=False)
    return {
        name: FixedSizeDataLoader(
            data.parts[name],
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


def _tell_results(folder: Path, fit: Fit, parts: list[str], why: str, is_weighted: bool) -> None:
    """Print the errors of the best weights and write all results."""
    fit.best.load_state_dict(ForceField.load(folder / BEST).state_dict())
    found = {name: predictions(fit.evaluate, fit.loaders[name], fit.labels)[0] for name in parts}
    last = parts[-1]
    nothing = {name: pair._replace(predicted=torch.zeros_like(pair.label)) for name, pair in found[last].items()}
    errors = table({**found, f"{last}, if 0 were predicted": nothing})
    two_lines = errors.set_axis(pd.MultiIndex.from_tuples([name.rsplit(" ", 1) for name in errors]), axis=1)
    shown = two_lines.to_string(float_format="{:.3g}".format)
    weighted = "errors are weighted as the loss is\n" if is_weighted else ""
    text = f"{why}; the best was epoch {int(fit.reached['best_epoch'])}\n\n{weighted}{shown}"
    print(f"\n{text}")
    for doubt in doubts(found["train"]):
        print(f"\nlook at {doubt}")
    write_atomically(folder / "errors.csv", errors.to_csv(index_label="part").encode())
    write_atomically(folder / "summary.txt", f"{text}\n".encode())
    draw_parity(found[last], f"predicted for {last}", folder / "parity.png")
    if fit.history:
        draw(error_curves(pd.DataFrame(fit.history))[0], folder / "loss.png")
    print(f"\nwrote {BEST}, log.csv, errors.csv, summary.txt, parity.png, loss.png and {CHECKPOINT} to {folder}/")
    print(f"use it: popgeo predict {folder / BEST} FILE --out results.csv")
