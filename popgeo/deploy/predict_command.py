"""The command `popgeo predict MODEL DATA --out FILE`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from popgeo import command_parsers
from popgeo.command_line import found_at
from popgeo.convert.atoms import AtomFiles
from popgeo.convert.command import source_of
from popgeo.data.flat_store import FlatStore
from popgeo.deploy.force_field import ForceField
from popgeo.deploy.predictions import check_ending
from popgeo.deploy.predictor import Predictor
from popgeo.deploy.program_file import load
from popgeo.progress import progress


def predict(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit status: 1 if graphs failed, else 0."""
    asked = command_parsers.predict(arguments)
    check_ending(asked.out)
    is_field = Path(asked.model).suffix == ".pt"
    predictor = None if is_field else _predictor(asked)
    graphs: Any = _graphs(asked, predictor is None or predictor.takes_float64)
    files = graphs.file_names if isinstance(graphs, AtomFiles) and Path(asked.source).is_dir() else ()
    if predictor is None:
        predictor, graphs = _with_neighbors(asked, graphs)
    found = replace(predictor(graphs, errors="keep" if asked.keep else "raise"), files=files)
    written = found.save(asked.out)
    for kept in found.errors.values():
        print(f"popgeo: {kept}", file=sys.stderr)
    print(f"{predictor}\nwrote {found} to {', '.join(map(str, written))}")
    return 1 if found.errors else 0


def _graphs(asked: argparse.Namespace, takes_float64: bool) -> Any:
    """Read graphs from a store, or from files that `popgeo convert` reads, in float64 if the model accepts it."""
    if (Path(asked.source) / "manifest.json").exists():
        return FlatStore.open(asked.source)
    asked.labels, asked.double = "none", asked.double or takes_float64
    return source_of(asked)[0]


def _with_neighbors(asked: argparse.Namespace, graphs: Any) -> tuple[Predictor, list[Any]]:
    """Return a predictor for a force field from `popgeo train`, and structures with neighbors up to its cutoff.

    Raises:
        ValueError: `popgeo train` did not write the file, or --cutoff contradicts it.
    """
    field, structures = ForceField.load(asked.model), list[Any]()
    given = getattr(asked, "cutoff", None)
    if given is not None and given != field.cutoff:
        raise ValueError(f"--cutoff is {given}; {asked.model} was trained with {field.cutoff}. Leave --cutoff out.")
    graphs = graphs if hasattr(graphs, "__getitem__") else list(graphs)
    for number in progress(range(len(graphs)), "listing pairs", "structures"):
        try:
            structures.append(field.prepared(graphs[number]))
        except ValueError as error:
            structures.append(error)  # the predictor keeps it, or raises it
    return Predictor(field, forces=True, backend=asked.backend, batch_size=asked.batch_size), structures


def _predictor(asked: argparse.Namespace) -> Predictor:
    """Return a predictor for the model that the command names.

    Raises:
        ValueError: the model cannot be imported or loaded.
    """
    if Path(asked.model).is_file():
        return load(asked.model, asked.backend or "cpu", run_machine_code=asked.run_machine_code)
    if ":" not in asked.model:
        raise ValueError(
            f"MODEL is {asked.model!r}, which is not a file; name a file of popgeo train or popgeo.export, or write "
            "package.module:name of a model or of a function that returns one."
        )
    model = found_at(asked.model)
    choices = {"forces": asked.forces, "backend": asked.backend, "batch_size": asked.batch_size}
    is_lightning = asked.weights is not None and hasattr(model, "load_from_checkpoint")
    if not isinstance(model, nn.Module) and not is_lightning:
        model = model()
    if asked.weights is None:
        return Predictor(model, **choices)
    return Predictor.from_checkpoint(asked.weights, model, **choices)
