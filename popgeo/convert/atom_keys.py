"""The keys of energy, forces and other attributes in files of structures, their units, and the unused keys."""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from popgeo.convert.units import QUANTITIES, all_factors, factor_of, unit_in_name

Keys: TypeAlias = Mapping[str, str | None]
LABELS = ("energy", "forces", "stress")
_MADE = {"z", "pos", "cell", "pbc", "edge_index", "edge_shift", "cutoff"}  # attributes that each structure has
_WEIGHTS = {name: (name, f"config_{name}") for name in ("weight", *(f"{label}_weight" for label in LABELS))}
_VIRIALS = ("virial", "virials", "ref_virial", "ref_virials")
_OF_VIRIALS = ("virial_weight", "virials_weight", "config_virial_weight", "config_virials_weight")
WEIGHTS = tuple(_WEIGHTS)
"""Weights of a structure, and of each of its labels."""
_TAKEN = {name: (name, f"ref_{name}") for name in LABELS} | _WEIGHTS | {"head": ("head",)}

# The kind of a key by its name in lower case; the first match is used.
_UNIT = r"_?units?($|_(?!cell))"
_KINDS = {
    "unit": _UNIT,
    "weight": r"weight",
    "cell": r"lattice|cell(?!ul)|(^|_)box($|_)",
    "pbc": r"pbc|periodic(?!_table)",
    "energy": r"energ|(^|_)(e_?tot|toten|u0)($|_)",
    "forces": r"forc|(^|_)grad(ient)?s?($|_)",
    "stress": r"stress|virial",
    "charge": r"charge|atomrefs",
    "spin": r"spin(?!_?(pol|orbit))|multiplicity|unpaired|initial_magmom",
}
_OF_ATOMS = re.compile(
    r"(^|_)(charges|magmoms|energies|stresses|forces|momenta|velocities|masses|tags|spins|dipoles)$|(^|_)(per_?atom|"
    r"atomic)($|_)|mulliken|hirshfeld|(^|_)(lowdin|loewdin|nbo|bader|ddec)"
)
_OF_STRUCTURE = re.compile(r"(^|_)(dipole|quadrupole|polari[sz]ability|energy|charge|spin|magmom|stress|virials?)($|_)")


@cache
def kind_of(key: str) -> str | None:
    """Return the kind of a key, such as `"energy"`; None for a kind that potentials do not use.

    Example:
        >>> kind_of("dft_Virials"), kind_of("config_energy_weight"), kind_of("config_type")
        ('stress', 'weight', None)
    """
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, key.lower())), None)


def find_names(by_key: Mapping[str, Any], chosen: Keys, wanted: bool = True) -> tuple[dict[str, str], dict[str, str]]:
    """Return the key of each attribute, and the unused keys with the options that read them.

    Args:
        by_key: The values of the atoms and of the structure by their keys in the file.
        chosen: The keys that the user states; None leaves an attribute out.
        wanted: Whether to read labels and weights that the user does not name. Default: True.

    Raises:
        ValueError: a stated key is missing, several keys fit, or the key of the energy is per atom.
    """
    names = {name: key for name, key in chosen.items() if key is not None}
    if made := sorted(_MADE & names.keys()):
        raise ValueError(f"{made} come from the atoms and not from keys. Give these attributes different names.")
    if missing := sorted({key for name, key in names.items() if name not in WEIGHTS} - by_key.keys()):
        raise ValueError(f"it has no {missing}, but {sorted(by_key)}. Correct the keys.")
    if re.search("per_?atom", names.get("energy", "").lower()):
        raise ValueError(
            f"it has {names['energy']!r} as energy, but the total energy is needed. Multiply it by the number of atoms."
        )
    for name in _TAKEN if wanted else ():
        if name in chosen:
            continue
        first, second = ([key for key in by_key if key.lower() in small] for small in _options(name, names))
        exact = first or second
        similar = [key for key in by_key if kind_of(key) == name] if name in LABELS else []
        if len(exact) == 1:
            names[name] = exact[0]
        elif exact or similar:
            raise ValueError(
                f"it has {sorted(exact or similar)}. Pass keys={{{name!r}: ...}} (--key {name}=...) with one of them, "
                f"or None (--key {name}=) to leave {name} out."
            )
    return names, _unused_keys(by_key, names, chosen) if wanted else {}


def _options(name: str, names: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys of an attribute in lower case, and the keys to use if these are missing."""
    if name == "stress":
        return _TAKEN[name], _VIRIALS
    if name == "stress_weight":  # weights of virials are used if the stress is computed from virials
        both = (_TAKEN[name], _OF_VIRIALS)
        return both[::-1] if "virial" in names.get("stress", "").lower() else both
    return _TAKEN[name], ()


def _unused_keys(by_key: Mapping[str, Any], names: Mapping[str, str], chosen: Keys) -> dict[str, str]:
    read, found = set(names.values()), {}
    for key in by_key:
        kind = kind_of(key)
        if key in read or kind is None or is_settled(key, chosen):
            continue
        is_one = kind in (*LABELS, "weight") and not re.search("energies|stresses", key.lower())
        name = kind if is_one else key.lower()
        found[key] = f"--key {name}={key}"
    return found


def key_mismatch(name: str, names: Mapping[str, str], first: Mapping[str, str], where: str) -> str:
    """Return the error text for a structure that has an attribute under a different key than an earlier structure.

    Args:
        name: The attribute.
        names: The key of each attribute in the structure.
        first: The key of each attribute in the earlier structure.
        where: The earlier structure.
    """
    hint = f"; --key {name}={names.get(name)} gives the others the weight 1" if name in WEIGHTS else ""
    if name in LABELS:
        hint = f", in popgeo train by --{name}-weight 0; --partial-labels takes structures that lack some labels"
    return (
        f"it has {names.get(name, 'nothing')!r} as {name}, {where} has {first.get(name, 'nothing')!r}. Pass "
        f"keys={{{name!r}: None}} (--key {name}=) to leave it out{hint}."
    )


def require_same_attributes(names: Mapping[Path, Mapping[str, str]]) -> None:
    """Check that all files have the attributes of the first file, under any keys; weights may be absent.

    Args:
        names: For each file, the key of each attribute in its first structure.

    Raises:
        ValueError: a file has different attributes.
    """
    (first, of_first), *others = names.items()
    for path, own in others:
        if wrong := (own.keys() ^ of_first.keys()) - {*WEIGHTS}:
            raise ValueError(f"{path}, structure 0: {key_mismatch(min(wrong), own, of_first, str(first))}")


def is_settled(key: str, chosen: Keys) -> bool:
    """Check whether the user named a key or left it out, or other code uses it: units, cells and pbc."""
    is_looked_at = kind_of(key) in ("unit", "cell", "pbc") or key.lower() == "free_energy"  # see `other_energy`
    return is_looked_at or bool({kind_of(key), key, key.lower()} & chosen.keys())


def check_cell(by_key: Mapping[str, Any], has_cell: bool) -> None:
    """Check that no unused key has a cell or periodicity.

    Raises:
        ValueError: a key looks like a cell or periodicity and is not used.
    """
    for key in by_key:
        kind = kind_of(key)
        if kind == "pbc" or (kind == "cell" and not has_cell and "super" not in key.lower()):
            wanted = 'Lattice="ax ay az bx by bz cx cy cz"' if kind == "cell" else 'pbc="T T F"'
            raise ValueError(f"it has {key!r}, which is not read as its {kind}. Write {wanted}, or remove the key.")


def find_factors(
    by_key: Mapping[str, Any], metadata: Mapping[str, Any], names: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, float]:
    """Return the factor of each attribute, from units that the file or the user states.

    Args:
        by_key: The values of the structure; keys such as `energy_unit` or `units` state units.
        metadata: The metadata of the whole file, such as SchNetPack's `_property_unit_dict`.
        names: The key of each attribute.
        given: Units that the user states, by `QUANTITIES`.

    Raises:
        ValueError: a unit is unknown, contradicts a different unit, belongs to no key, or other units are missing.
    """
    sources = [(key, value) for source in (metadata, by_key) for key, value in source.items() if kind_of(key) == "unit"]
    stated: dict[str, str] = {}
    for about, word in (pair for key, value in sources for pair in _stated_units(key, value).items()):
        if stated.setdefault(about, word).lower() != word.lower():
            raise ValueError(f"it has the units {stated[about]!r} and {word!r} of {about}. Remove one.")
    factors = all_factors(given)
    for name, key in names.items():
        is_open = name in LABELS and factors[name] == 1.0 and not {name, key.lower()} & (stated.keys() | given.keys())
        if is_open and (unit := unit_in_name(key)) is not None:
            raise ValueError(
                f"the name of {key!r} says {unit}, and no unit of {name} is given. Pass units={{{name!r}: ...}} "
                f"(--units {name}=...), such as eV or hartree for energy, eV/angstrom for forces, GPa for stress."
            )
    if not stated and not given:
        return {}
    of_mappings = [about for key, value in sources if isinstance(value, Mapping) for about in _stated_units(key, value)]
    for about in sorted(stated.keys() - {*QUANTITIES, "virial", *names, *map(str.lower, by_key), *of_mappings}):
        if (quantity := _quantity_of(stated[about])) is not None and factor_of(stated[about], quantity) != 1.0:
            raise ValueError(
                f"it has the unit {stated[about]!r} of {about!r}, but no such key. Remove the unit, or call it "
                f"{', '.join(f'{name}_unit' for name in QUANTITIES[:-1])} or {QUANTITIES[-1]}_unit."
            )
    found = {"length": _factor(stated, "length", given, factors)}
    for name, key in names.items():
        if name in LABELS:
            virial = name == "stress" and "virial" in key.lower()
            if virial and "stress" in {*stated, *given}:
                raise ValueError(f"it has {key} and a unit of stress; name a unit of energy, which virials have.")
            own = "virial" if virial and key.lower() not in stated else key.lower()
            found[name] = _factor(stated, "energy" if virial else name, given, factors, own)
        elif (unit := stated.get(key.lower(), stated.get(name))) is not None:
            found[name] = factor_of(unit, name)
    if not given and (found["length"], found.get("energy", 1.0)) != (1.0, 1.0):
        for name in ("forces", "stress"):
            key = names.get(name, "").lower()
            if key and not {name, key} & stated.keys() and "virial" not in key:
                raise ValueError(
                    f"the file names units of {sorted(stated)}, but none of {name}. Pass units={{{name!r}: ...}} "
                    f"(--units {name}=...), such as eV/angstrom."
                )
    return found


def _factor(
    stated: Mapping[str, str], quantity: str, given: Mapping[str, str], factors: Mapping[str, float], key: str = ""
) -> float:
    """Return the factor of one quantity; the units of the user and of the file must agree."""
    unit = stated.get(key, stated.get(quantity))
    if unit is None:
        return factors[quantity]
    factor = factor_of(unit, quantity)
    if quantity in given and abs(factor / factors[quantity] - 1) > 1e-3:
        raise ValueError(f"the file has {quantity} in {unit!r}, --units says {given[quantity]!r}. Correct one of them.")
    return factor


def _quantity_of(unit: str) -> str | None:
    """Return the quantity of a unit; None if the unit fits no quantity."""
    for quantity in QUANTITIES:
        with suppress(ValueError):
            factor_of(unit, quantity)
            return quantity
    return None


_WORDS = {"distance": "length", "position": "length", "pos": "length", "force": "forces", "virial": "virial"}


def _stated_units(key: str, value: Any) -> dict[str, str]:
    """Return the units that a key states, by quantity or by the key of an attribute, in lower case."""
    if isinstance(value, Mapping):
        return {_WORDS.get(name.lower().rstrip("s"), name.lower()): str(unit) for name, unit in value.items()}
    about = re.sub(_UNIT, "", key.lower()).removeprefix("of_").strip("_")
    about = _WORDS.get(about.rstrip("s"), about)
    if isinstance(value, bool):
        raise ValueError(f"it has {key!r} without a unit. Pass units=... (--units energy=... length=...) or remove it.")
    if about:
        return {about: str(value)}
    text = str(value)
    if text.lower() in ("metal", "ase", "ev", "real"):
        return {"energy": "kcal/mol" if text.lower() == "real" else "eV"}
    if (quantity := _quantity_of(text)) in ("energy", "length"):
        return {quantity: text}
    raise ValueError(f"it has {key}={text!r}, which is not a known unit. Remove it and pass units=... (--units).")


def level_of(key: str, shape: tuple[int, ...], num_atoms: int, is_array: bool) -> str:
    """Return the level of a key from its meaning: `"node"` for values of atoms, `"graph"` for the structure.

    Raises:
        ValueError: neither the key nor its shape decides.

    Example:
        >>> level_of("mulliken_charges", (1,), 1, False), level_of("dipole", (3,), 3, False)
        ('node', 'graph')
    """
    if is_array:
        return "node"
    like_atoms = shape[:1] == (num_atoms,)
    if like_atoms and _OF_ATOMS.search(key.lower()):
        return "node"
    if not like_atoms or _OF_STRUCTURE.search(key.lower()) or num_atoms == 1:
        return "graph"
    raise ValueError(
        f"it has {key!r} of shape {list(shape)} and {num_atoms} atoms: the values may belong to atoms or to the "
        f"structure. Pass levels={{{key!r}: 'node'}} or 'graph' (--level {key}=node)."
    )
