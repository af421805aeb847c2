"""The manifest of a store on disk: the contents, lengths and checksums of its files."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from popgeo.data.axes import Axis, Level, StoreKey

NAME, FORMAT, VERSION = "manifest.json", "popgeo flat store", 2
MALFORMED = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RuntimeError)
"""Errors of reading a damaged or forged manifest."""
BLOCK_BYTES = 1 << 16
"""Bytes of a file per checksum, as in csrc/checksums.cpp."""
_MOST = 1 << 48  # upper limit of rows and other numbers of a file


@dataclass(frozen=True, kw_only=True)
class ArrayFile:
    """An array in a file.

    Args:
        file: The name of the file.
        dtype: The name of the dtype in torch.
        shape: The shape of the array.
        crc32: The CRC-32 of each of several equal parts of the file: one per row of an `edge_index`.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    crc32: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the array."""
        return getattr(torch, self.dtype)

    @property
    def num_bytes(self) -> int:
        """The length of the file."""
        return prod(self.shape) * self.torch_dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class AttributeEntry:
    """An attribute of all graphs, as files.

    Args:
        store: The node or edge type.
        name: The name of the attribute.
        axis: The axis of its rows.
        dim: The dimension of rows.
        values: All rows.
        increments: The number that each graph adds to the values of later graphs in a batch.
        is_json: Whether the attribute is not a tensor. Its rows are then bytes, one JSON value per graph.
        doubt: A second level that fits, see `Attribute`.
    """

    store: StoreKey
    name: str
    axis: Axis
    dim: int
    values: ArrayFile
    increments: ArrayFile | None = None
    is_json: bool
    doubt: Level | None = None

    @property
    def is_tensor(self) -> bool:
        """Whether the values are one flat tensor."""
        return not self.is_json


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a folder: the fields of a flat store, with a file for each array.

    Args:
        num_graphs: The number of graphs.
        last_graph: Checksum of the last graph; a writer that continues compares it with its source.
        data_class: The name of the class of a graph.
        node_types: See `Columns`.
        edge_types: See `Columns`.
        states_num_nodes: See `Columns`.
        transform: The name of the transform of the graphs.
        indices_checked: Whether every edge is known to end in its own graph.
        attributes: The attributes of the graphs.
        row_pointers: See `Columns`.
        row_ends: See `Columns`.
        block_sums: The CRC-32 of each block of each file, in order; None in an unfinished store.
    """

    num_graphs: int
    last_graph: int
    data_class: str
    node_types: tuple[StoreKey, ...]
    edge_types: tuple[StoreKey, ...]
    states_num_nodes: tuple[StoreKey, ...]
    transform: str | None
    indices_checked: bool
    attributes: tuple[AttributeEntry, ...]
    row_pointers: tuple[tuple[Axis, ArrayFile], ...]
    row_ends: tuple[tuple[StoreKey, ArrayFile], ...] | None
    block_sums: ArrayFile | None = None

    @property
    def files(self) -> list[ArrayFile]:
        """All files of the folder except the manifest; the last file has the checksums of all blocks."""
        of_attributes = [f for a in self.attributes for f in (a.values, a.increments) if f is not None]
        others = [file for _, file in (*self.row_pointers, *(self.row_ends or ()))]
        return of_attributes + others + ([] if self.block_sums is None else [self.block_sums])

    def with_files(self, change: Callable[[ArrayFile], ArrayFile]) -> "Manifest":
        """Return the manifest with the entry of each file replaced."""
        return replace(
            self,
            attributes=tuple(
                replace(a, values=change(a.values), increments=a.increments and change(a.increments))
                for a in self.attributes
            ),
            row_pointers=tuple((axis, change(file)) for axis, file in self.row_pointers),
            row_ends=self.row_ends and tuple((key, change(file)) for key, file in self.row_ends),
        )


def to_json(manifest: Manifest) -> bytes:
    """Return the manifest as JSON text with a checksum."""
    content = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **vars(manifest)}, default=_plain))
    return json.dumps({**content, "crc32": _checksum(content)}, indent=1).encode()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder; check the manifest and the length of every file in it.

    Raises:
        ValueError: the manifest is missing, damaged or of a different version; or a file is missing or has a different
            length.
    """
    path = folder / NAME
    if not path.is_file():
        raise ValueError(f"{folder} is not a store of popgeo: it has no {NAME}. Write one with popgeo.data.write.")
    manifest = from_json(path)
    for file in manifest.files:
        target = folder / file.file
        found = target.stat().st_size if target.is_file() else None
        if found != file.num_bytes:
            what = "is missing" if found is None else f"has {found:,} bytes"
            raise damaged(target, f"it {what}, and must have {file.num_bytes:,}")
    return manifest


def damaged(path: Path, what: str) -> ValueError:
    """Return the error for a damaged file.

    Args:
        path: The file.
        what: The fault of the file.
    """
    return ValueError(f"{path} is damaged: {what}. Copy the file again, or write the store again.")


def from_json(path: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        ValueError: the manifest is damaged or of a different version.
    """
    try:
        content = json.loads(path.read_bytes())
        checksum, *known = (content.pop(key) for key in ("crc32", "format", "version"))
        if known != [FORMAT, VERSION]:
            raise TypeError(f"it is of {known[0]!r}, version {known[1]}; this popgeo reads {FORMAT!r}, {VERSION}")
        if checksum != _checksum({"format": FORMAT, "version": VERSION, **content}):
            raise TypeError("its checksum differs")
        return _manifest(content)
    except MALFORMED as error:
        raise ValueError(f"{path} is damaged: {error}. Restore it or write the store again.") from error


def sums_of_file(path: Path, num_parts: int) -> tuple[tuple[int, ...], bytes]:
    """Return the CRC-32 of equal parts of a file, and the CRC-32 of each block of each part, 4 bytes each."""
    length, of_parts, of_blocks = path.stat().st_size // num_parts, [], []
    with path.open("rb") as file:
        for _ in range(num_parts):
            left, checksum = length, 0
            while left and (block := file.read(min(left, BLOCK_BYTES))):
                of_blocks.append(zlib.crc32(block))
                checksum, left = zlib.crc32(block, checksum), left - len(block)
            of_parts.append(checksum)
    return tuple(of_parts), np.array(of_blocks, "<u4").tobytes()


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _plain(value: Any) -> Any:
    if isinstance(value, Level):
        return value.value
    return [value.level.value, value.store, value.name] if isinstance(value, Axis) else vars(value)


def _manifest(content: Mapping[str, Any]) -> Manifest:
    """Return a manifest from its JSON content; a damaged or forged content raises an error of `MALFORMED`."""
    ends, sums = content["row_ends"], content.get("block_sums")
    return Manifest(
        **{
            **content,
            **{name: tuple(map(_key, content[name])) for name in ("node_types", "edge_types", "states_num_nodes")},
            "attributes": tuple(map(_attribute, content["attributes"])),
            "row_pointers": tuple((_axis(axis), _file(file)) for axis, file in content["row_pointers"]),
            "row_ends": None if ends is None else tuple((_key(key), _file(file)) for key, file in ends),
            "block_sums": None if sums is None else _file(sums),
        }
    )


def _attribute(entry: Mapping[str, Any]) -> AttributeEntry:
    files = {name: None if entry[name] is None else _file(entry[name]) for name in ("values", "increments")}
    doubt = entry.get("doubt")  # an earlier version did not write it
    nouns = {"store": _key(entry["store"]), "axis": _axis(entry["axis"]), "doubt": doubt and Level(doubt)}
    made = AttributeEntry(**{**entry, **nouns, **files})
    if not isinstance(made.name, str) or type(made.dim) is not int or not 0 <= made.dim < len(made.values.shape):
        raise TypeError(f"{str(entry)[:200]} is not an attribute")
    return made


def _key(key: str | Sequence[str] | None) -> StoreKey:
    parts = key if isinstance(key, list) and len(key) == 3 else ["" if key is None else key]
    if not all(isinstance(part, str) for part in parts):
        raise TypeError(f"{str(key)[:200]} is not a type of nodes or edges")
    return tuple(key) if isinstance(key, list) else key  # type: ignore[return-value]  # three, as checked above


def _axis(parts: Sequence[Any]) -> Axis:
    level, store, name = parts
    if not isinstance(name, str | None):
        raise TypeError(f"{str(name)[:200]} is not a name of an attribute")
    return Axis(Level(level), _key(store), name)


def _file(fields: Mapping[str, Any]) -> ArrayFile:
    file = ArrayFile(**{**fields, "shape": tuple(fields["shape"]), "crc32": tuple(fields["crc32"])})
    # A name with a path out of the folder could make a reader or a writer use a file elsewhere.
    is_name = file.file == Path(file.file).name and file.file not in ("", "..") and len(file.file.encode()) < 250
    numbers = all(type(number) is int and 0 <= number < _MOST for number in (*file.shape, *file.crc32))
    if not (is_name and isinstance(file.torch_dtype, torch.dtype) and numbers and file.crc32):
        raise TypeError(f"{str(fields)[:200]} is not an array in a file of the folder")
    return file
