"""Files that ASE reads for popgeo, and molecules of SDF: nothing is taken that the format of a file cannot hold."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

with Path(__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as _file:
    # A file is refused if the pattern is found in more than `most` places; an empty pattern refuses the format.
    _RULES = list(csv.DictReader(_file))
_OF_GUESS = 0.0125  # how far a mass may be from the mass of an element
_END_OF_MOLECULE = b"$$$$"


def format_of(path: Path, opened: IO[bytes]) -> str:
    """Return the name of a file's format in ASE, which does not tell data files of LAMMPS by their content."""
    from ase.io.formats import filetype

    head = opened.read(4096)
    opened.seek(0)
    return "lammps-data" if re.search(rb"(?m)^\s*\d+\s+atoms\s*$", head) and b"xlo xhi" in head else filetype(str(path))


def read_other(path: Path, kind: str, opened: IO[bytes]) -> list[Any]:
    """Return the structures of a file that ASE reads, as `Atoms`.

    Args:
        path: The file.
        kind: The name of its format in ASE.
        opened: The file, unpacked.

    Raises:
        ValueError: the format lacks elements, periodicity or a sign of where structures end, so that ASE's reader
            would make it up; or an atom is on a place only partly.
    """
    import ase.io

    rules = [rule for rule in _RULES if rule["format"] == kind]
    text = opened.read().decode(errors="replace") if any(rule["pattern"] for rule in rules) else ""
    for rule in rules:
        if len([*re.finditer(rule["pattern"], text, re.M)]) > int(rule["most"]):
            raise ValueError(f"it is a file of {kind} with {rule['what']}. {rule['remedy']}")
    if kind == "lammps-dump-text":
        _require_masses_of_elements(text)
    structures: list[Any] = ase.io.read(path, index=":", format=kind)
    for index, atoms in enumerate(structures):
        if in_part := [share for share in map(float, _occupancies(atoms)) if 0 < share < 1]:
            raise ValueError(
                f"structure {index} has atoms that occupy a place in part ({in_part[0]:g}). Choose an ordered "
                "structure, as with pymatgen's OrderDisorderedStructureTransformation."
            )
        if not len(atoms):
            raise ValueError(f"ASE reads it as {kind} and finds no atoms in structure {index}.")
    results = [one.calc.results for one in structures if one.calc is not None]
    for name in ("energy", "free_energy"):  # the reader of LAMMPS dumps gives each structure the energy 0
        if not any(one.get(name) for one in results):
            for one in results:
                one.pop(name, None)
    return structures


def _occupancies(atoms: Any) -> Iterator[float]:
    """Yield which share of its place each atom has, as far as the file says it."""
    for shares in atoms.info.get("occupancy", {}).values():  # of a CIF: for each kind of place, its elements
        yield from shares.values()
    for share in atoms.arrays.get("occupancy", ()):  # of a PDB, None if it is not stated
        yield 1.0 if share is None else share


def _require_masses_of_elements(text: str) -> None:
    """Check that masses in a dump without elements are those of elements, from which ASE takes the nearest one.

    Raises:
        ValueError: a mass belongs to no element, as of a group of atoms.
    """
    from ase.data import atomic_masses

    for section in re.split("^ITEM: ", text, flags=re.M)[1:]:
        head, *rows = section.splitlines()
        columns = head.split()[1:]
        if head.startswith("ATOMS") and "element" not in columns:
            for mass in {float(row.split()[columns.index("mass")]) for row in rows if row.strip()}:
                if np.abs(atomic_masses[1:] - mass).min() > _OF_GUESS:
                    raise ValueError(f"it has atoms of mass {mass:g}, which is no element's. Write `element`.")


def molecule_starts(file: IO[bytes]) -> list[int]:
    """Return the places in an SDF where a molecule begins, and the place where the last one ends."""
    starts, is_open = [0], False
    with file:
        while line := file.readline():
            is_end = line.startswith(_END_OF_MOLECULE)
            is_open = not is_end and (is_open or bool(line.strip()))
            starts += [file.tell()] * is_end
        return starts + [file.tell()] * is_open  # the last molecule needs no end


def molecule_of(record: str) -> Any:
    """Return a molecule of an SDF or Molfile, V2000 or V3000, as `Atoms`; ASE's reader knows the first of V2000 only.

    Raises:
        ValueError: the record is damaged, is a drawing without depth, or has something else than elements.
    """
    from ase import Atoms

    lines = record.splitlines()
    if lines[1][20:22].upper() == "2D":
        raise ValueError("it is a drawing (2D in its second line), not positions. Make positions, as rdkit does.")
    if not any(line.startswith("M  END") for line in lines):
        raise ValueError("it is cut off: it has no line M  END")
    if "V3000" in lines[3]:
        inside = [line.split() for line in lines if line.startswith("M  V30 ")]
        first, last = (inside.index(["M", "V30", word, "ATOM"]) for word in ("BEGIN", "END"))
        count = int(next(line[3] for line in inside if line[2] == "COUNTS"))
        rows = [(*line[4:7], line[3]) for line in inside[first + 1 : last] if line[2].isdecimal()]
    else:
        count = int(lines[3][:3])
        rows = [(line[:10], line[10:20], line[20:30], line[31:34].strip()) for line in lines[4 : 4 + count]]
    if len(rows) != count:
        raise ValueError(f"it declares {count} atoms and has {len(rows)}")
    try:
        return Atoms([row[3] for row in rows], [[float(number) for number in row[:3]] for row in rows])
    except KeyError as error:  # of a symbol
        raise ValueError(f"{error} is not the symbol of an element") from error
