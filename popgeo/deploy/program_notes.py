"""What a file with a program says of itself: inputs, results, sizes, layout and units, as JSON."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from popgeo.data.axes import Axis, Level
from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.deploy.fixed_program import FixedProgram, Tensors

VERSION = 1


def write_notes(program: FixedProgram, results: Tensors, format: str, units: Mapping[str, str]) -> str:
    """The notes of a file.

    Args:
        program: What is written.
        results: Tensors like all that it returns, in order.
        format: How.
        units: Units of inputs and results.

    Raises:
        ValueError: padding is filled with what JSON does not know, or there is a unit of what is not there.
    """
    unknown = sorted(set(units) - set(program.inputs) - set(results))
    if unknown:
        raise ValueError(f"units has {unknown}; there are {[*program.inputs, *results]}.")
    axes = {name: program.axes.get(name) for name in results}
    notes = {
        "version": VERSION,
        "format": format,
        "inputs": {name: [list(one.shape), _of_dtype(one.dtype)] for name, one in program.inputs.items()},
        "results": {name: axis and [axis.level.value, axis.store] for name, axis in axes.items()},
        "units": dict(units),
        "sizes": {one.name: _packed(getattr(program.sizes, one.name)) for one in fields(FixedSizeOptions)},
        "layout": {one.name: _packed(getattr(program.layout, one.name)) for one in fields(LayoutChoices)},
    }
    try:
        return json.dumps(notes)
    except TypeError as error:
        raise ValueError(f"{program.sizes} cannot be written to a file: {error}. Pad with numbers.") from error


def read_notes(text: str, file: str) -> tuple[str, FixedProgram, list[str]]:
    """The format of a file, its program but for what runs it, and the names of all results.

    Raises:
        ValueError: they are of another version, or no notes.
    """
    try:
        notes = json.loads(text)
        version = notes["version"]
        if version == VERSION:
            layout = {name: _unpacked(value) for name, value in notes["layout"].items()}
            layout["index_dtype"] = getattr(torch, layout["index_dtype"])
            inputs = {name: _like(shape, dtype) for name, (shape, dtype) in notes["inputs"].items()}
            program = FixedProgram(
                run=_no_results,
                inputs=inputs,
                sizes=FixedSizeOptions(**{name: _unpacked(value) for name, value in notes["sizes"].items()}),
                axes={name: Axis(Level(of[0]), _unpacked(of[1])) for name, of in notes["results"].items() if of},
                layout=LayoutChoices(**layout),
            )
            return notes["format"], program, list(notes["results"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} has no notes of popgeo.export that can be read: {error!r}.") from error
    raise ValueError(f"{file} is of version {version}; this is popgeo with version {VERSION}. Export the model again.")


def _like(shape: list[int], dtype: str) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _no_results(tensors: Tensors) -> Tensors:
    return {}


def _of_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _packed(value: Any) -> Any:
    """A choice as JSON has it: dictionaries as pairs, whose keys may be types of edges."""
    if isinstance(value, Mapping):
        return {"pairs": [[_packed(key), _packed(one)] for key, one in value.items()]}
    if isinstance(value, torch.dtype):
        return _of_dtype(value)
    return value.value if isinstance(value, Level) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return {_unpacked(key): _unpacked(one) for key, one in value["pairs"]}
    return tuple(map(_unpacked, value)) if isinstance(value, list) else value
