"""The command `popgeo convert SOURCE FOLDER`, which reads a source with its options and writes a store."""

import argparse
import ast
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from popgeo import command_parsers
from popgeo.convert.atoms import read_atoms
from popgeo.convert.pyg import dataset_by_name, read_pt
from popgeo.convert.smiles import read_smiles
from popgeo.data import write

_TABLES = {".csv", ".tsv", ".smi"}


def convert(arguments: Sequence[str]) -> int:
    """Convert the source of a command line to a store."""
    asked = command_parsers.convert(arguments)
    graphs, options = source_of(asked)
    store = write(graphs, asked.folder, **options)
    listed = {one.name: one.tensor for one in store.attributes if one.is_tensor}
    if "cutoff" in listed and not listed["edge_index"].numel():
        warnings.warn(
            f"No atom has a neighbor within the cutoff of {asked.cutoff:g} angstrom. Raise --cutoff, or correct the "
            "unit of positions: --units length=nm or length=bohr.",
            stacklevel=1,
        )
    print(f"wrote {store} to {asked.folder}/")
    return 0


def source_of(asked: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the graphs of the source and the options for writing.

    Raises:
        ValueError: the source does not exist.
    """
    path = Path(asked.source)
    written = {"sort_edges": asked.sort_edges, "validate": True, "exclude_keys": asked.exclude}
    if not path.exists():
        options = dict(_option(text) for text in asked.option)
        return dataset_by_name(asked.source, asked.root, options), written
    if path.suffix == ".pt":
        return read_pt(path, asked.trust), written
    if _TABLES & set(path.suffixes):
        reader = partial(read_smiles, path, column=asked.column, targets=asked.targets, skip=asked.skip)
        return reader(positions=asked.positions, seed=asked.seed), written
    structures = read_atoms(path, cutoff=asked.cutoff, double=asked.double, **atoms_options(asked))
    return structures, {**written, "levels": structures.levels}


def atoms_options(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `read_atoms` from the options for atoms."""
    return {
        "keys": keys_of(asked.key),
        "units": dict(map(_pair, asked.units)),
        "levels": dict(map(_pair, asked.level)),
        "labels": asked.labels,
    }


def keys_of(texts: Sequence[str]) -> dict[str, str | None]:
    """Return the keys of attributes from texts such as `["energy=dft_energy", "head="]`; None leaves a key out."""
    return {name: called or None for name, called in map(_pair, texts)}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} has no =; write NAME=VALUE.")
    return name, value


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if not value:
        raise ValueError(f"--option is {text!r}; write NAME=VALUE.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
