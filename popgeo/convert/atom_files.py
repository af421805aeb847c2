"""Files of structures, each of which is reached alone: nothing but an index of the file is kept in memory."""

import io
import os
import re
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from popgeo.convert.atom_labels import symmetrised
from popgeo.convert.database_files import reach_aselmdb, reach_db, reach_trajectory
from popgeo.convert.hdf5_file import reach_hdf5
from popgeo.convert.open_file import OpenFile
from popgeo.convert.other_formats import format_of, molecule_of, molecule_starts, read_other
from popgeo.convert.packed_files import PACKED, require_unpacked

_NAME = re.compile(r"""(?:^|\s)["']?([\w:.-]+)["']?\s*=\s*""")
_WORD = re.compile(r"\S+")
_CLOSED_BY = {'"': '"', "'": "'", "[": "]", "{": "}"}
_LONGEST_COMMENT = 1 << 18  # characters of a comment line, of each of which ASE makes an object
_SPELLED = {"lattice": "Lattice", "properties": "Properties"}  # as ASE wants it
_TRUE, _FALSE = {"t", "true", "1", "yes"}, {"f", "false", "0", "no"}


def ending(path: Path) -> str:
    """The ending of a file in small letters, without the ending of a compression."""
    return Path(path.stem if path.suffix in PACKED else path).suffix.lower()


def reach(path: Path) -> OpenFile:
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


def _reach_any(path: Path) -> OpenFile:
    """What ASE reads; its formats are mostly read from the start, so all is kept."""
    require_unpacked(path)
    with PACKED.get(path.suffix, open)(path, "rb") as file:
        if (known := _OF_ASE.get(kind := format_of(path, file))) is not None:
            return known(path)
        steps = read_other(path, kind, file)
    return OpenFile(len(steps), steps.__getitem__)


def _opener(path: Path) -> Callable[[], Any]:
    """Return what opens a file, from which any place is reached at once: a compressed file is unpacked into memory."""
    if (unpacked := PACKED.get(path.suffix)) is None:
        return partial(path.open, "rb")
    require_unpacked(path)
    with unpacked(path, "rb") as file:
        return partial(io.BytesIO, file.read())


def _reach_sdf(path: Path) -> OpenFile:
    """Molecules of an SDF, by where each of them begins."""
    opened = _opener(path)
    starts = array("q", molecule_starts(opened()))
    return OpenFile(len(starts) - 1, partial(_read_sdf, opened, starts))


def _read_sdf(opened: Callable[[], Any], starts: Sequence[int], index: int) -> Any:
    with opened() as file:
        file.seek(starts[index])
        return molecule_of(file.read(starts[index + 1] - starts[index]).decode(errors="replace"))


def _reach_xyz(path: Path) -> OpenFile:
    """(Extended) XYZ, by where each structure begins."""
    opened = _opener(path)
    starts = array("q", [0])
    with opened() as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        while (head := file.readline()).strip():
            if not 0 < int(head) <= size - file.tell():
                raise ValueError(f"structure {len(starts) - 1} declares {int(head)} atoms in a file of {size} bytes")
            comment = file.readline(_LONGEST_COMMENT + 1)
            if len(comment) > _LONGEST_COMMENT:
                raise ValueError(f"structure {len(starts) - 1} has a comment line of over {_LONGEST_COMMENT:,} bytes")
            if not deque((file.readline() for _ in range(int(head))), maxlen=1)[0]:
                raise ValueError(f"it is cut off in structure {len(starts) - 1}")
            starts.append(file.tell())
        if any(line.strip() for line in file):
            raise ValueError(f"more follows an empty line where structure {len(starts) - 1} would begin")
    return OpenFile(len(starts) - 1, partial(_read_xyz, opened, starts))


def _read_xyz(opened: Callable[[], Any], starts: Sequence[int], index: int) -> Any:
    import ase.io

    with opened() as file:
        file.seek(starts[index])
        text = file.read(starts[index + 1] - starts[index]).decode()
    head, comment, rows = text.split("\n", 2)
    pairs = [*_pairs(comment)]
    names = [pair.name.lower() if pair.name.lower() in ("pbc", *_SPELLED) else pair.name for pair in pairs]
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise ValueError(f"it has {twice[:8]} twice. Remove one")
    said = {name: pair.value.strip("\"'[]{}") for name, pair in zip(names, pairs, strict=True)}
    properties = said.get("properties", "species:S:1:pos:R:3").split(":")
    if not {"pos", "positions"} & {name.lower() for name in properties[::3]}:  # ASE puts all atoms into the origin
        raise ValueError(f"it has no positions, but {properties[::3]}. Name them pos in Properties, in angstrom.")
    columns = [int(number) for number in properties[2::3]]
    if len(row := rows.split("\n", 1)[0].split()) != sum(columns) or min(columns) < 1:
        raise ValueError(f"its rows have {len(row)} columns, Properties names {sum(columns)}. Name all: ...:forces:R:3")
    if len(stress := re.findall(r"[-+.\deE]+", said.get("stress", ""))) == 9:
        symmetrised("stress", np.array(stress, float).reshape(3, 3))  # ASE takes the mean without a check
    comment = _as_ase_spells(comment, pairs)
    try:
        atoms = ase.io.read(io.StringIO("\n".join((head, comment, rows))), format="extxyz")
    except KeyError as error:  # of a symbol
        raise ValueError(f"{error} is not the symbol of an element") from error
    if "pbc" in said:
        atoms.pbc = _periodic(said["pbc"])
    return atoms


class _CommentEntry(NamedTuple):
    """A key and its value in a comment line, from `start` to `end`."""

    name: str
    value: str
    start: int
    end: int


def _pairs(comment: str) -> Iterator[_CommentEntry]:
    """Yield the pairs of a comment line. The time is proportional to its length, whatever is not closed."""
    last = {mark: comment.rfind(mark) for mark in _CLOSED_BY.values()}
    end = 0
    while found := _NAME.search(comment, end):
        start = end = found.end()
        closed_by = _CLOSED_BY.get(comment[start : start + 1], "")
        if closed_by and last[closed_by] > start:
            end = comment.index(closed_by, start + 1) + 1
        elif word := _WORD.match(comment, start):
            end = word.end()
        else:
            return
        yield _CommentEntry(found[1], comment[start:end], found.start(), end)


def _as_ase_spells(comment: str, pairs: Sequence[_CommentEntry]) -> str:
    """Return a header for ASE, which knows one spelling of each key, without `pbc`, which is read here."""
    parts, end = [], 0
    for pair in pairs:
        name = _SPELLED.get(pair.name.lower(), pair.name)
        known = " " if name.lower() == "pbc" else f" {name}={pair.value}" if name in _SPELLED.values() else None
        parts += [comment[end : pair.start], comment[pair.start : pair.end] if known is None else known]
        end = pair.end
    return "".join([*parts, comment[end:]])


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


_OPENERS = {".xyz": _reach_xyz, ".extxyz": _reach_xyz, ".h5": reach_hdf5, ".hdf5": reach_hdf5}
_OPENERS |= {".aselmdb": reach_aselmdb, ".db": reach_db, ".traj": reach_trajectory, ".sdf": _reach_sdf}
_OF_ASE = {"xyz": _reach_xyz, "extxyz": _reach_xyz, "json": reach_db, "sdf": _reach_sdf, "mol": _reach_sdf}
SUFFIXES = tuple(_OPENERS)
