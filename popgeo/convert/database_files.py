"""Databases and trajectories of ASE, read safely even from cut off, damaged or crafted files."""

import os
import re
import sqlite3
import threading
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from popgeo.convert.lmdb_file import entries_of
from popgeo.convert.open_file import OpenFile
from popgeo.convert.packed_files import most_unpacked
from popgeo.replaced import replaced

_STEPS = 10_000  # steps of SQLite between two checks of their number
_TABLE = re.compile(r"CREATE (TABLE|(UNIQUE )?INDEX)\b", re.I)
_HIDDEN = (2, 3)  # computed columns of SQLite
_MOST_OF_A_NUMBER = 1024  # largest size of a number or word of an array, in bytes


@contextmanager
def own_sizes() -> Iterator[None]:
    """Make ASE compare the declared size of a JSON array with its content; otherwise one number could fill any size."""
    from ase.io import jsonio

    with replaced(jsonio, "create_ndarray", _array):
        yield


def open_aselmdb(path: Path) -> OpenFile:
    """Open an aselmdb of fairchem: rows of ASE's database as compressed JSON, with their numbers as keys.

    Raises:
        ValueError: the file is cut off or damaged.
    """
    places = {"ids": array("q"), "starts": array("q"), "lengths": array("q")}
    others = dict[bytes, tuple[int, int]]()
    for key, start, length in entries_of(path):
        if key.isdigit():
            for of, number in zip(places.values(), (int(key), start, length), strict=True):
                of.append(number)
        elif key in (b"deleted_ids", b"metadata"):
            others[key] = start, length
    contents = {key: _unpacked(path, key.decode(), *place) for key, place in others.items()}
    ids, starts, lengths = (np.frombuffer(of, np.int64) if of else np.empty(0, np.int64) for of in places.values())
    order = np.argsort(ids, kind="stable")
    order = order[~np.isin(ids[order], np.array(contents.get(b"deleted_ids") or [], np.int64))]
    row_of = partial(_row_in_lmdb, path, ids[order], starts[order], lengths[order])
    return OpenFile(len(order), partial(_read_row, row_of, range(len(order))), contents.get(b"metadata") or {})


def _row_in_lmdb(path: Path, ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, index: int) -> Any:
    from ase.db.row import AtomsRow

    number = int(ids[index])
    return AtomsRow({"id": number, **_unpacked(path, str(number), int(starts[index]), int(lengths[index]))})


@own_sizes()
def _unpacked(path: Path, key: str, start: int, length: int) -> Any:
    """Return the content of an entry of an aselmdb.

    Raises:
        ValueError: the entry is cut off, or its unpacked size is too large.
    """
    from ase.io.jsonio import decode

    with path.open("rb") as file:
        file.seek(start)
        packed = file.read(length)
    unpacking, most = zlib.decompressobj(), most_unpacked(length)
    text = unpacking.decompress(packed, most)
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise ValueError(f"{key} is cut off, or larger than {most:,} bytes when unpacked")
    return decode(text.decode())


@own_sizes()
def open_db(path: Path) -> OpenFile:
    """Open a database of ASE, SQLite or JSON.

    Raises:
        ValueError: the file is damaged, or has computed instead of stored values.
    """
    import ase.db

    if path.suffix.lower() == ".json":  # ASE reads each row from the start of the file
        rows = ase.db.connect(path)
        found = {row.id: row for row in rows.select()}
        return OpenFile(len(found), partial(_read_row, found.__getitem__, sorted(found)), dict(rows.metadata))
    ids = array("q", _numbers_of_rows(path))
    return OpenFile(len(ids), partial(_read_row, partial(_row_in_db, path), ids), dict(_database(path).metadata))


def _numbers_of_rows(path: Path) -> Iterator[int]:
    """Yield the numbers of the rows of a database.

    Raises:
        ValueError: the database has views, triggers, computed columns or repeated numbers.
    """
    with closing(sqlite3.connect(path)) as opened:
        _limit(opened, path)
        tables = list[str]()
        for kind, name, sql in opened.execute("SELECT type, name, sql FROM sqlite_master"):
            if sql is not None and not _TABLE.match(sql):
                raise ValueError(f"it has the {kind} {name!r}, and a database of ASE has tables only")
            tables += [name] * (kind == "table")
        if "systems" not in tables:
            raise ValueError("it has no table systems, as each database of ASE has")
        for table in tables:
            if any(row[6] in _HIDDEN for row in opened.execute("SELECT * FROM pragma_table_xinfo(?)", [table])):
                raise ValueError(f"its table {table!r} has columns that are computed, and a database of ASE has none")
        last = -1
        for (number,) in opened.execute("SELECT id FROM systems ORDER BY id"):
            if number <= last:
                raise ValueError(f"it has row {number} twice")
            last = number
            yield number


def _limit(opened: sqlite3.Connection, path: Path) -> None:
    """End each query that takes more steps than a file of this size needs."""
    left = [(most_unpacked(path.stat().st_size) + 10**7) // _STEPS]

    def look() -> bool:
        left[0] -= 1
        return left[0] < 0

    opened.set_progress_handler(look, _STEPS)


def _row_in_db(path: Path, number: int) -> Any:
    return _database(path).get(number)


def _database(path: Path) -> Any:
    return _opened_database(path, *version(path))


@lru_cache(maxsize=16)
def _opened_database(path: Path, *version: int) -> Any:
    import ase.db

    rows = ase.db.connect(path)
    connect: Callable[[], sqlite3.Connection] = rows._connect

    def limited() -> sqlite3.Connection:
        _limit(opened := connect(), path)
        return opened

    rows._connect = limited
    return rows


@own_sizes()
def _read_row(row_of: Callable[[int], Any], ids: Sequence[int], index: int) -> Any:
    row = row_of(ids[index])
    atoms = row.toatoms()
    atoms.info = {**row.key_value_pairs, **row.data}
    return atoms


@own_sizes()
def open_trajectory(path: Path) -> OpenFile:
    """Open a trajectory of ASE; each thread of each process opens the file once.

    Raises:
        ValueError: the file declares more structures than it can have.
    """
    with path.open("rb") as file:  # the header has the number of structures and the place of their table
        count, place = np.frombuffer(file.read(48)[32:].ljust(16, b"\0"), "<i8").tolist()
    if not 0 <= 8 * count <= path.stat().st_size - place:
        raise ValueError(f"it is cut off or damaged: it declares {count:,} structures")
    steps = _trajectory(path, *version(path))
    return OpenFile(len(steps), partial(_read_step, path), dict(steps.description or {}))


@own_sizes()
def _read_step(path: Path, index: int) -> Any:
    return _trajectory(path, *version(path))[index]


def version(path: Path) -> tuple[int, ...]:
    """Return a cache key for an open file: the version of the file, the process and the thread."""
    file = path.stat()
    return file.st_mtime_ns, file.st_size, os.getpid(), threading.get_ident()


@lru_cache(maxsize=16)
def _trajectory(path: Path, *version: int) -> Any:
    from ase.io.trajectory import Trajectory

    return Trajectory(path)


def _array(shape: Any, dtype: str, data: Any) -> np.ndarray:
    """Return an array from ASE's JSON form.

    Raises:
        ValueError: the declared size does not match the numbers.
    """
    sizes = [shape] if isinstance(shape, int) else shape
    kind = np.dtype(dtype)
    declared = prod(sizes) * (2 if kind.kind == "c" else 1)
    if not isinstance(data, list) or len(data) != declared or kind.itemsize > _MOST_OF_A_NUMBER:
        raise ValueError(f"an array of {shape} has {len(data) if isinstance(data, list) else 1} numbers")
    array = np.empty(shape, dtype=kind)
    flat = array.ravel()
    (flat.view(array.real.dtype) if kind.kind == "c" else flat)[:] = data
    return array
