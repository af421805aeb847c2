"""Files of structures, each of which is reached alone: nothing but an index of the file is kept in memory."""

import bz2
import gzip
import io
import lzma
import os
import re
import threading
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from popgeo.convert.atom_labels import symmetrised
from popgeo.convert.other_formats import format_of, molecule_of, molecule_starts, read_other

_MOST_OF_A_ROW = 1 << 26  # bytes of an unpacked row, and of a dataset in HDF5 beyond what is stored
_PAIRS = re.compile(r"""(?:^|\s)["']?([\w:.-]+)["']?\s*=\s*("[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|\S+)""")
_SPELLED = {"lattice": "Lattice", "properties": "Properties"}  # as ASE wants it
_PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_TRUE, _FALSE = {"t", "true", "1", "yes"}, {"f", "false", "0", "no"}


def require_unpacked(path: Path) -> None:
    """Unpacks a compressed file once without keeping it, as far as its size allows.

    Raises:
        ValueError: it unpacks to more than a hundred times its size.
    """
    if (unpacked := _PACKED.get(path.suffix)) is None:
        return
    left = 100 * max(path.stat().st_size, 1 << 16)
    with unpacked(path, "rb") as file:
        while part := file.read(1 << 20):
            if (left := left - len(part)) < 0:
                raise ValueError("it unpacks to more than a hundred times its size; unpack it yourself if you trust it")


def ending(path: Path) -> str:
    """The ending of a file in small letters, without the ending of a compression."""
    return Path(path.stem if path.suffix in _PACKED else path).suffix.lower()


class Reached(NamedTuple):
    """How many structures a file has, what reads one of them as an `Atoms` of ASE, and what is said of the file."""

    num_structures: int
    read: Callable[[int], Any]
    metadata: Mapping[str, Any] = {}


def reach(path: Path) -> Reached:
    """Looks into a file of structures, of which there is at least one.

    Raises:
        ValueError: it is damaged, empty or of no known kind, or a package for it is absent.
    """
    try:
        reached = _OPENERS.get(path.suffix.lower(), _reach_any)(path)
    except ImportError as error:
        raise ValueError(f"Reading {path} needs {error.name}: pip install {error.name}.") from error
    except Exception as error:  # what is damaged may break a reader of others in any way
        known = (
            f"Files that end in {', '.join(SUFFIXES)} can be read, and others that ASE knows: .cif, .pdb, POSCAR, ..."
        )
        said = str(error) if type(error) is ValueError else f"{error!r}. {known}"
        raise ValueError(f"{path} cannot be read: {said}") from error
    if not reached.num_structures:
        raise ValueError(f"{path} holds no structure.")
    return reached


def _reach_any(path: Path) -> Reached:
    """What ASE reads; its formats are mostly read from the start, so all is kept."""
    require_unpacked(path)
    with _PACKED.get(path.suffix, open)(path, "rb") as file:
        if (known := _OF_ASE.get(kind := format_of(path, file))) is not None:
            return known(path)
        steps = read_other(path, kind, file)
    return Reached(len(steps), steps.__getitem__)


def _reach_sdf(path: Path) -> Reached:
    """Molecules of an SDF, by where each of them begins."""
    opened = partial(_PACKED.get(path.suffix, open), path, "rb")
    starts = array("q", molecule_starts(opened()))
    return Reached(len(starts) - 1, partial(_read_sdf, opened, starts))


def _read_sdf(opened: Callable[[], Any], starts: Sequence[int], index: int) -> Any:
    with opened() as file:
        file.seek(starts[index])
        return molecule_of(file.read(starts[index + 1] - starts[index]).decode(errors="replace"))


def _reach_xyz(path: Path) -> Reached:
    """(Extended) XYZ, by where each structure begins."""
    unpacked = _PACKED.get(path.suffix)
    opened = partial(path.open, "rb") if unpacked is None else partial(io.BytesIO, unpacked(path).read())
    starts = array("q", [0])
    with opened() as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        while (head := file.readline()).strip():
            if not 0 < int(head) <= size - file.tell():
                raise ValueError(f"structure {len(starts) - 1} declares {int(head)} atoms in a file of {size} bytes")
            if not [file.readline() for _ in range(int(head) + 1)][-1]:
                raise ValueError(f"it is cut off in structure {len(starts) - 1}")
            starts.append(file.tell())
        if any(line.strip() for line in file):
            raise ValueError(f"more follows an empty line where structure {len(starts) - 1} would begin")
    return Reached(len(starts) - 1, partial(_read_xyz, opened, starts))


def _read_xyz(opened: Callable[[], Any], starts: Sequence[int], index: int) -> Any:
    import ase.io

    with opened() as file:
        file.seek(starts[index])
        text = file.read(starts[index + 1] - starts[index]).decode()
    head, comment, rows = text.split("\n", 2)
    found = _PAIRS.findall(comment)
    names = [name.lower() if name.lower() in ("pbc", *_SPELLED) else name for name, _ in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"it has {twice} twice. Remove one")
    said = {name: value.strip("\"'[]{}") for name, (_, value) in zip(names, found, strict=True)}
    properties = said.get("properties", "species:S:1:pos:R:3").split(":")
    if not {"pos", "positions"} & {name.lower() for name in properties[::3]}:  # ASE puts all atoms into the origin
        raise ValueError(f"it has no positions, but {properties[::3]}. Name them pos in Properties, in angstrom.")
    columns = sum(map(int, properties[2::3]))
    if len(row := rows.split("\n", 1)[0].split()) > columns:
        raise ValueError(f"its rows have {len(row)} columns, Properties names {columns}. Name all: ...:forces:R:3")
    if len(stress := re.findall(r"[-+.\deE]+", said.get("stress", ""))) == 9:
        symmetrised("stress", np.array(stress, float).reshape(3, 3))  # ASE takes the mean without a check
    comment = _PAIRS.sub(_as_ase_spells, comment)
    try:
        atoms = ase.io.read(io.StringIO("\n".join((head, comment, rows))), format="extxyz")
    except KeyError as error:  # of a symbol
        raise ValueError(f"{error} is not the symbol of an element") from error
    if "pbc" in said:
        atoms.pbc = _periodic(said["pbc"])
    return atoms


def _as_ase_spells(pair: re.Match[str]) -> str:
    """A pair of a header for ASE, which knows one spelling of each key; `pbc` is left out and read here."""
    name = _SPELLED.get(pair[1].lower(), pair[1])
    return " " if name.lower() == "pbc" else f" {name}={pair[2]}" if name in _SPELLED.values() else pair[0]


def _periodic(text: str) -> list[bool]:
    """Which directions repeat; ASE takes any word that it does not know for true.

    Raises:
        ValueError: a word is not known, or there are neither one nor three.
    """
    small = [word.lower().strip(".") for word in re.findall(r"[^\s,\[\]\"']+", text)]
    small = list(small[0]) if len(small) == 1 and len(small[0]) == 3 and set(small[0]) <= {*"tf01"} else small
    if len(small) not in (1, 3) or not {*small} <= _TRUE | _FALSE:
        raise ValueError(f'it has pbc={text!r}, which is not understood. Write pbc="T T F".')
    return [word in _TRUE for word in small] * (3 // len(small))


def _reach_hdf5(path: Path) -> Reached:
    """What MACE's `preprocess_data` writes: a group a structure, in groups of equally many."""
    import h5py

    with h5py.File(path, "r") as file:
        batches = [name for name in file if name.startswith("config_batch_")]
        if not batches:
            raise ValueError(f"it has {sorted(file)[:8]}, not the groups config_batch_0, ... of MACE")
        size, count = len(file["config_batch_0"]), sum(len(file[f"config_batch_{n}"]) for n in range(len(batches)))
        return Reached(count, partial(_read_hdf5, path, size), dict(file.attrs))


def _read_hdf5(path: Path, size: int, index: int) -> Any:
    import h5py
    from ase import Atoms

    with h5py.File(path, "r") as file:
        group = file[f"config_batch_{index // size}"][f"config_{index % size}"]
        parts = [group, group.get("properties", {}), group.get("property_weights", {})]
        file_size = path.stat().st_size
        known, labels, weights = (_values(part, file_size, group["atomic_numbers"].size) for part in parts)
        units = {f"{name}_unit": one.attrs[key] for part in parts[:2] for name, one in part.items()
                 for key in one.attrs if "unit" in key.lower()}  # fmt: skip
    given = {name: known.pop(name, None) for name in ("positions", "cell", "pbc")}
    atoms = Atoms(known.pop("atomic_numbers"), **given)
    weights = {f"config_{name.lower()}_weight": value for name, value in weights.items() if name in labels}
    atoms.info = {**known, **labels, **weights, **units}
    return atoms


def _values(group: Any, file_size: int, num_atoms: int) -> dict[str, Any]:
    """What the datasets of a group hold, without what is "None".

    Raises:
        ValueError: one is stored elsewhere, or declares more than the file can hold.
    """
    import h5py

    found = {}
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"its {name!r} is a link, perhaps to another file. Put the values into this file.")
        if not isinstance(one := group[name], h5py.Dataset):
            continue
        if one.external or one.is_virtual:
            raise ValueError(f"its {name!r} is stored in another file. Put the values into this file.")
        if one.nbytes > min(max(64 * num_atoms, 1) * 1024, file_size * 1100):  # no compression saves more
            raise ValueError(f"its {name!r} declares {one.nbytes:,} bytes for {num_atoms:,} atoms.")
        value = one[()]
        value = value.decode() if isinstance(value, bytes) else value
        if not (isinstance(value, str) and value == "None"):
            found[name] = value
    return found


def _reach_aselmdb(path: Path) -> Reached:
    """What fairchem trains from: rows of ASE's database, compressed JSON each, under their numbers in an LMDB."""
    import lmdb

    deleted = set(_in_lmdb(path, "deleted_ids") or ())
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as file, file.begin() as reading:
        numbers = (int(key) for key in reading.cursor().iternext(values=False) if bytes(key).isdigit())
        ids = array("q", sorted(number for number in numbers if number not in deleted))
    return Reached(len(ids), partial(_read_row, partial(_row_in_lmdb, path), ids), _in_lmdb(path, "metadata") or {})


def _row_in_lmdb(path: Path, number: int) -> Any:
    from ase.db.row import AtomsRow

    return AtomsRow({"id": number, **_in_lmdb(path, number)})


def _in_lmdb(path: Path, key: str | int) -> Any:
    import lmdb
    from ase.io.jsonio import decode

    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as file, file.begin() as reading:
        found = reading.get(str(key).encode())
        if found is None:
            return None
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(found, _MOST_OF_A_ROW)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise ValueError(f"{key} is cut off, or larger than {_MOST_OF_A_ROW:,} bytes when unpacked")
        return decode(text.decode())


def _reach_db(path: Path) -> Reached:
    import ase.db

    rows, row_of = ase.db.connect(path), None
    if path.suffix.lower() == ".json":  # whose every row is read from the start of the file
        row_of = {row.id: row for row in rows.select()}.__getitem__
    ids = array("q", (row.id for row in rows.select(columns=["id"], include_data=False)))
    return Reached(len(ids), partial(_read_row, row_of or rows.get, ids), dict(rows.metadata))


def _read_row(row_of: Callable[[int], Any], ids: Sequence[int], index: int) -> Any:
    row = row_of(ids[index])
    atoms = row.toatoms()
    atoms.info = {**row.key_value_pairs, **row.data}
    return atoms


def _reach_trajectory(path: Path) -> Reached:
    """A trajectory of ASE; each thread of each process opens it once."""
    steps = _trajectory(path, *_version(path))
    return Reached(len(steps), partial(_read_step, path), dict(steps.description or {}))


def _read_step(path: Path, index: int) -> Any:
    return _trajectory(path, *_version(path))[index]


def _version(path: Path) -> tuple[int, ...]:
    """What an open file is used for: this version of the file, in this process and thread."""
    file = path.stat()
    return file.st_mtime_ns, file.st_size, os.getpid(), threading.get_ident()


@lru_cache(maxsize=16)
def _trajectory(path: Path, *version: int) -> Any:
    from ase.io.trajectory import Trajectory

    return Trajectory(path)


_OPENERS = {".xyz": _reach_xyz, ".extxyz": _reach_xyz, ".h5": _reach_hdf5, ".hdf5": _reach_hdf5}
_OPENERS |= {".aselmdb": _reach_aselmdb, ".db": _reach_db, ".traj": _reach_trajectory, ".sdf": _reach_sdf}
_OF_ASE = {"xyz": _reach_xyz, "extxyz": _reach_xyz, "json": _reach_db, "sdf": _reach_sdf, "mol": _reach_sdf}
SUFFIXES = tuple(_OPENERS)
