"""Checks of structures for training and testing: labels, weights, heads and energies."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from popgeo.convert.atom_keys import LABELS, WEIGHTS
from popgeo.convert.key_values import composition_of, undetermined_elements

_IDENTITY = ("z", "pos", "cell", "pbc")
_DECIMALS = 4  # of positions in angstrom, because a copy of a structure may have been stored in float32


def weight_of(one: Any, label: str) -> Tensor:
    """Return the weight of a label of a structure, or of each structure of a batch, [num_graphs]."""
    found = [one[name] for name in ("weight", f"{label}_weight") if name in one]
    return torch.stack(found).prod(0) if found else torch.ones(())


def require_options_of_training(
    keys: Mapping[str, str | None], levels: Mapping[str, str], units: Mapping[str, str], store: object | None
) -> None:
    """Check that training uses each option about keys.

    Raises:
        ValueError: an option names a key other than a label, a weight or the head; or there is such an option with a
            store, which has final names and units.
    """
    given = [f"--key {name}={key}" for name, key in keys.items() if key]
    known = {*LABELS, *WEIGHTS, "head"}
    others = [f"--key {name}={key}" for name, key in keys.items() if key and name not in known]
    if others := [*others, *(f"--level {key}={level}" for key, level in levels.items())]:
        raise ValueError(
            f"{' '.join(others)} names something that no model of popgeo train takes; it takes {', '.join(LABELS)}, "
            "their weights and the head. Leave the option out; popgeo convert writes such values to a store, for a "
            "model of your own."
        )
    if store is not None and (given := [*given, *(f"--units {name}={unit}" for name, unit in units.items())]):
        raise ValueError(f"{store} is a store of popgeo, and {given[0]} is for files. Pass it to popgeo convert.")


def with_one_head(parts: dict[str, list[Data]], paths: Mapping[str, object], head: str | None) -> dict[str, list[Data]]:
    """Return the structures of one head (for example one level of theory), without the attribute `head`.

    Args:
        parts: Structures for train, valid and test.
        paths: The path of each part, for messages.
        head: The chosen head. Default: all structures must have the same head.

    Raises:
        ValueError: there are several heads and no choice, or a part has no structure of the chosen head.
    """
    chosen: dict[str, list[Data]] = {}
    first: dict[str, str] = {}
    for part, some in parts.items():
        heads = [_head_of(one) for one in some]
        for own in {*heads} - first.keys():
            first[own] = f"{own or 'no head'} (structure {heads.index(own)} of {paths[part]})"
        if head is not None and some and head not in heads:
            named = sorted({*heads} - {""}) or "no head"
            raise ValueError(f"{paths[part]} has no structure of the head {head!r}; it has {named}.")
        chosen[part] = [one for one, own in zip(some, heads, strict=True) if head in (None, own)]
        for one in some:
            one.pop("head", None)
    if head is None and len(first) > 1:
        raise ValueError(
            f"There are several heads: {', '.join(first[own] for own in sorted(first))}. Energies of different heads, "
            "as of two levels of theory, do not belong together. Pass --head NAME to train on one, or --key head= if "
            "all are of the same level."
        )
    return chosen


def _head_of(one: Data) -> str:
    value = one.get("head", "")
    return str(value.tolist()) if isinstance(value, Tensor) else str(value)


def common_labels(parts: Mapping[str, list[Data]], wanted: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the labels to learn; remove labels that are unknown in all structures.

    Args:
        parts: Structures for train, valid and test; a part may be empty.
        wanted: Labels that the user requests.

    Raises:
        ValueError: some structures lack a label that others have, or a label has the weight 0 in all structures of
            train, or all labels have the weight 0 in one part.
    """
    places = [(part, i, one) for part, some in parts.items() for i, one in enumerate(some)]
    labels, judged = [], set()
    for label in LABELS:
        has, lacks = ([place for place in places if (label in place[2]) == there] for there in (True, False))
        if has and lacks:
            part, i, _ = lacks[0]
            raise ValueError(
                f"The structures of {part} have no {label}, the structures of {has[0][0]} have it. Pass "
                f"--{label}-weight 0 to train without, or structures of {part} that have it; structure {i} of {part} "
                "is the first without."
            )
        counting = {part for part, some in parts.items() if any(_counts(one, label) for one in some)}
        judged |= counting
        if "train" in counting:
            labels.append(label)
        elif has and (label in wanted or counting):
            raise ValueError(
                f"{label} counts in no structure of train: it is absent or its weight is 0 in all of them. "
                f"Give structures with {label} that count, or pass --{label}-weight 0 to train without."
            )
        else:
            for _, _, one in has:
                del one[label]
    for part, some in parts.items():
        if some and labels and part not in judged:
            raise ValueError(
                f"No structure of {part} counts: {' and '.join(labels)} are absent or have the weight 0 in all "
                f"{len(some)}, so the model could not be evaluated. Give structures that count, as by --{part} FILE."
            )
    return tuple(labels)


def _counts(one: Data, label: str) -> bool:
    """Check whether a label of a structure is known and has a weight above 0."""
    return label in one and bool(one[label].isfinite().any() and (weight_of(one, label) > 0).all())


def require_varied_energies(structures: Sequence[Data]) -> None:
    """Check that energies of different structures are not all equal; a program without energies writes such files.

    Raises:
        ValueError: all energies are equal.
    """
    known = [one for one in structures if _counts(one, "energy")]
    energies = {float(one.energy) for one in known}
    if len(known) >= 3 and len(energies) == 1 and len({_digest(one) for one in known}) > 1:
        raise ValueError(
            f"All {len(known)} energies to train on are {energies.pop():.6g} eV, though the structures differ: a "
            "program wrote this number in place of energies. Look for the right key, or pass --energy-weight 0."
        )


def remarks_on(parts: Mapping[str, Sequence[Data]], labels: Sequence[str], known: Tensor | None = None) -> list[str]:
    """Return remarks about undetermined energies of elements, unused labels and structures that parts share.

    Args:
        parts: Structures for train, valid and test.
        labels: Labels to learn.
        known: Energies of elements, NaN for unknown energies. [100]
    """
    given = () if known is None else known.isfinite().nonzero().flatten().tolist()
    used = (one for one in parts["train"] if _counts(one, "energy"))
    found = [undetermined_elements({composition_of(one.z.numpy()) for one in used}, given)]
    for label in labels:
        for part, some in parts.items():
            if some and not any(_counts(one, label) for one in some):
                found.append(
                    f"{label} counts in no structure for {part}: it is absent or its weight is 0 in all {len(some):,}. "
                    f"Errors of {part} do not tell how good it is."
                )
    digests = {part: [_digest(one) for one in some] for part, some in parts.items()}
    for other, part in combinations(digests, 2):
        of_other = {*digests[other]}
        if shared := [i for i, digest in enumerate(digests[part]) if digest in of_other]:
            found.append(
                f"{len(shared):,} of {len(digests[part]):,} structures for {part} are among those for {other}, too "
                f"(structure {shared[0]} is the first): errors of {part} say little about new structures."
            )
    return [one for one in found if one]


def _digest(one: Data) -> bytes:
    """Return a digest that differs between different geometries."""
    digest = hashlib.sha256()
    for name in _IDENTITY:
        value = one[name].double().numpy() if name in one else np.zeros(0)
        digest.update((np.round(value, _DECIMALS) + 0.0).tobytes())  # without the sign of 0
    return digest.digest()
