"""Files of structures, each of which is reached alone: nothing but an index of the file is kept in memory."""

import io
import zlib
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Reached(NamedTuple):
    """How many structures a file has, and what opens it to read one of them, as an `Atoms` of ASE."""

    num_structures: int
    read: Callable[[int], Any]


def reach(path: Path) -> Reached:
    """Looks into a file of structures, of which there is at least one.

    Raises:
        ValueError: it is damaged, empty or of no known kind, or a package for it is absent.
    """
    try:
        reached = _OPENERS.get(path.suffix, _reach_any)(path)
    except ImportError as error:
        raise ValueError(f"Reading {path} needs {error.name}: pip install {error.name}.") from error
    except Exception as error:  # what is damaged may break a reader of others in any way
        raise ValueError(f"{path} cannot be read: {error!r}. Check the file and its ending.") from error
    if not reached.num_structures:
        raise ValueError(f"{path} holds no structure.")
    return reached


def _reach_any(path: Path) -> Reached:
    """What ASE reads; its formats are mostly read from the start, so all is kept."""
    import ase.io

    steps = ase.io.read(path, index=":")
    return Reached(len(steps), steps.__getitem__)


def _reach_xyz(path: Path) -> Reached:
    """(Extended) XYZ, by where each structure begins."""
    starts = array("q", [0])
    with path.open("rb") as file:
        while (head := file.readline()).strip():
            if not [file.readline() for _ in range(int(head) + 1)][-1]:
                raise ValueError(f"it is cut off in structure {len(starts) - 1}")
            starts.append(file.tell())
        if any(line.strip() for line in file):
            raise ValueError(f"more follows an empty line where structure {len(starts) - 1} would begin")
    return Reached(len(starts) - 1, partial(_read_xyz, path, starts))


def _read_xyz(path: Path, starts: Sequence[int], index: int) -> Any:
    import ase.io

    with path.open("rb") as file:
        file.seek(starts[index])
        return ase.io.read(io.StringIO(file.read(starts[index + 1] - starts[index]).decode()), format="extxyz")


def _reach_hdf5(path: Path) -> Reached:
    """What MACE's `preprocess_data` writes: a group a structure, in groups of equally many."""
    import h5py

    with h5py.File(path, "r") as file:
        size, count = len(file["config_batch_0"]), sum(len(file[f"config_batch_{n}"]) for n in range(len(file)))
    return Reached(count, partial(_read_hdf5, path, size))


def _read_hdf5(path: Path, size: int, index: int) -> Any:
    import h5py
    from ase import Atoms

    with h5py.File(path, "r") as file:
        group = file[f"config_batch_{index // size}"][f"config_{index % size}"]
        data = {**group, **group["properties"]}
        known = {name: data[name][()] for name in data if isinstance(data[name], h5py.Dataset)}
    known = {name: value for name, value in known.items() if not (isinstance(value, bytes) and value == b"None")}
    given = {name: known.pop(name, None) for name in ("positions", "cell", "pbc")}
    atoms = Atoms(known.pop("atomic_numbers"), **given)
    for name, value in known.items():
        value = value.decode() if isinstance(value, bytes) else value
        (atoms.arrays if np.shape(value)[:1] == (len(atoms),) else atoms.info)[name] = value
    return atoms


def _reach_aselmdb(path: Path) -> Reached:
    """What fairchem trains from: rows of ASE's database, compressed JSON each, under their numbers in an LMDB."""
    deleted = set(_in_lmdb(path, "deleted_ids") or ())
    ids = array("q", (number for number in range(1, _in_lmdb(path, "nextid")) if number not in deleted))
    return Reached(len(ids), partial(_read_row, partial(_row_in_lmdb, path), ids))


def _row_in_lmdb(path: Path, number: int) -> Any:
    from ase.db.row import AtomsRow

    return AtomsRow({"id": number, **_in_lmdb(path, number)})


def _in_lmdb(path: Path, key: str | int) -> Any:
    import lmdb
    from ase.io.jsonio import decode

    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as file, file.begin() as reading:
        found = reading.get(str(key).encode())
        return None if found is None else decode(zlib.decompress(found).decode())


def _reach_db(path: Path) -> Reached:
    import ase.db

    rows = ase.db.connect(path)
    ids = array("q", (row.id for row in rows.select(columns=["id"], include_data=False)))
    return Reached(len(ids), partial(_read_row, rows.get, ids))


def _read_row(row_of: Callable[[int], Any], ids: Sequence[int], index: int) -> Any:
    row = row_of(ids[index])
    atoms = row.toatoms()
    atoms.info = {**row.key_value_pairs, **row.data}
    return atoms


def _reach_trajectory(path: Path) -> Reached:
    import ase.io
    from ase.io.trajectory import Trajectory

    with Trajectory(path) as steps:
        return Reached(len(steps), partial(ase.io.read, path))


_OPENERS = {".xyz": _reach_xyz, ".extxyz": _reach_xyz, ".h5": _reach_hdf5, ".hdf5": _reach_hdf5}
_OPENERS |= {".aselmdb": _reach_aselmdb, ".db": _reach_db, ".traj": _reach_trajectory}
SUFFIXES = tuple(_OPENERS)
