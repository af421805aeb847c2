"""`popgeo convert SOURCE FOLDER`: opens the source with its options and writes a store."""

import argparse
import ast
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from popgeo.command_line import OneLineParser
from popgeo.convert.atoms import read_atoms
from popgeo.convert.pyg import dataset_by_name, read_pt
from popgeo.convert.smiles import read_smiles
from popgeo.data import write

_TABLES = {".csv", ".tsv", ".smi"}


def convert(arguments: Sequence[str]) -> int:
    """Converts the source that a command line names."""
    asked = _parser().parse_args(arguments)
    graphs, options = source_of(asked)
    store = write(graphs, asked.folder, **options)
    print(f"wrote {store} to {asked.folder}/")
    return 0


def source_of(asked: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The graphs of the source, and the options to write them with.

    Raises:
        ValueError: the source is not known.
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
    """What `read_atoms` is given of the options that `add_atoms` adds."""
    return {
        "keys": keys_of(asked.key),
        "units": dict(map(_pair, asked.units)),
        "levels": dict(map(_pair, asked.level)),
        "labels": asked.labels,
    }


def keys_of(texts: Sequence[str]) -> dict[str, str | None]:
    """What a file calls attributes, as `["energy=dft_energy", "head="]` says it; None leaves one out."""
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


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="popgeo convert",
        description="Writes a dataset to a folder, as a store that FlatStore.open maps into memory.",
    )
    add = parser.add_argument
    add("source", help="a class of torch_geometric.datasets, a .pt, a table of SMILES (.csv, .tsv, .smi), MACE's HDF5, "
        "fairchem's aselmdb, a file that ASE reads, or a folder of these")  # fmt: skip
    add("folder", type=Path, help="the folder to write, which must not exist; an interrupted run is continued")
    add_source(parser)
    return parser


def add_source(parser: argparse.ArgumentParser) -> None:
    """Adds what may be asked of a source of graphs."""
    add = parser.add_argument
    add("--sort-edges", action="store_true", help="sort edges by destination, so that batches carry rowptr")
    add("--exclude", nargs="+", default=None, metavar="NAME", help="attributes to leave out")
    of_pyg = parser.add_argument_group("datasets of PyG, and .pt")
    of_pyg.add_argument("--root", type=Path, help="the dataset's folder")
    of_pyg.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="such as name=MUTAG")
    of_pyg.add_argument("--trust", action="store_true", help="let a .pt run code, as classes of others need")
    of_tables = parser.add_argument_group("tables of SMILES (needs rdkit)")
    of_tables.add_argument("--column", help="the column of SMILES (default: the one called so, or the first)")
    of_tables.add_argument("--targets", nargs="+", default=(), metavar="COLUMN", help="the columns of y")
    of_tables.add_argument("--positions", action="store_true", help="add hydrogens and positions, by ETKDG")
    of_tables.add_argument("--seed", type=int, default=0, help="what positions are drawn from")
    of_tables.add_argument("--skip", action="store_true", help="leave out rows that rdkit cannot read")
    of_atoms = parser.add_argument_group("files of atoms (needs ase, and vesin for a cutoff)")
    of_atoms.add_argument("--cutoff", type=float, help="list pairs of atoms within that many angstrom")
    of_atoms.add_argument("--double", action="store_true", help="keep float64")
    add_atoms(of_atoms)


def add_atoms(parser: argparse._ArgumentGroup) -> None:
    """Adds what may be asked of the labels in a file of atoms; see `read_atoms`."""
    add = parser.add_argument
    add("--key", action="append", default=[], metavar="NAME=KEY", help="what the file calls energy, forces, stress, "
        "weight, head or another attribute; NAME= leaves it out")  # fmt: skip
    add("--units", nargs="+", default=[], metavar="NAME=UNIT", help="units of the file's energy, length, forces or "
        "stress, such as energy=kcal/mol length=bohr")  # fmt: skip
    add("--level", action="append", default=[], metavar="KEY=LEVEL", help="whether the values of a key belong to atoms "
        "(node) or to the structure (graph)")  # fmt: skip
    add("--partial-labels", dest="labels", action="store_const", const="partial", default="all",
        help="take structures that lack some of energy, forces and stress; NaN represents these")  # fmt: skip
