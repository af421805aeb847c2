"""Stores on disk as a stranger may make them: changed, with checksums that fit."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from popgeo.data.store.manifest import NAME, ArrayFile, Manifest, from_json, sums_of_file, to_json


def sum_anew(folder: Path, change: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> None:
    """Changes the manifest of a store, and writes all checksums as they would be of what its files hold now."""
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
    """Sets some of the int64 numbers of a file; checksums follow."""
    numbers = np.fromfile(folder / name, dtype=np.int64)
    for place, value in values.items():
        numbers[place] = value
    (folder / name).write_bytes(numbers.tobytes())
    sum_anew(folder)
