"""Names of units as factors to eV and angstrom."""

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_FACTORS: dict[str, dict[str, float]] = {"energy": {}, "length": {}, "pressure": {}}
with Path(__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as _file:
    for _row in csv.DictReader(_file):
        _FACTORS[_row["quantity"]][_row["name"]] = float(_row["factor"])
_ENERGY, _LENGTH, _PRESSURE = _FACTORS.values()
_AS_IT_IS = {"", "1", "e", "|e|", "debye", "d", "e*ang", "e*angstrom", "e*a", "mub", "amu", "none"}
_FOREIGN = {name.split("/")[0] for of in _FACTORS.values() for name, factor in of.items() if factor != 1.0} | {"au"}
_DIMENSIONS = {"energy": (1, 0), "forces": (1, -1), "stress": (1, -3), "length": (0, 1)}  # powers of energy, length
QUANTITIES = tuple(_DIMENSIONS)
"""The quantities with units."""


@cache
def factor_of(unit: str, quantity: str) -> float:
    """Return the factor from a unit to eV and angstrom.

    Args:
        unit: A unit such as `"kcal/mol/Ang"`, `"Hartree/Bohr"`, `"GPa"`, in any letter case; not MeV and mbar.
        quantity: One of `QUANTITIES`, which the unit must fit; or a different name, such as a charge or dipole, with
            the factor 1 for their usual units.

    Raises:
        ValueError: the unit is unknown, or is not a unit of the quantity.

    Example:
        >>> round(factor_of("Hartree/Bohr", "forces"), 3)
        51.422
    """
    text = "?" if "MeV" in unit or "mbar" in unit else unit.lower()  # in lower case these would be meV and Mbar
    text = re.sub(r"\s+|\(|\)", "", text).replace("å", "a").replace("**", "^").replace("·", "*")
    if quantity == "stress" and text in _PRESSURE:
        return _PRESSURE[text]
    if quantity not in _DIMENSIONS and text in _AS_IT_IS:
        return 1.0
    text = re.sub(r"(kcal|kj)(/|\*)?mol(\^-1|-1)?", r"\1_mol", text)
    factor, powers = 1.0, [0, 0]
    parts = [*re.finditer(r"(^|[/*])([a-z_]+0?)(?:\^?(-?\d))?", text)]
    is_whole = "".join(part[0] for part in parts) == text
    for sign, name, power in (part.groups() for part in parts):
        exponent = (int(power) if power else 1) * (-1 if sign == "/" else 1)
        name = name.replace("_", "/")
        kind = 0 if name in _ENERGY else 1
        if name not in (_ENERGY, _LENGTH)[kind]:
            break
        factor, powers[kind] = factor * (_ENERGY, _LENGTH)[kind][name] ** exponent, powers[kind] + exponent
    else:
        wanted = _DIMENSIONS.get(quantity)
        if is_whole and powers != [0, 0] and (wanted is None or tuple(powers) == wanted):
            return factor
    raise ValueError(
        f"the unit {unit!r} of {quantity} is not known. Convert the numbers, or pass units={{{quantity!r}: ...}} "
        f"(--units {quantity}=...) with a unit of {', '.join(_ENERGY)} and {', '.join(_LENGTH)}, as in eV/angstrom."
    )


@cache
def unit_in_name(key: str) -> str | None:
    """Return the word in a key that is a unit other than eV and angstrom; None without such a word.

    Example:
        >>> unit_in_name("dft_energy_Hartree"), unit_in_name("E_kcal_mol"), unit_in_name("energy_eV")
        ('Hartree', 'kcal', None)
    """
    return next((word for word in re.findall("[A-Za-z0-9]+", key) if word.lower() in _FOREIGN), None)


def all_factors(units: Mapping[str, str]) -> dict[str, float]:
    """Return the factor of each quantity; forces and stress follow from energy and length unless they are given.

    Raises:
        ValueError: a quantity or a unit is unknown.

    Example:
        >>> all_factors({"energy": "meV", "length": "nm"})["forces"]
        0.0001
    """
    if unknown := sorted(units.keys() - _DIMENSIONS.keys()):
        raise ValueError(f"There are no units of {unknown}, but of {', '.join(QUANTITIES)}.")
    given = {name: factor_of(unit, name) for name, unit in units.items()}
    energy, length = given.get("energy", 1.0), given.get("length", 1.0)
    return {name: given.get(name, energy**e * length**n) for name, (e, n) in _DIMENSIONS.items()}
