"""The manifest of a store from a block of its graphs, and the comparison of two blocks."""

import re
import zlib
from dataclasses import replace

import torch
from torch import Tensor

from popgeo.data.axes import Axis, Level, row_pointer
from popgeo.data.columns import Columns
from popgeo.data.store.append_file import memory_of
from popgeo.data.store.manifest import ArrayFile, AttributeEntry, Manifest
from popgeo.data.store.stored_list import as_bytes


def plain(block: Columns) -> tuple[Columns, frozenset[tuple[object, str]]]:
    """Return a block with all attributes as tensors, and the names of attributes that are now bytes of JSON.

    Raises:
        ValueError: a value cannot be stored as JSON.
    """
    attributes, pointers, changed = [], dict(block.row_pointers), set()
    for attribute in block.attributes:
        if not attribute.is_tensor:
            axis = Axis(Level.GRAPH, attribute.store, attribute.name)
            text, lengths = as_bytes(attribute.values, attribute.name)
            pointers[axis] = row_pointer(lengths)
            changed.add((attribute.store, attribute.name))
            attribute = replace(attribute, axis=axis, values=text)
        attributes.append(attribute)
    return replace(block, attributes=tuple(attributes), row_pointers=pointers, _cache={}), frozenset(changed)


def describe(block: Columns, json: frozenset[tuple[object, str]], transform: str | None, checked: bool) -> Manifest:
    """Return the manifest of an empty store for graphs like these.

    Args:
        block: Graphs with all attributes as tensors.
        json: The attributes that are JSON.
        transform: The name of the transform of the graphs.
        checked: Whether every edge is known to end in its own graph.
    """
    entries = []
    for i, attribute in enumerate(block.attributes):
        name = f"{i:02d}-{re.sub(r'[^A-Za-z0-9_]+', '-', attribute.name)[:40]}"
        is_json = (attribute.store, attribute.name) in json
        increments = attribute.increments
        entries.append(
            AttributeEntry(
                store=attribute.store,
                name=attribute.name,
                axis=attribute.axis,
                dim=attribute.dim,
                values=_empty(f"{name}.{'json' if is_json else 'bin'}", attribute.tensor, attribute.dim),
                increments=None if increments is None else _empty(f"{name}.increments.bin", increments),
                is_json=is_json,
                doubt=attribute.doubt,
            )
        )
    ends = block.row_ends
    return Manifest(
        num_graphs=0,
        last_graph=0,
        data_class=f"{block.graph_class.__module__}.{block.graph_class.__qualname__}",
        node_types=block.node_types,
        edge_types=block.edge_types,
        states_num_nodes=tuple(sorted(block.states_num_nodes, key=str)),
        transform=transform,
        indices_checked=checked,
        attributes=tuple(entries),
        row_pointers=tuple((axis, pointer_file(i)) for i, axis in enumerate(block.row_pointers)),
        row_ends=None
        if ends is None
        else tuple((key, _empty(f"row-ends-{i:02d}.bin", of)) for i, (key, of) in enumerate(ends.items())),
    )


def pointer_file(number: int) -> ArrayFile:
    """Return the entry of an empty file for a row pointer."""
    return _empty(f"rows-{number:02d}.bin", torch.empty(0, dtype=torch.int64))


def _empty(name: str, like: Tensor, dim: int = 0) -> ArrayFile:
    shape = list(like.shape)
    shape[dim] = 0
    num_parts = torch.Size(shape[:dim]).numel()
    dtype = str(like.dtype).removeprefix("torch.")
    return ArrayFile(file=name, dtype=dtype, shape=tuple(shape), crc32=(0,) * num_parts)


def check_alike(known: Manifest, new: Manifest) -> list[Axis]:
    """Check that a block can be appended to a store, by their manifests from `describe`.

    Returns:
        New axes: attributes that had one row per graph so far and have different numbers of rows in this block.

    Raises:
        ValueError: the manifests differ in types or in an attribute.
    """
    for what in ("data_class", "node_types", "edge_types", "states_num_nodes"):
        if getattr(known, what) != getattr(new, what):
            raise ValueError(f"Their {what} is {getattr(new, what)}, in graphs before it is {getattr(known, what)}.")
    before = {(entry.store, entry.name): entry for entry in known.attributes}
    after = {(entry.store, entry.name): entry for entry in new.attributes}
    if odd := set(before) ^ set(after):
        raise ValueError(f"They differ in the attributes {sorted(name for _, name in odd)}. Set them everywhere.")
    for key, entry in after.items():
        first, second = _kind(before[key]), _kind(entry)
        if first != second:
            raise ValueError(f"Attribute {entry.name!r} is {second}, in graphs before it is {first}.")
    return [axis for axis, _ in new.row_pointers if axis not in dict(known.row_pointers)]


def _kind(entry: AttributeEntry) -> str:
    shape = list(entry.values.shape)
    sizes: list[object] = [*shape[: entry.dim], "rows", *shape[entry.dim + 1 :]]
    of = "JSON" if entry.is_json else f"{entry.values.dtype} {[*sizes]} of a {entry.axis.level.value}".replace("'", "")
    return f"{of}, shifted by {entry.increments.shape[1]} numbers" if entry.increments else of


def digest(block: Columns, graph: int) -> int:
    """Return a checksum of all attributes of one graph of a block."""
    total = 0
    for attribute in block.attributes:
        start, stop = block.row_pointers[attribute.axis][graph : graph + 2].tolist()
        total = zlib.crc32(memory_of(attribute.tensor.narrow(attribute.dim, start, stop - start)), total)
    return total
