"""`popgeo info` and `popgeo report`: print the content of a store, a file of structures or a report.

`popgeo info` without a file prints the versions in use, the GPU, and which kernels are in use.
"""

import argparse
import json
import platform
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from popgeo import __version__, command_parsers
from popgeo.convert.atoms import AtomFiles, read_atoms
from popgeo.convert.command import atoms_options, keys_of
from popgeo.convert.doctor import Fault, examine, open_structures
from popgeo.convert.key_values import undetermined_elements
from popgeo.data import FixedSizeOptions, FlatStore
from popgeo.deploy.force_field import ForceField
from popgeo.extension_path import engines
from popgeo.ipu.report.report import Pipeline, Report
from popgeo.native import library
from popgeo.ops import sum_on_device


def info(arguments: Sequence[str]) -> int:
    """Print the attributes of a store, the sizes of its graphs and of good batches, and the faults of structures."""
    asked = command_parsers.info(arguments)
    if asked.store is None:
        _of_this_computer()
    else:
        _of_path(asked)
    return 0


def report(arguments: Sequence[str]) -> int:
    """Print a report that was saved as JSON; write its page or its trace if the options ask for them."""
    asked = command_parsers.report(arguments)
    text = asked.file.read_text()
    kind = Pipeline if f'"{Pipeline.VERSION[0]}"' in text[:200] else Report
    try:
        found = kind.from_json(text)
    except ValueError as error:
        raise ValueError(f"{asked.file} is not the JSON of a report, which report.to_json() makes. {error}") from error
    print(found)
    for path, write in ((asked.html, found.to_html), (asked.trace, found.to_chrome_trace)):
        if path is not None:
            write(path)
            print(f"wrote {path}")
    return 0


def _of_this_computer() -> None:
    print(f"popgeo {__version__} in {Path(library.__file__).parents[1]}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, PyG {metadata.version('torch_geometric')}")
    has_gpu = torch.cuda.is_available()
    print(f"GPU: {f'{torch.cuda.get_device_name()}, {sum_on_device.describe()}' if has_gpu else 'torch finds none'}")
    print(f"compiled kernels: {'in use' if library.is_available() else f'not in use. {library.reason()}'}")
    for name, engine in engines().items():
        print(f"{name}: {engine if engine != 'not installed' else 'popgeo, after `import popgeo.extensions`'}")


def _of_path(asked: argparse.Namespace) -> None:
    path = asked.store
    if all((path / name).exists() for name in ("checkpoint.pt", "model.pt", "settings.json")):
        _of_run(path)
    elif path.suffix == ".pt" and path.is_file():
        try:
            print(ForceField.load(path))
        except ValueError as error:
            other_use = f"popgeo predict {path} FILE uses a model, popgeo convert {path} FOLDER makes a store."
            raise ValueError(f"{error} If torch wrote it: {other_use}") from error
    elif (path / "manifest.json").exists():
        store: Any = FlatStore.open(path)
        _of_store(store, asked)
        shapes = {one.name: one.tensor for one in store.attributes if one.store is None and one.is_tensor}
        if "z" in shapes and not shapes["z"].is_floating_point() and "pos" in shapes and shapes["pos"].shape[-1] == 3:
            _print_faults(examine(store, keys=keys_of(asked.key), cutoff=asked.cutoff))
    else:
        _of_structures(asked)


def _of_run(folder: Path) -> None:
    """Print the force field of a run, its errors, and the settings that differ from their defaults."""
    print(ForceField.load(folder / "model.pt"))
    if (folder / "summary.txt").exists():
        print("\n" + (folder / "summary.txt").read_text().rstrip())
    settings = json.loads((folder / "settings.json").read_text())
    defaults = vars(command_parsers.train([]))
    print("\nsettings: " + ", ".join(f"{name}={own}" for name, own in settings.items() if own != defaults.get(name)))


def _of_structures(asked: argparse.Namespace) -> None:
    """Print the meaning of each key in a file of structures, the keys that are not read, and the faults."""
    files: AtomFiles | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files = read_atoms(asked.store, **atoms_options(asked))
    except ValueError as error:
        keys = f"keys: {error}"
    structures: Any = open_structures(asked.store, [one.note for one in files.datasets] if files else None)
    if files is not None and any(one.factors for one in files.datasets):  # units are converted
        structures = files
    findings = examine(structures, keys=keys_of(asked.key), cutoff=asked.cutoff)
    print(f"{len(structures):,} structures")
    if files is not None:
        keys = f"{files.values.table(files.datasets)}\n\n{undetermined_elements(files.values.compositions)}"
    if keys := keys.strip():
        print(f"\n{keys}")
    _print_faults(findings)


def _print_faults(findings: Sequence[Fault]) -> None:
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
