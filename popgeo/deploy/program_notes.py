"""Metadata of a program file: inputs, results, sizes, layout and units of its programs, as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from math import inf
from typing import Any

import torch

from popgeo.capture.serialize import torch_name, torch_thing
from popgeo.data.axes import Axis, Level
from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.deploy.fixed_program import FixedProgram, Tensors

VERSION = 1
FORMATS = ("torch", "aotinductor", "onnx")
_MOST = 2**40  # slots of a batch
_BY_NAME = ("AttrNamePadding", "NodeTypePadding", "EdgeTypePadding")  # classes of PyG


def notes_as_json(programs: Sequence[tuple[FixedProgram, Tensors]], format: str, units: Mapping[str, str]) -> str:
    """Return the metadata of a program file as JSON.

    Args:
        programs: Programs of the file, each with example tensors of all its results, in order.
        format: Format of the file.
        units: Units of inputs and results.

    Raises:
        ValueError: a value of padding cannot be written as JSON, or a unit is for an unknown input or result.
    """
    known = [name for program, results in programs[:1] for name in (*program.inputs, *results)]
    if unknown := sorted(set(units) - set(known)):
        raise ValueError(f"units has {unknown}; there are {known}.")
    notes = {"version": VERSION, "format": format, "units": dict(units), "programs": [_told(*one) for one in programs]}
    try:
        return json.dumps(notes)
    except TypeError as error:
        raise ValueError(f"{programs[0][0].sizes} cannot be written to a file: {error}. Pad with numbers.") from error


def read_notes(text: str) -> tuple[str, list[FixedProgram], list[list[str]]]:
    """Return the format of a file, its programs (without `run`), and the names of each program's results.

    Raises:
        ValueError: the notes are of a different version, or an entry is missing or of a wrong type.
    """
    version = None
    try:
        notes = json.loads(text)
        version = notes["version"]
        if version == VERSION and type(version) is int:
            told, format = notes["programs"], notes["format"]
            made = format, list(map(_program, told)), [list(one["results"]) for one in told]
            if told and isinstance(format, str) and format in FORMATS:
                return made
            raise ValueError(f"it has {len(told)} programs of the format {format!r:.50}")
    except Exception as error:  # crafted notes may raise any error
        raise ValueError(f"it has no notes of popgeo.export that can be read: {error!r:.200}") from error
    raise ValueError(f"it is of version {version!r:.50}; this is popgeo with version {VERSION}. Export the model again")


def _told(program: FixedProgram, results: Tensors) -> dict[str, Any]:
    """Return the metadata of one program."""
    axes = {name: program.axes.get(name) for name in results}
    return {
        "inputs": {name: [list(one.shape), torch_name(one.dtype)] for name, one in program.inputs.items()},
        "results": {name: axis and [axis.level.value, axis.store] for name, axis in axes.items()},
        "sizes": {one.name: _packed(getattr(program.sizes, one.name)) for one in fields(FixedSizeOptions)},
        "layout": {one.name: _packed(getattr(program.layout, one.name)) for one in fields(LayoutChoices)},
        "names": None if program.names is None else sorted(program.names),
        "cutoff": program.cutoff,
    }


def _program(told: Mapping[str, Any]) -> FixedProgram:
    """Return the program that the metadata describe, without `run`."""
    layout = {name: _unpacked(value) for name, value in told["layout"].items()}
    layout["index_dtype"] = torch_thing("dtype", layout["index_dtype"])
    sizes = {name: _unpacked(value) for name, value in told["sizes"].items()}
    for name, value in sizes.items():
        is_count = name.startswith("num_")
        if isinstance(value, Mapping) and name.endswith("_pad_value"):
            raise ValueError(f"{name} is {value!r:.50}")
        for one in () if name == "pad_graph_defaults" else _numbers(value):
            if type(one) not in ((int,) if is_count else (bool, int, float)) or (is_count and not 0 <= one < _MOST):
                raise ValueError(f"{name} is {one!r:.50}")
    for level in (layout["levels"] or {}).values():
        Level(level)
    axes = {name: Axis(Level(of[0]), _unpacked(of[1])) for name, of in told["results"].items() if of}
    types = {key for name in ("num_nodes", "num_edges") if isinstance(sizes[name], dict) for key in sizes[name]}
    if strange := [axis.store for axis in axes.values() if axis.store not in {None, *types}]:
        raise ValueError(f"results belong to {strange!r:.50}")
    if not axes:
        raise ValueError("no result belongs to graphs, nodes or edges")
    kinds = {name: (shape, torch_thing("dtype", dtype)) for name, (shape, dtype) in told["inputs"].items()}
    inputs = {name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in kinds.items()}
    # Files of earlier versions do not have these two.
    names, cutoff = told.get("names", [name.partition("[")[0] for name in inputs]), told.get("cutoff")
    if not all(isinstance(name, str) for name in names or ()) or not (cutoff is None or 0 < float(cutoff) < inf):
        raise ValueError(f"names are {names!r:.50}, and the cutoff is {cutoff!r:.50}")
    more: Any = {"names": None if names is None else frozenset(names), "cutoff": cutoff}
    more |= {"sizes": FixedSizeOptions(**sizes), "layout": LayoutChoices(**layout)}
    # `run` is a placeholder until the file's program is opened.
    return FixedProgram(run=dict, inputs=inputs, axes=axes, **more)


def _numbers(value: Any) -> Iterator[Any]:
    """Yield the numbers in a size or in a padding value, which may have one number per type."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _numbers(one)
    elif type(value).__name__ in _BY_NAME:
        yield from (*_numbers(value.values), *_numbers(value.default))
    elif value is not None:
        yield getattr(value, "value", value)  # PyG's UniformPadding, inside another padding


def _packed(value: Any) -> Any:
    """Convert an option to JSON. A dictionary becomes a list of pairs, because its keys may be tuples (edge types)."""
    if isinstance(value, Mapping):
        return {"pairs": [[_packed(key), _packed(one)] for key, one in value.items()]}
    if isinstance(value, torch.dtype):
        return torch_name(value)
    if type(value).__name__ in _BY_NAME:
        return {type(value).__name__: _packed(value.values), "default": _packed(value.default)}
    value = value.level if isinstance(value, Axis) else value
    return getattr(value, "value", value)  # for a level, and PyG's UniformPadding


def _unpacked(value: Any) -> Any:
    """Return the option that `_packed` converted to JSON."""
    for kind in _BY_NAME if isinstance(value, dict) else ():
        if kind in value:
            made: Any = getattr(import_module("torch_geometric.transforms.pad"), kind)
            return made(_unpacked(value[kind]), _unpacked(value["default"]))
    if isinstance(value, dict):
        return {_unpacked(key): _unpacked(one) for key, one in value["pairs"]}
    return tuple(map(_unpacked, value)) if isinstance(value, list) else value
