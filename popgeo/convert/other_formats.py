"""Files in formats of ASE, without properties that a format does not have, and molecules of SDF."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

with Path(__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as _file:
    # A file with more than `most` matches of the pattern raises an error; with an empty pattern, every file does.
    _RULES = list(csv.DictReader(_file))
_MASS_TOLERANCE = 0.0125  # largest distance of a mass from the mass of an element
_END_OF_MOLECULE = b"$$$$"


def format_of(path: Path, opened: IO[bytes]) -> str:
    """Return ASE's name of the format of a file; ASE does not recognize data files of LAMMPS by their content."""
    from ase.io.formats import filetype

    head = opened.read(4096)
    opened.seek(0)
    return "lammps-data" if re.search(rb"(?m)^\s*\d+\s+atoms\s*$", head) and b"xlo xhi" in head else filetype(str(path))


def read_other(path: Path, kind: str, opened: IO[bytes]) -> list[Any]:
    """Read the structures of a file with ASE, as `Atoms`.

    Args:
        path: The file.
        kind: ASE's name of the format.
        opened: The unpacked file.

    Raises:
        ValueError: the format lacks elements, periodicity or ends of structures, so ASE's reader would guess them; or
            an atom occupies its place only partly.
    """
    import ase.io

    rules = [rule for rule in _RULES if kind in rule["formats"].split()]
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
                f"structure {index} has atoms on partially occupied sites ({in_part[0]:g}). Choose an ordered "
                "structure, as with pymatgen's OrderDisorderedStructureTransformation."
            )
        if not len(atoms):
            raise ValueError(f"ASE reads it as {kind} and finds no atoms in structure {index}.")
    results = [one.calc.results for one in structures if one.calc is not None]
    for name in ("energy", "free_energy"):  # ASE's reader of LAMMPS dumps sets the energy 0 in each structure
        if not any(one.get(name) for one in results):
            for one in results:
                one.pop(name, None)
    return structures


def _occupancies(atoms: Any) -> Iterator[float]:
    """Yield the occupancy of each place, if the file states it."""
    for shares in atoms.info.get("occupancy", {}).values():  # CIF: the elements of each kind of place
        yield from shares.values()
    for share in atoms.arrays.get("occupancy", ()):  # PDB: None if not stated
        yield 1.0 if share is None else share


def _require_masses_of_elements(text: str) -> None:
    """Check that masses in a dump without elements are masses of elements; ASE takes the nearest element.

    Raises:
        ValueError: a mass belongs to no element, for example the mass of a group of atoms.
    """
    from ase.data import atomic_masses

    for section in re.split("^ITEM: ", text, flags=re.M)[1:]:
        head, *rows = section.splitlines()
        columns = head.split()[1:]
        if head.startswith("ATOMS") and "element" not in columns:
            for mass in {float(row.split()[columns.index("mass")]) for row in rows if row.strip()}:
                if np.abs(atomic_masses[1:] - mass).min() > _MASS_TOLERANCE:
                    raise ValueError(f"it has atoms of mass {mass:g}, which no element has. Write `element`.")


def molecule_starts(file: IO[bytes]) -> list[int]:
    """Return the start of each molecule of an SDF, and the end of the last molecule."""
    starts, is_open = [0], False
    with file:
        while line := file.readline():
            is_end = line.startswith(_END_OF_MOLECULE)
            is_open = not is_end and (is_open or bool(line.strip()))
            starts += [file.tell()] * is_end
        return starts + [file.tell()] * is_open  # the last molecule needs no end mark


def molecule_of(record: str) -> Any:
    """Return a molecule of an SDF or Molfile, V2000 or V3000, as `Atoms`; ASE reads only the first in V2000.

    Raises:
        ValueError: the record is damaged, is a flat drawing, or has symbols that are not elements.
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
    except KeyError as error:  # an unknown symbol
        raise ValueError(f"{error} is not the symbol of an element") from error
