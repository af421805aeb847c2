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
    parsed = command_parsers.convert(arguments)
    graphs, options = source_of(parsed)
    store = write(graphs, parsed.folder, **options)
    listed = {one.name: one.tensor for one in store.attributes if one.is_tensor}
    if "cutoff" in listed and not listed["edge_index"].numel():
        warnings.warn(
            f"No atom has a neighbor within the cutoff of {parsed.cutoff:g} angstrom. Raise --cutoff, or correct the "
            "unit of positions: --units length=nm or length=bohr.",
            stacklevel=1,
        )
    print(f"wrote {store} to {parsed.folder}/")
    return 0


def source_of(parsed: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the graphs of the source and the options for writing.

    Raises:
        ValueError: the source does not exist.
    """
    path = Path(parsed.source)
    written = {"sort_edges": parsed.sort_edges, "validate": True, "exclude_keys": parsed.exclude}
    if not path.exists():
        options = dict(_option(text) for text in parsed.option)
        return dataset_by_name(parsed.source, parsed.root, options), written
    if path.suffix == ".pt":
        return read_pt(path, parsed.trust), written
    if _TABLES & set(path.suffixes):
        reader = partial(read_smiles, path, column=parsed.column, targets=parsed.targets, skip=parsed.skip)
        return reader(positions=parsed.positions, seed=parsed.seed), written
    structures = read_atoms(path, cutoff=parsed.cutoff, double=parsed.double, **atoms_options(parsed))
    return structures, {**written, "levels": structures.levels}


def atoms_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `read_atoms` from the options for atoms."""
    return {
        "keys": keys_of(parsed.key),
        "units": dict(map(_pair, parsed.units)),
        "levels": dict(map(_pair, parsed.level)),
        "labels": parsed.labels,
    }


def keys_of(texts: Sequence[str]) -> dict[str, str | None]:
    """Return the keys of attributes from texts such as `["energy=dft_energy", "head="]`; None leaves a key out."""
    return {name: key or None for name, key in map(_pair, texts)}


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
