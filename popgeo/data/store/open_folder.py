"""Opening of a store on disk: all arrays are mapped; only manifest, row pointers and checksums are read."""

import sys
import zlib
from pathlib import Path

import torch
import torch_geometric.data
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from popgeo.data.axes import GRAPHS, Attribute, Axis, Level, ends_of
from popgeo.data.columns import Columns
from popgeo.data.store import manifest as notes
from popgeo.data.store.first_use import compare_file, compare_stored
from popgeo.data.store.manifest import NAME, damaged
from popgeo.data.store.mapped import map_file
from popgeo.data.store.stored_list import StoredList

_ROWS_AT_ONCE = 1 << 20  # a row pointer may be larger than memory


def open_folder(folder: Path, verify: bool | None) -> Columns:
    """Return the columns of a store on disk, see `FlatStore.open`.

    Raises:
        ValueError: the folder is not a store, a file is damaged, or the class of its graphs is not imported.
    """
    manifest = notes.read_manifest(folder)
    try:
        columns = _opened(folder, manifest, verify is not False)
        if verify:
            compare_stored(columns)
        return columns
    except ValueError:
        raise
    except notes.MALFORMED as error:
        raise damaged(folder / NAME, f"its entries do not fit together ({error!r})") from error


def _opened(folder: Path, manifest: notes.Manifest, compares: bool) -> Columns:
    sums = _block_sums(folder, manifest) if compares else {}

    def opened(file: notes.ArrayFile) -> Tensor:
        return map_file(folder / file.file, file.torch_dtype, file.shape, len(file.crc32), sums.get(file.file, b""))

    data_cls = _class_of(manifest.data_class)
    pointers = {axis: opened(file) for axis, file in manifest.row_pointers}
    _check_fits(folder, manifest, pointers, issubclass(data_cls, HeteroData))
    attributes = []
    for entry in manifest.attributes:
        values, axis = opened(entry.values), entry.axis
        increments = None if entry.increments is None else opened(entry.increments)
        attributes.append(
            Attribute(
                store=entry.store,
                name=entry.name,
                axis=GRAPHS if entry.is_json else axis,
                values=StoredList(values, pointers.pop(axis)) if entry.is_json else values,
                dim=entry.dim,
                increments=increments,
                doubt=_doubt(entry, pointers),
            )
        )
    return Columns(
        data_cls=data_cls,
        node_types=manifest.node_types,
        edge_types=manifest.edge_types,
        attributes=tuple(attributes),
        row_pointers=pointers,
        states_num_nodes=frozenset(manifest.states_num_nodes),
        row_ends=None if manifest.row_ends is None else {key: opened(file) for key, file in manifest.row_ends},
    )


def _doubt(entry: notes.AttributeEntry, pointers: dict[Axis, Tensor]) -> Level | None:
    """Return the second level of an attribute, if it fits the numbers of rows of all graphs."""
    other = None if entry.doubt is None else pointers.get(Axis(entry.doubt, entry.store))
    return entry.doubt if other is not None and torch.equal(other, pointers[entry.axis]) else None


def _block_sums(folder: Path, manifest: notes.Manifest) -> dict[str, bytes]:
    """Return the checksums of the blocks of each file of a store."""
    *files, of_sums = manifest.files
    data, start, found = (folder / of_sums.file).read_bytes(), 0, {}
    for file in files:
        num_blocks = len(file.crc32) * -(-file.num_bytes // len(file.crc32) // notes.BLOCK_BYTES)
        found[file.file] = data[start : start + 4 * num_blocks]
        start += 4 * num_blocks
    if manifest.block_sums is None or (zlib.crc32(data),) != of_sums.crc32 or len(data) != start:
        raise damaged(folder / of_sums.file, "its checksum differs")
    return found


def _check_fits(folder: Path, manifest: notes.Manifest, pointers: dict[Axis, Tensor], is_hetero: bool) -> None:
    """Check that row pointers ascend and that all arrays have these rows, so that no missing row is read.

    Raises:
        ValueError: a file is damaged, or does not fit the other files.
    """
    for axis, file in manifest.row_pointers:
        compare_file(pointers[axis])
        _check_pointer(folder / file.file, pointers[axis], manifest.num_graphs)
    nodes = [Axis(Level.NODE, key) for key in manifest.node_types]
    edges = [Axis(Level.EDGE, key) for key in manifest.edge_types]
    kinds = (str, tuple) if is_hetero else (type(None), type(None))
    are_known = all(isinstance(a.store, kinds[a.level is Level.EDGE]) and a in pointers for a in nodes + edges)
    needed = {end for axis in edges for end in ends_of(axis)} | {Axis(Level.NODE, k) for k in manifest.states_num_nodes}
    sorted_types = manifest.edge_types if manifest.row_ends is None else dict(manifest.row_ends)
    if not (nodes and are_known and needed <= set(nodes) and set(sorted_types) == set(manifest.edge_types)):
        raise damaged(folder / NAME, f"{[axis.label for axis in nodes + edges]} do not fit its class or its files")
    for entry in manifest.attributes:
        if entry.store not in (None, *manifest.node_types, *manifest.edge_types):
            raise damaged(folder / NAME, f"attribute {entry.name!r} is of {entry.store!r}, which is not a type of it")
        if not _fits(entry, manifest.num_graphs, int(pointers[entry.axis][-1])):
            raise damaged(folder / entry.values.file, f"its shape {list(entry.values.shape)} does not fit the others")
    for key, file in manifest.row_ends or ():
        if (file.dtype, file.shape) != ("int64", (int(pointers[ends_of(Axis(Level.EDGE, key))[1]][-1]),)):
            raise damaged(folder / file.file, f"its shape {list(file.shape)} does not fit the others")


def _check_pointer(path: Path, pointer: Tensor, num_graphs: int) -> None:
    steps = (pointer[i : i + _ROWS_AT_ONCE + 1] for i in range(0, num_graphs, _ROWS_AT_ONCE))
    if pointer.dtype is not torch.int64 or pointer.shape != (num_graphs + 1,) or int(pointer[0]) != 0:
        raise damaged(path, f"it is {pointer.dtype} {list(pointer.shape)} for {num_graphs:,} graphs, or not from 0 on")
    if not all(bool((part[1:] >= part[:-1]).all()) for part in steps):
        raise damaged(path, "its row numbers do not ascend")


def _fits(entry: notes.AttributeEntry, num_graphs: int, num_rows: int) -> bool:
    shape, steps = entry.values.shape, entry.increments
    if entry.is_json:
        return entry.axis.name == entry.name and (entry.values.dtype, shape, steps) == ("uint8", (num_rows,), None)
    if entry.name == "edge_index" and entry.axis.level is Level.EDGE and (entry.dim != 1 or shape[0] != 2 or not steps):
        return False
    has_steps = steps is None or (steps.dtype, steps.shape) == ("int64", (num_graphs, max(1, steps.shape[1])))
    return has_steps and shape[entry.dim] == num_rows


def _class_of(name: str) -> type:
    """Return the class of the graphs: a class of PyG or an already imported class. Nothing is imported for it."""
    module, _, cls = name.rpartition(".")
    found = getattr(torch_geometric.data, cls, None) if module.startswith("torch_geometric.data.") else None
    found = found or getattr(sys.modules.get(module), cls, None)
    if not (isinstance(found, type) and issubclass(found, (Data, HeteroData))):
        raise ValueError(f"The graphs of the store are of class {name}. Import {module} before opening it.")
    return found
