"""`popgeo info` and `popgeo report`: print what a store, a file of structures or a report contains.

`popgeo info` without a file says which versions run here and whether the compiled kernels are in use.
"""

import argparse
import platform
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from popgeo import __version__
from popgeo.command_line import OneLineParser, add_options
from popgeo.convert.atom_files import files_in
from popgeo.convert.atoms import read_atoms
from popgeo.convert.command import add_atoms, atoms_options, keys_of
from popgeo.convert.doctor import examine, open_structures
from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.ipu.report.report import Pipeline, Report
from popgeo.native import library


def info(arguments: Sequence[str]) -> int:
    """Prints the attributes of a store, the sizes of its graphs and of good batches, and the faults of structures."""
    parser = OneLineParser(
        prog="popgeo info",
        description="Prints the content of a store, good sizes of its batches, and probable faults of structures. "
        "Without a store: the versions that run here, and whether popgeo's compiled kernels are in use.",
    )
    own: dict[str, Any] = {"store": {"type": Path, "nargs": "?"}, "graphs": {"type": int}}
    add_options(parser, Path(__file__).with_name("info_options.csv"), own)
    add_atoms(parser.add_argument_group("files of atoms"))
    asked = parser.parse_args(arguments)
    if asked.store is None:
        _of_this_computer()
    else:
        _of_path(asked)
    return 0


def report(arguments: Sequence[str]) -> int:
    """Prints a report that was kept as JSON; may write its page or its trace."""
    parser = OneLineParser(prog="popgeo report", description="Prints a report of the simulated IPU.")
    add_options(parser, Path(__file__).with_name("report_options.csv"))
    asked = parser.parse_args(arguments)
    text = asked.file.read_text()
    kind = Pipeline if f'"{Pipeline.VERSION[0]}"' in text[:200] else Report
    found = kind.from_json(text)
    print(found)
    for path, write in ((asked.html, found.to_html), (asked.trace, found.to_chrome_trace)):
        if path is not None:
            write(path)
            print(f"wrote {path}")
    return 0


def _of_this_computer() -> None:
    print(f"popgeo {__version__} in {Path(library.__file__).parents[1]}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, PyG {metadata.version('torch_geometric')}")
    print(f"compiled kernels: {'in use' if library.is_available() else f'not in use. {library.reason()}'}")


def _of_path(asked: argparse.Namespace) -> None:
    if asked.store.is_file() or (asked.store.is_dir() and files_in(asked.store)):
        structures: Any = open_structures(asked.store)
        print(f"{len(structures):,} structures")
        _print_faults(_print_keys(asked) or structures, asked)
        return
    store = FlatStore.open(asked.store)
    _of_store(store, asked)
    shapes = {one.name: one.tensor for one in store.attributes if one.store is None and one.is_tensor}
    if "z" in shapes and not shapes["z"].is_floating_point() and "pos" in shapes and shapes["pos"].shape[-1] == 3:
        _print_faults(store, asked)


def _print_keys(asked: argparse.Namespace) -> Any:
    """Prints which key is read as what, and which are not read; returns the structures if their units are converted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files = read_atoms(asked.store, **atoms_options(asked))
            rows = []
            for one in files.datasets:
                factors = {name: f" (times {factor:.6g})" for name, factor in one.reader.factors.items() if factor != 1}
                rows += [
                    (one.path, called, f"{name}{factors.get(name, '')}") for name, called in (one.names or {}).items()
                ]
                rows += [(one.path, called, f"not read ({option})") for called, option in one.ignored.items()]
    except ValueError as error:
        print(f"\nkeys: {error}")
        return None
    if rows:
        table = pd.DataFrame(rows, columns=["file", "key", "read as"]).drop_duplicates()
        print("\n" + table.drop(columns="file" if table["file"].nunique() == 1 else []).to_string(index=False))
    return files if any(one.reader.factors for one in files.datasets) else None


def _print_faults(structures: Any, asked: argparse.Namespace) -> None:
    findings = examine(structures, keys=keys_of(asked.key), cutoff=asked.cutoff)
    for finding in findings:
        print(f"\n{finding}")
    if not findings:
        print("\nno fault was found in the structures")


def _of_store(store: FlatStore, asked: argparse.Namespace) -> None:
    print(f"{len(store):,} graphs")
    rows = []
    for attribute in store.attributes:
        kind = str(attribute.tensor.dtype).removeprefix("torch.") if attribute.is_tensor else "objects"
        shape = [str(size) for size in attribute.tensor.shape] if attribute.is_tensor else [f"{len(attribute.values)}"]
        shape[attribute.dim] = f"all {attribute.axis.level.value}s" if attribute.is_tensor else shape[attribute.dim]
        rows.append({"of": str(attribute.store or ""), "name": attribute.name, "type": kind, "shape": ", ".join(shape)})
    print("\n" + pd.DataFrame(rows).to_string(index=False))
    listed = [one.tensor for one in store.attributes if one.name == "cutoff" and one.is_tensor]
    if listed and listed[0].numel():
        print(f"\npairs of atoms are listed up to {listed[0].min():.6g} (cutoff)")
    sizes = pd.DataFrame(store.sizes, columns=[axis.label for axis in store.size_axes])
    table = sizes.agg(["min", "median", "mean", "max", "sum"]).T.map("{:,.6g}".format)
    print("\n" + table.to_string())
    print(f"\nfor {asked.batch_size} graphs a batch: {FixedSizeOptions.tune(store, target_graphs=asked.batch_size)}")
