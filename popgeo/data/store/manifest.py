"""The manifest of a store on disk: what its files hold, how long they are, and what they sum up to."""

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
"""What comes of reading what others have made up."""
BLOCK_BYTES = 1 << 16
"""Bytes of a file that are compared with a checksum at once, as in csrc/checksums.cpp."""
_MOST = 1 << 48  # rows, and so on, that any file can have


@dataclass(frozen=True, kw_only=True)
class ArrayFile:
    """One array in one file.

    Args:
        file: The name of the file.
        dtype: The type of its numbers, as torch calls it.
        shape: Its shape.
        crc32: Of equal parts of the file, one after the other: one for each row of an `edge_index`.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    crc32: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of its numbers."""
        return getattr(torch, self.dtype)

    @property
    def num_bytes(self) -> int:
        """How long the file must be."""
        return prod(self.shape) * self.torch_dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class AttributeEntry:
    """An attribute of all graphs.

    Args:
        store: The node or edge type.
        name: What it is called.
        axis: What its rows belong to.
        dim: The dimension of rows.
        values: All rows.
        increments: How far each graph shifts the values of the graphs after it in a batch.
        is_json: Whether it is not a tensor: its rows are then the bytes of one value a graph as JSON.
        doubt: What its rows could belong to as well, see `Attribute`.
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
    """What a folder holds: the fields of a flat store, each array a file.

    Args:
        num_graphs: How many graphs there are.
        last_graph: Checksum of the last graph, by which a writer that continues knows its source.
        data_class: The class of a graph, by name.
        node_types: See `Columns`.
        edge_types: See `Columns`.
        states_num_nodes: See `Columns`.
        transform: What has been done to the graphs, by name.
        indices_checked: Whether every edge is known to end in its own graph.
        attributes: What graphs hold.
        row_pointers: See `Columns`.
        row_ends: See `Columns`.
        block_sums: The CRC-32 of each block of each file, in their order; unfinished stores have none.
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
        """Every file of the folder next to the manifest; last the checksums of the blocks of all others."""
        of_attributes = [f for a in self.attributes for f in (a.values, a.increments) if f is not None]
        others = [file for _, file in (*self.row_pointers, *(self.row_ends or ()))]
        return of_attributes + others + ([] if self.block_sums is None else [self.block_sums])

    def with_files(self, change: Callable[[ArrayFile], ArrayFile]) -> "Manifest":
        """The same manifest with each file's entry replaced."""
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
    """The manifest as text, with a checksum of its own."""
    content = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **vars(manifest)}, default=_plain))
    return json.dumps({**content, "crc32": _checksum(content)}, indent=1).encode()


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a folder, and checks it and the length of every file that it names.

    Raises:
        ValueError: the manifest is missing, damaged or of another version, or a file is missing or has another length.
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
    """The error of a file that is not as it was written.

    Args:
        path: The file.
        what: What is wrong with it.
    """
    return ValueError(f"{path} is damaged: {what}. Copy the file again, or write the store again.")


def from_json(path: Path) -> Manifest:
    """Reads a manifest, and checks it.

    Raises:
        ValueError: it is damaged or of another version.
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
    """The CRC-32 of equal parts of a file; and of the blocks of each part, one after the other, 4 bytes each."""
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
    """Nouns of what a manifest says; one that others have made up raises one of `MALFORMED`."""
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
    doubt = entry.get("doubt")  # an earlier version wrote none
    nouns = {"store": _key(entry["store"]), "axis": _axis(entry["axis"]), "doubt": doubt and Level(doubt)}
    made = AttributeEntry(**{**entry, **nouns, **files})
    if not isinstance(made.name, str) or type(made.dim) is not int or not 0 <= made.dim < len(made.values.shape):
        raise TypeError(f"{str(entry)[:200]} is not an attribute")
    return made


def _key(key: str | Sequence[str] | None) -> StoreKey:
    parts = key if isinstance(key, list) and len(key) == 3 else ["" if key is None else key]
    if not all(isinstance(part, str) for part in parts):
        raise TypeError(f"{str(key)[:200]} is not a type of nodes or edges")
    return tuple(key) if isinstance(key, list) else key  # type: ignore[return-value]  # three, as was just seen


def _axis(parts: Sequence[Any]) -> Axis:
    level, store, name = parts
    if not isinstance(name, str | None):
        raise TypeError(f"{str(name)[:200]} is not a name of an attribute")
    return Axis(Level(level), _key(store), name)


def _file(fields: Mapping[str, Any]) -> ArrayFile:
    file = ArrayFile(**{**fields, "shape": tuple(fields["shape"]), "crc32": tuple(fields["crc32"])})
    # A name with a way out of the folder would have another file read, or cut off by a writer that continues.
    is_name = file.file == Path(file.file).name and file.file not in ("", "..") and len(file.file.encode()) < 250
    numbers = all(type(number) is int and 0 <= number < _MOST for number in (*file.shape, *file.crc32))
    if not (is_name and isinstance(file.torch_dtype, torch.dtype) and numbers and file.crc32):
        raise TypeError(f"{str(fields)[:200]} is not an array in a file of the folder")
    return file
