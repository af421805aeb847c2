"""The table of keys of `popgeo info` and `popgeo train`: the use of each key, and values of unused keys."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from popgeo.convert.atom_keys import WEIGHTS, Keys, is_settled

Composition: TypeAlias = tuple[tuple[int, int], ...]
"""The number of atoms of each atomic number."""
_LARGEST = 9  # numbers of a compared value, such as a polarizability
_SAME_ENERGY = 1e-5  # eV


@dataclass(kw_only=True)
class KeyValues:
    """Values in unused keys of structures: the first value of each key, and the first different value.

    Attributes:
        differing: Two different values as text, for unused keys and for the head.
        used_weights: Keys of weights that are above 0 in some structure.
        seen: All keys of all structures.
        compositions: The different compositions of structures with an energy.
    """

    differing: dict[str, str] = field(default_factory=dict)
    used_weights: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    compositions: set[Composition] = field(default_factory=set)
    _first: dict[str, tuple[str | None, str]] = field(default_factory=dict)  # value and place
    _place: str = ""  # the place of the first structure

    def add(self, place: str, atoms: Any, by_key: Mapping[str, Any], names: Mapping[str, str], chosen: Keys) -> None:
        """Record the values of a structure, without values of single atoms.

        Args:
            place: The index and the file of the structure, for messages.
            atoms: The structure, an `Atoms` of ASE.
            by_key: The values of the structure by their keys in the file.
            names: The key of each attribute.
            chosen: The keys that the user states; keys that the user left out are ignored.
        """
        self._place = self._place or place
        if "energy" in names:
            self.compositions.add(composition_of(atoms.numbers))
        self.seen.update(by_key)
        self.used_weights.update(key for name, key in names.items() if name in WEIGHTS and np.any(by_key.get(key)))
        left = by_key.keys() - {key for name, key in names.items() if name != "head"} - atoms.arrays.keys()
        values = {key: _as_text(by_key[key]) for key in left if not is_settled(key, chosen)}
        for key in self._first.keys() | values.keys():
            value = values.get(key, "nothing")
            before, where = self._first.setdefault(key, (value if place == self._place else "nothing", self._place))
            if None not in (value, before) and value != before and key not in self.differing:
                self.differing[key] = f"{before} in {where}, {value} in {place}"

    def table(self, files: Sequence[Any]) -> str:
        """Return the keys of files that were read as a text table; empty without keys."""
        rows: dict[tuple[str, str], list[str]] = {}
        for one in files:
            for name, key in (one.names or {}).items():
                factor = f" (times {one.factors[name]:.6g})" if one.factors.get(name, 1) != 1 else ""
                is_idle = name in WEIGHTS and key not in self.used_weights
                doubt = "; it is 0 in all structures" if is_idle else self._doubt(key)
                rows.setdefault((key, f"{name}{factor}{doubt}"), []).append(str(one.path))
            for key, option in one.ignored.items():
                rows.setdefault((key, f"not read ({option}){self._doubt(key)}"), []).append(str(one.path))
        others = sorted(self.differing.keys() - {key for key, _ in rows})
        rows |= {(key, f"not read{self._doubt(key)}"): [""] for key in others}
        table = pd.DataFrame([*rows], columns=["key", "read as"])
        if len(files) > 1:
            more = [f" and {len(paths) - 1} more" * (len(paths) > 1) for paths in rows.values()]
            table.insert(0, "file", [paths[0] + word for paths, word in zip(rows.values(), more, strict=True)])
        return table.to_string(index=False) if rows else ""

    def require_weights(self, chosen: Keys) -> None:
        """Check that some structure has each weight that the user named.

        Raises:
            ValueError: no structure has the weight, so all weights would be 1.
        """
        for name, key in chosen.items():
            if name in WEIGHTS and key is not None and key not in self.seen:
                raise ValueError(
                    f"No structure has {key!r}, the requested key of {name} ({self._place} is the first without it). "
                    f"They have {sorted(self.seen)}. Correct the key, or leave --key {name}={key} out."
                )

    def _doubt(self, key: str) -> str:
        return f"; {self.differing[key]}" if key in self.differing else ""


def values_by_key(atoms: Any) -> dict[str, Any]:
    """Return the values of atoms and of the structure by their keys in the file.

    Raises:
        ValueError: a key has two different values.
    """
    results = {} if atoms.calc is None else atoms.calc.results
    arrays = {name: value for name, value in atoms.arrays.items() if name not in ("positions", "numbers")}
    results = {name: value for name, value in results.items() if value is not None}
    for name in results.keys() & (atoms.info.keys() | arrays.keys()):
        other = {**atoms.info, **arrays}[name]
        if np.size(other) != np.size(results[name]) or not np.allclose(np.ravel(other), np.ravel(results[name]), 1e-6):
            raise ValueError(f"it has two different values of {name!r}. Remove one.")
    return {**atoms.info, **arrays, **results}


def _as_text(value: Any) -> str | None:
    """Return a value as text for comparison; None for large values and for values other than numbers and words."""
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, Mapping) or np.asarray(value).dtype.kind not in "iufbU" or np.size(value) > _LARGEST:
        return None
    return str(np.asarray(value).tolist())


def other_energy(by_key: Mapping[str, Any], names: Mapping[str, str], chosen: Keys) -> dict[str, str]:
    """Return the key of a free energy that differs from the energy in use, with the option for it.

    Forces and stress of a calculation with smeared levels are derivatives of the free energy.

    Example:
        >>> names = {"energy": "energy", "forces": "forces"}
        >>> other_energy({"energy": -3.0, "free_energy": -3.3}, names, {})
        {'free_energy': '--key energy=free_energy; forces and stress are derivatives of it, energy is 0.3 eV from it'}
    """
    energy = names.get("energy", "")
    if "energy" in chosen or not names.keys() & {"forces", "stress"}:
        return {}
    for key in by_key:
        if key.lower() == energy.lower().replace("energy", "free_energy") and np.size(by_key[key]) == 1:
            apart = abs(float(np.ravel(by_key[key])[0]) - float(np.ravel(by_key[energy])[0]))
            if apart > _SAME_ENERGY:
                reason = f"forces and stress are derivatives of it, {energy} is {apart:.3g} eV from it"
                return {key: f"--key energy={key}; {reason}"}
    return {}


def composition_of(numbers: np.ndarray) -> Composition:
    """Return the composition of a structure from its atomic numbers [num_atoms]."""
    return tuple(zip(*(one.tolist() for one in np.unique(numbers, return_counts=True)), strict=True))


def undetermined_elements(compositions: Iterable[Composition], known: Iterable[int] = ()) -> str:
    """Return a warning if energies of these compositions do not determine energies of elements, or an empty text.

    Args:
        compositions: The compositions of structures with an energy.
        known: Atomic numbers of elements with a given energy.

    Example:
        >>> undetermined_elements([((1, 2), (8, 1))])[:61]
        'Energies of the elements 1, 8 do not follow from the energies'
        >>> undetermined_elements([((1, 2), (8, 1)), ((1, 2), (8, 2))])
        ''
    """
    counts = pd.DataFrame([dict(one) for one in compositions]).fillna(0)
    counts = counts.drop(columns=counts.columns.intersection([*known]))
    if counts.empty or np.linalg.matrix_rank(counts.to_numpy(float)) == counts.shape[1]:
        return ""
    numbers = ", ".join(map(str, sorted(counts)))
    return (
        f"Energies of the elements {numbers} do not follow from the energies: compositions do not tell "
        "them apart. Totals of other compositions will be wrong; add structures, or pass --E0s with energies of atoms."
    )
