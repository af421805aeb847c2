"""Writing of the folder of a store, block after block of graphs; the folder appears when it is complete."""

import os
import re
import zlib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch

from popgeo.atomic_write import name_file, write_atomically
from popgeo.data.axes import GRAPHS, Axis
from popgeo.data.columns import Columns
from popgeo.data.store import manifest as notes
from popgeo.data.store.append_file import AppendFile
from popgeo.data.store.describe import check_alike, describe, digest, plain, pointer_file
from popgeo.folder_lock import LOCK, folder_lock

_JOURNAL, _SUMS = "journal.json", "block-sums.bin"
# The file names of `describe`, the lock, and temporary files of a killed writer of a journal.
_WRITTEN = re.compile(
    rf"\d\d+-[\w-]{{0,40}}(\.increments)?\.(bin|json)(\.row\d+)?|(rows|row-ends)-\d\d+\.bin"
    rf"|{re.escape(LOCK)}|{re.escape(_JOURNAL)}\.popgeo-.*\.part"
)


def _require_own(part: Path) -> None:
    """Check that a folder contains only files of a store writer; an early killed writer leaves no journal.

    Raises:
        ValueError: the folder has other files, which would become part of the store.
    """
    if (part / notes.NAME).exists() or (part / _JOURNAL).exists():
        return
    if strange := [one.name for one in part.iterdir() if one.is_dir() or not _WRITTEN.fullmatch(one.name)]:
        raise ValueError(
            f"{part} contains {', '.join(sorted(strange)[:3])}, which is not part of a store. Move the "
            "folder elsewhere, or write a store with a different name."
        )


class FolderWriter:
    """A writer of a store into `FOLDER.part`, which becomes `FOLDER` when the store is complete.

    A journal records the written graphs after each block; a writer that finds a journal continues after it.

    Args:
        folder: The folder to write.
        transform: The name of the transform of the graphs.
        indices_checked: Whether every edge is known to end in its own graph.

    Raises:
        ValueError: the folder exists, another process is writing it, or the unfinished folder is damaged or was begun
            with different arguments.
    """

    def __init__(self, folder: Path, *, transform: str | None = None, indices_checked: bool = True) -> None:
        self.folder, self.part = folder, folder.with_name(f"{folder.name}.part")
        self.transform, self.indices_checked = transform, indices_checked
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} exists already. Pass a different folder, or remove it first.")
        if self.part.is_symlink():
            raise ValueError(f"{self.part} is a link; popgeo never writes links. Remove it.")
        self.part.mkdir(parents=True, exist_ok=True)
        _require_own(self.part)
        self._held = ExitStack()
        self._held.enter_context(folder_lock(self.part))
        self.manifest: notes.Manifest | None = None
        self.files: dict[str, AppendFile] = {}
        try:
            self.is_complete = (self.part / notes.NAME).exists()
            if self.is_complete or (self.part / _JOURNAL).exists():
                self._go_on()
        except (ValueError, OSError):
            self._close()
            raise

    def __enter__(self) -> "FolderWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError):
            name_file(error, self.part)
        self._close()

    @property
    def num_graphs(self) -> int:
        """The number of written graphs, including graphs of an earlier writer."""
        return 0 if self.manifest is None else self.manifest.num_graphs

    @property
    def attributes(self) -> tuple[notes.AttributeEntry, ...]:
        """The attributes of the written blocks."""
        return () if self.manifest is None else self.manifest.attributes

    def check_goes_on(self, block: Columns) -> None:
        """Check that a block continues the store: its first graph must equal the last written graph.

        Raises:
            ValueError: the graphs differ, so the beginning of the store has a different source.
        """
        block, _ = plain(block)
        assert self.manifest is not None  # callers have checked that graphs are written
        is_sorted = self.manifest.row_ends is not None
        if is_sorted != (block.row_ends is not None) or digest(block, 0) != self.manifest.last_graph:
            raise ValueError(
                f"{self.part} was begun with other graphs: number {self.num_graphs - 1} differs, or the order of its "
                f"edges. Pass the same graphs again to continue, or remove that folder to start again."
            )

    def check(self, block: Columns) -> None:
        """Check that graphs can be appended.

        Raises:
            ValueError: an attribute differs from earlier graphs, or cannot be stored on disk.
        """
        new = describe(*plain(block), self.transform, self.indices_checked)
        if self.manifest is not None:
            check_alike(self.manifest, new)

    def append(self, block: Columns) -> None:
        """Append all graphs of a block that is not a view.

        Raises:
            ValueError: see `check`.
        """
        block, json = plain(block)
        new = describe(block, json, self.transform, self.indices_checked)
        if self.manifest is None:
            self._open(new)
        manifest = self.manifest or new
        manifest = self._with_rows_of(check_alike(manifest, new), manifest)
        attributes = {(attribute.store, attribute.name): attribute for attribute in block.attributes}
        for entry in manifest.attributes:
            attribute = attributes[entry.store, entry.name]
            self.files[entry.values.file].append(attribute.tensor)
            if entry.increments is not None:
                assert attribute.increments is not None  # as checked by `check_alike`
                self.files[entry.increments.file].append(attribute.increments)
        for axis, file in manifest.row_pointers:
            # An attribute may have one row in each graph of this block, and more rows in earlier graphs.
            pointer = block.row_pointers.get(axis, block.row_pointers[GRAPHS])[1:]
            self.files[file.file].append(pointer + self.files[file.file].last())
        for key, file in manifest.row_ends or ():
            assert block.row_ends is not None  # as checked by `check_alike`
            self.files[file.file].append(block.row_ends[key])
        for written in self.files.values():
            written.flush()
        num_graphs, last = manifest.num_graphs + block.num_stored, digest(block, block.num_stored - 1)
        counted = replace(manifest, num_graphs=num_graphs, last_graph=last)
        self.manifest = counted.with_files(lambda entry: self.files[entry.file].entry)
        write_atomically(self.part / _JOURNAL, notes.to_json(self.manifest))

    def finish(self) -> None:
        """Complete the files and give the folder its final name.

        Raises:
            ValueError: no graph was written.
        """
        if self.manifest is None:
            raise ValueError("There are no graphs to write; a store needs at least one.")
        if not self.is_complete:
            for file in self.files.values():
                file.finish()
            write_atomically(self.part / notes.NAME, notes.to_json(self._with_block_sums(self.manifest)))
        for entry in self.manifest.files:  # `finish` has concatenated the parts
            for number in range(1, len(entry.crc32)):
                (self.part / f"{entry.file}.row{number}").unlink(missing_ok=True)
        (self.part / _JOURNAL).unlink(missing_ok=True)
        os.replace(self.part, self.folder)
        (self.folder / LOCK).unlink(missing_ok=True)

    def _with_block_sums(self, manifest: notes.Manifest) -> notes.Manifest:
        """Write the checksums of all blocks and return the manifest with their file."""
        sums = []
        for file in manifest.files:
            of_parts, of_blocks = notes.sums_of_file(self.part / file.file, len(file.crc32))
            if of_parts != file.crc32:
                raise ValueError(f"{self.part / file.file} was changed while it was written. Remove {self.part}.")
            sums.append(of_blocks)
        data = b"".join(sums)
        write_atomically(self.part / _SUMS, data)
        entry = notes.ArrayFile(file=_SUMS, dtype="int32", shape=(len(data) // 4,), crc32=(zlib.crc32(data),))
        return replace(manifest, block_sums=entry)

    def _close(self) -> None:
        for file in self.files.values():
            file.close()
        self._held.close()

    def _go_on(self) -> None:
        self.manifest = notes.from_json(self.part / (notes.NAME if self.is_complete else _JOURNAL))
        asked = (self.transform, self.indices_checked)
        if (self.manifest.transform, self.manifest.indices_checked) != asked:
            raise ValueError(
                f"{self.part} was begun with transform {self.manifest.transform!r} and "
                f"{'' if self.manifest.indices_checked else 'un'}checked indices. Ask for the same, or remove "
                f"that folder to start again."
            )
        if not self.is_complete:
            self._open(self.manifest)

    def _open(self, manifest: notes.Manifest) -> None:
        """Open the files; a row pointer starts with 0."""
        dims = {entry.values.file: entry.dim for entry in manifest.attributes}
        for entry in manifest.files:
            self.files[entry.file] = AppendFile(self.part, entry, dims.get(entry.file, 0))
        for _, entry in manifest.row_pointers:
            if not self.files[entry.file].num_rows:
                self.files[entry.file].append(torch.tensor([0]))

    def _with_rows_of(self, axes: list[Axis], manifest: notes.Manifest) -> notes.Manifest:
        """Return the manifest with row pointers for attributes that had one row per graph so far."""
        for axis in axes:
            file = pointer_file(len(manifest.row_pointers))
            self.files[file.file] = AppendFile(self.part, file, 0)
            self.files[file.file].append(torch.arange(manifest.num_graphs + 1))
            own = (axis.store, axis.name)
            attributes = (replace(a, axis=axis) if (a.store, a.name) == own else a for a in manifest.attributes)
            pointers = (*manifest.row_pointers, (axis, file))
            manifest = replace(manifest, row_pointers=pointers, attributes=tuple(attributes))
        return manifest
