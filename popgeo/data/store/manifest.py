"""The manifest of a store on disk: what its files hold, how long they are, and what they sum up to."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from popgeo.data.axes import Axis, Level, StoreKey

NAME, FORMAT, VERSION = "manifest.json", "popgeo flat store", 1
_READ_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class ArrayFile:
    """One array in one file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    crc32: tuple[int, ...]
    """Of equal parts of the file, one after the other: one for each row of an `edge_index`."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of its numbers."""
        return getattr(torch, self.dtype)

    @property
    def num_bytes(self) -> int:
        """How long the file must be."""
        return torch.Size(self.shape).numel() * self.torch_dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class AttributeEntry:
    """An attribute of all graphs."""

    store: StoreKey
    name: str
    axis: Axis
    dim: int
    values: ArrayFile
    increments: ArrayFile | None = None
    is_json: bool
    """Whether it is no tensor: its rows are then the bytes of one value a graph as JSON."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a folder holds: the fields of a flat store, each array a file."""

    num_graphs: int
    last_graph: int
    """Checksum of the last graph, by which a writer that goes on knows its source."""
    data_class: str
    node_types: tuple[StoreKey, ...]
    edge_types: tuple[StoreKey, ...]
    states_num_nodes: tuple[StoreKey, ...]
    transform: str | None
    """What has been done to the graphs, by name."""
    indices_checked: bool
    attributes: tuple[AttributeEntry, ...]
    row_pointers: tuple[tuple[Axis, ArrayFile], ...]
    row_ends: tuple[tuple[StoreKey, ArrayFile], ...] | None

    @property
    def files(self) -> list[ArrayFile]:
        """Every file of the folder, beside the manifest."""
        of_attributes = [f for a in self.attributes for f in (a.values, a.increments) if f is not None]
        return of_attributes + [file for _, file in (*self.row_pointers, *(self.row_ends or ()))]

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
        ValueError: there is none, it is damaged or of another version, or a file is missing or has another length.
    """
    path = folder / NAME
    if not path.is_file():
        raise ValueError(f"{folder} is no store of popgeo: it has no {NAME}. Write one with popgeo.data.write.")
    manifest = from_json(path)
    for file in manifest.files:
        target = folder / file.file
        found = target.stat().st_size if target.is_file() else None
        if found != file.num_bytes:
            what = "is missing" if found is None else f"has {found:,} bytes"
            raise ValueError(
                f"{target} {what}; it must have {file.num_bytes:,}. The store is damaged: copy the file again, or "
                f"write the store again."
            )
    return manifest


def from_json(path: Path) -> Manifest:
    """Reads a manifest, and checks it.

    Raises:
        ValueError: it is damaged or of another version.
    """
    try:
        content = json.loads(path.read_bytes())
        checksum, known = content.pop("crc32"), (content.pop("format"), content.pop("version"))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}. Restore it or write the store again.") from error
    if known != (FORMAT, VERSION):
        raise ValueError(f"{path} is of {known[0]!r}, version {known[1]}; this popgeo reads {FORMAT!r}, {VERSION}.")
    if checksum != _checksum({"format": FORMAT, "version": VERSION, **content}):
        raise ValueError(f"{path} is damaged: its checksum differs. Restore it or write the store again.")
    return _manifest(content)


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """The files whose bytes are not those that were written; reads all of them."""
    return [file.file for file in manifest.files if checksums(folder / file.file, len(file.crc32)) != file.crc32]


def checksums(path: Path, num_parts: int) -> tuple[int, ...]:
    """The CRC-32 of equal parts of a file."""
    length, found = path.stat().st_size // num_parts, []
    with path.open("rb") as file:
        for _ in range(num_parts):
            left, checksum = length, 0
            while left and (piece := file.read(min(left, _READ_AT_ONCE))):
                checksum, left = zlib.crc32(piece, checksum), left - len(piece)
            found.append(checksum)
    return tuple(found)


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _plain(value: Any) -> Any:
    return [value.level.value, value.store, value.name] if isinstance(value, Axis) else vars(value)


def _manifest(content: Mapping[str, Any]) -> Manifest:
    attributes = tuple(
        AttributeEntry(
            **{**entry, "store": _key(entry["store"]), "axis": _axis(entry["axis"])}
            | {name: _file(entry[name]) for name in ("values", "increments") if entry[name]}
        )
        for entry in content["attributes"]
    )
    ends = content["row_ends"]
    return Manifest(
        **{
            **content,
            **{name: tuple(map(_key, content[name])) for name in ("node_types", "edge_types", "states_num_nodes")},
            "attributes": attributes,
            "row_pointers": tuple((_axis(axis), _file(file)) for axis, file in content["row_pointers"]),
            "row_ends": None if ends is None else tuple((_key(key), _file(file)) for key, file in ends),
        }
    )


def _key(key: str | Sequence[str] | None) -> StoreKey:
    return (key[0], key[1], key[2]) if isinstance(key, list) else key  # type: ignore[return-value]  # str or None


def _axis(parts: Sequence[Any]) -> Axis:
    return Axis(Level(parts[0]), _key(parts[1]), parts[2])


def _file(fields: Mapping[str, Any]) -> ArrayFile:
    return ArrayFile(**{**fields, "shape": tuple(fields["shape"]), "crc32": tuple(fields["crc32"])})
