"""What a file says of the programs in it: inputs, results, sizes, padding and layout as JSON, and back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.transforms.pad import AttrNamePadding, EdgeTypePadding, NodeTypePadding

from popgeo.data.axes import Axis, Level, StoreKey
from popgeo.data.batch_layout import LayoutChoices
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.slots import Layout
from popgeo.deploy.fixed_program import FixedProgram, Tensors

SCHEMA, VERSION = "popgeo export", 1
_LEVELS = (Level.NODE, Level.EDGE, Level.GRAPH)
_SIZES = ("num_nodes", "num_edges", "num_graphs")
_FLAGS = ("add_pad_masks", "sort_edges", "spread_padding_edges")


def describe(programs: Sequence[tuple[FixedProgram, Layout, Tensors]], **about: Any) -> str:
    """What a file says of its programs.

    Args:
        programs: Each with the layout of its batches and tensors like its results.
        about: What else it says, such as units.
    """
    told = [_describe(*one) for one in programs]
    return json.dumps({"schema": SCHEMA, "version": VERSION, **about, "programs": told}, indent=1)


def read_description(text: str) -> tuple[Mapping[str, Any], list[FixedProgram]]:
    """All that a file says, and its programs but for what runs them.

    Raises:
        ValueError: it is of another version, or no description.
    """
    try:
        content = json.loads(text)
        kind = content["schema"], content["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("it does not say what it holds") from error
    if kind != (SCHEMA, VERSION):
        raise ValueError(
            f"it is {kind[0]} of version {kind[1]!r}, and this release reads {SCHEMA} of version {VERSION}. Export the "
            "model again, or install the release that wrote it"
        )
    try:
        return content, [_program(told) for told in content["programs"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it describes no program: {type(error).__name__} {error}") from error


def _describe(program: FixedProgram, laid: Layout, results: Tensors) -> dict[str, Any]:
    sizes, layout = program.sizes, program.layout
    padding = [
        [slot.axis.level.value, slot.store, slot.name, float(sizes.pad_value(slot.axis.level, slot.store, slot.name))]
        for slot in laid.slots
        if slot.axis.level in _LEVELS
    ]
    return {
        "inputs": [_tensor(name, tensor) for name, tensor in program.inputs.items()],
        "results": [_tensor(name, tensor) | {"axis": _axis(program.axes.get(name))} for name, tensor in results.items()],
        "sizes": {name: _pairs(getattr(sizes, name)) for name in (*_SIZES, "num_rows")},
        "padding": padding,
        "layout": {
            **{name: getattr(layout, name) for name in _FLAGS},
            "follow_batch": list(layout.follow_batch or ()),
            "exclude_keys": list(layout.exclude_keys or ()),
            "levels": [[key, Level(level).value] for key, level in (layout.levels or {}).items()],
            "index_dtype": _text(layout.index_dtype),
        },
    }


def _program(told: Mapping[str, Any]) -> FixedProgram:
    values: dict[str, dict[Any, dict[str, float]]] = {level.value: {} for level in _LEVELS}
    for level, store, name, value in told["padding"]:
        values[level].setdefault(_key(store), {})[str(name)] = float(value)
    node, edge, graph = (values[level.value] for level in _LEVELS)
    sizes = FixedSizeOptions(
        **{name: _unpaired(told["sizes"][name]) for name in (*_SIZES, "num_rows")},
        node_pad_value=_padding(node, NodeTypePadding),
        edge_pad_value=_padding(edge, EdgeTypePadding),
        graph_pad_value=_padding(graph, None),
    )
    layout = told["layout"]
    return FixedProgram(
        run=_runs_nothing,
        inputs={one["name"]: torch.empty(one["shape"], dtype=_dtype(one["dtype"]), device="meta") for one in told["inputs"]},
        sizes=sizes,
        axes={one["name"]: _axis_of(*one["axis"]) for one in told["results"] if one["axis"] is not None},
        layout=LayoutChoices(
            **{name: bool(layout[name]) for name in _FLAGS},
            follow_batch=layout["follow_batch"],
            exclude_keys=layout["exclude_keys"],
            levels={_key(key): Level(level) for key, level in layout["levels"]},
            index_dtype=_dtype(layout["index_dtype"]),
        ),
    )


def _runs_nothing(tensors: Tensors) -> Tensors:
    raise ValueError("A description has nothing that runs.")


def _padding(values: Mapping[Any, Mapping[str, float]], by_type: Any) -> Any:
    """What fills padding, by type where there are types, and by name."""
    if not values:
        return None
    if set(values) == {None}:
        return AttrNamePadding(dict(values[None]))
    return None if by_type is None else by_type({key: AttrNamePadding(dict(of)) for key, of in values.items()})


def _tensor(name: str, tensor: Tensor) -> dict[str, Any]:
    return {"name": name, "shape": list(tensor.shape), "dtype": _text(tensor.dtype)}


def _axis(axis: Axis | None) -> list[Any] | None:
    return None if axis is None else [axis.level.value, axis.store, axis.name]


def _axis_of(level: str, store: Any, name: str | None) -> Axis:
    return Axis(Level(level), _key(store), name)


def _key(key: Any) -> StoreKey:
    """A type, or the place of an attribute, as it was before JSON made lists of tuples."""
    return tuple(map(_key, key)) if isinstance(key, list) else key  # type: ignore[return-value, arg-type]


def _pairs(sizes: Any) -> Any:
    return [[key, count] for key, count in sizes.items()] if isinstance(sizes, Mapping) else sizes


def _unpaired(sizes: Any) -> Any:
    return {_key(key): count for key, count in sizes} if isinstance(sizes, list) else sizes


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(text: str) -> torch.dtype:
    dtype = getattr(torch, text)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{text!r} is no type of numbers")
    return dtype
