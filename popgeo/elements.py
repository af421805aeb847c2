"""Masses, symbols and radii of the chemical elements, by atomic number; number 0 is padding."""

import csv
from pathlib import Path

with Path(__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as _file:
    _ROWS = [*csv.DictReader(_file)]
ATOMIC_MASSES = tuple(float(row["mass"]) for row in _ROWS)
"""Standard atomic weights in dalton, IUPAC 2016 (doi:10.1515/pac-2015-0305), or the mass of a long-lived isotope."""
SYMBOLS = tuple(row["symbol"] for row in _ROWS)
"""Symbols of the elements, such as `H` for 1; `X` for padding."""
RADII = tuple(0.01 * int(row["radius"]) for row in _ROWS)
"""Covalent radii in angstrom, doi:10.1039/b801115j; roughly 1.6 for elements from 97 on."""
