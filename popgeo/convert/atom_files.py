"""Files of structures with random access; only an index of each file is in memory."""

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
from popgeo.convert.database_files import open_aselmdb, open_db, open_trajectory
from popgeo.convert.hdf5_file import open_hdf5
from popgeo.convert.open_file import OpenFile
from popgeo.convert.other_formats import format_of, molecule_of, molecule_starts, read_other
from popgeo.convert.packed_files import PACKED, require_unpacked, unpacked_parts
from popgeo.elements import SYMBOLS

_NAME = re.compile(r"""(?:^|\s)["']?([\w:.-]+)["']?\s*=\s*""")
_WORD = re.compile(r"\S+")
_CLOSED_BY = {'"': '"', "'": "'", "[": "]", "{": "}"}
_LONGEST_COMMENT = 1 << 18  # characters of a comment line; ASE makes an object per character
_SPELLED = {"lattice": "Lattice", "properties": "Properties"}  # the spelling of ASE
_TRUE, _FALSE = {"t", "true", "1", "yes"}, {"f", "false", "0", "no"}


def ending(path: Path) -> str:
    """Return the ending of a file name in lower case, without the ending of a compression."""
    return Path(path.stem if path.suffix in PACKED else path).suffix.lower()


def open_file(path: Path) -> OpenFile:
    """Open a file with at least one structure.

    Raises:
        ValueError: the file is damaged, empty or of an unknown kind, or a package for it is missing.
    """
    try:
        opened = _OPENERS.get(path.suffix.lower(), _open_any)(path)
    except ImportError as error:
        raise ValueError(f"Reading {path} needs {error.name}: pip install {error.name}.") from error
    except Exception as error:  # a damaged file may raise any error
        known = (
            f"Files that end in {', '.join(SUFFIXES)} can be read, and others that ASE knows: .cif, .pdb, POSCAR, ..."
        )
        reason = str(error) if type(error) is ValueError else f"{error!r}. {known}"
        raise ValueError(f"{path} cannot be read: {reason}") from error
    if not opened.num_structures:
        raise ValueError(f"{path} contains no structure.")
    return opened


def _open_any(path: Path) -> OpenFile:
    """Open a file in a format of ASE and keep all structures, because most formats are read from the start."""
    require_unpacked(path)
    with PACKED.get(path.suffix, open)(path, "rb") as file:
        if (known := _OF_ASE.get(kind := format_of(path, file))) is not None:
            return known(path)
        steps = read_other(path, kind, file)
    return OpenFile(len(steps), steps.__getitem__)


def _opener(path: Path) -> Callable[[], Any]:
    """Return a function that opens a file for random access; a compressed file is unpacked into memory."""
    return partial(io.BytesIO, b"".join(unpacked_parts(path))) if path.suffix in PACKED else partial(path.open, "rb")


def _open_sdf(path: Path) -> OpenFile:
    """Open an SDF with an index of the start of each molecule."""
    opened = _opener(path)
    starts = array("q", molecule_starts(opened()))
    return OpenFile(len(starts) - 1, partial(_read_sdf, opened, starts))


def _read_sdf(opened: Callable[[], Any], starts: Sequence[int], index: int) -> Any:
    with opened() as file:
        file.seek(starts[index])
        return molecule_of(file.read(starts[index + 1] - starts[index]).decode(errors="replace"))


def _open_xyz(path: Path) -> OpenFile:
    """Open (extended) XYZ with an index of the start of each structure."""
    opened = _opener(path)
    starts = array("q", [0])
    with opened() as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        while (head := file.readline()).strip():
            if not head.strip().lstrip(b"-").isdigit():
                raise ValueError(f"structure {len(starts) - 1} begins with {head[:40]!r}, not with its number of atoms")
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
    by_key = {name: pair.value.strip("\"'[]{}") for name, pair in zip(names, pairs, strict=True)}
    properties = by_key.get("properties", "species:S:1:pos:R:3").split(":")
    symbols, numbers = ([*{*both}.intersection(properties[::3])] for both in (("species", "symbols"), ("Z", "numbers")))
    if not symbols + numbers or not {"pos", "positions"}.intersection(properties[::3]):  # ASE would invent them
        raise ValueError(f"it has no positions or no elements, but {properties[::3]}. Call them pos and species.")
    columns = [int(number) for number in properties[2::3]]
    if len(row := rows.split("\n", 1)[0].split()) != sum(columns) or min(columns) < 1:
        raise ValueError(f"its rows have {len(row)} columns, Properties names {sum(columns)}. Name all: ...:forces:R:3")
    if len(stress := re.findall(r"[-+.\deE]+", by_key.get("stress", ""))) == 9:
        symmetrised("stress", np.array(stress, float).reshape(3, 3))  # ASE averages without a check
    try:
        atoms = ase.io.read(io.StringIO("\n".join((head, _as_ase_spells(comment, pairs), rows))), format="extxyz")
    except KeyError as error:  # an unknown symbol
        raise ValueError(f"{error} is not the symbol of an element") from error
    if symbols and numbers:  # ASE takes the numbers and does not look at the symbols
        place = sum(columns[: properties[::3].index(symbols[0])])
        for row, element in zip(rows.splitlines(), atoms.symbols, strict=False):
            if (symbol := row.split()[place].capitalize()) in SYMBOLS and symbol != element:
                raise ValueError(f"an atom is {symbol} by its symbol and {element} by its number. Remove one of them.")
    if "pbc" in by_key:
        atoms.pbc = _periodic(by_key["pbc"])
    return atoms


class _CommentEntry(NamedTuple):
    """A key and its value in a comment line, from `start` to `end`."""

    name: str
    value: str
    start: int
    end: int


def _pairs(comment: str) -> Iterator[_CommentEntry]:
    """Yield the entries of a comment line in a time proportional to its length, also with unclosed quotes."""
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
    """Return a comment line with ASE's spelling of each key and without `pbc`, which is read here."""
    parts, end = [], 0
    for pair in pairs:
        name = _SPELLED.get(pair.name.lower(), pair.name)
        known = " " if name.lower() == "pbc" else f" {name}={pair.value}" if name in _SPELLED.values() else None
        parts += [comment[end : pair.start], comment[pair.start : pair.end] if known is None else known]
        end = pair.end
    return "".join([*parts, comment[end:]])


def _periodic(text: str) -> list[bool]:
    """Return the periodic directions; ASE takes every unknown word for true.

    Raises:
        ValueError: a word is unknown, or the number of words is neither 1 nor 3.
    """
    small = [word.lower().strip(".") for word in re.findall(r"[^\s,\[\]\"']+", text)]
    small = list(small[0]) if len(small) == 1 and len(small[0]) == 3 and set(small[0]) <= {*"tf01"} else small
    if len(small) not in (1, 3) or not {*small} <= _TRUE | _FALSE:
        raise ValueError(f'it has pbc={text!r}, which is not understood. Write pbc="T T F".')
    return [word in _TRUE for word in small] * (3 // len(small))


_OPENERS = {".xyz": _open_xyz, ".extxyz": _open_xyz, ".h5": open_hdf5, ".hdf5": open_hdf5}
_OPENERS |= {".aselmdb": open_aselmdb, ".db": open_db, ".traj": open_trajectory, ".sdf": _open_sdf}
_OF_ASE = {"xyz": _open_xyz, "extxyz": _open_xyz, "json": open_db, "sdf": _open_sdf, "mol": _open_sdf}
SUFFIXES = tuple(_OPENERS)
