"""Forged stores on disk: changed, with matching checksums."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from popgeo.data.store.manifest import NAME, ArrayFile, Manifest, from_json, sums_of_file, to_json


def sum_anew(folder: Path, change: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> None:
    """Change the manifest of a store, and rewrite all checksums for the files' present contents."""
    manifest, of_blocks = from_json(folder / NAME), []

    def summed(file: ArrayFile) -> ArrayFile:
        of_parts, blocks = sums_of_file(folder / file.file, len(file.crc32))
        of_blocks.append(blocks)
        return replace(file, crc32=of_parts)

    manifest = change(manifest.with_files(summed))
    assert manifest.block_sums is not None
    data = b"".join(of_blocks)
    (folder / manifest.block_sums.file).write_bytes(data)
    sums = replace(manifest.block_sums, shape=(len(data) // 4,), crc32=(zlib.crc32(data),))
    (folder / NAME).write_bytes(to_json(replace(manifest, block_sums=sums)))


def set_numbers(folder: Path, name: str, values: dict[int, int]) -> None:
    """Set some int64 numbers of a file, and update the checksums."""
    numbers = np.fromfile(folder / name, dtype=np.int64)
    for place, value in values.items():
        numbers[place] = value
    (folder / name).write_bytes(numbers.tobytes())
    sum_anew(folder)
