"""The structures that a force field is trained on: read, checked, split, with their neighbours listed."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from popgeo.convert.atom_keys import LABELS, WEIGHTS
from popgeo.convert.atom_labels import as_label, numbers
from popgeo.convert.atoms import LEVELS, read_atoms, with_pairs
from popgeo.convert.neighbours import require_elements
from popgeo.data.flat_store import FlatStore
from popgeo.nn.atom_targets import MAX_Z, element_energies, voigt_to_matrix
from popgeo.progress import progress

UNITS = {"energy": "eV/atom", "forces": "eV/A", "stress": "eV/A^3"}
"""What is learned, and the units of the errors."""
_TAKEN = LEVELS.keys()


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """What a run trains on, validates on and tests on.

    Attributes:
        store: All structures; their energies are without the energies of elements.
        parts: Which of them are for `train`, `valid` and `test`.
        references: Energy of each element, NaN for elements that are not trained on. float64 [100]
        labels: Which of `energy`, `forces` and `stress` they have.
        checksums: Of each part as it was read.
    """

    store: FlatStore
    parts: dict[str, np.ndarray]
    references: Tensor
    labels: tuple[str, ...]
    checksums: dict[str, str]

    def part(self, name: str) -> FlatStore:
        """The structures for one purpose."""
        return self.store.view(self.parts[name])

    @property
    def is_weighted(self) -> bool:
        """Whether structures or labels have weights."""
        return any(name in self.store[0] for name in WEIGHTS)

    @property
    def spread(self) -> float:
        """The root mean square of the forces trained on, or else the deviation of energies per atom; never 0."""
        values = []
        for one in self.part("train"):
            label = one.forces if "forces" in self.labels else one.get("energy", torch.zeros(1)) / len(one.z)
            known = ~label.isnan() & bool(weight_of(one, "forces" if "forces" in self.labels else "energy") > 0)
            values.append(label[known])
        all_values = torch.cat(values).double()
        all_values = all_values if "forces" in self.labels else all_values - all_values.mean()
        spread = float(all_values.square().mean().sqrt())
        return spread if spread > 0 else 1.0  # NaN, if there is no value


def weight_of(one: Any, label: str) -> Tensor:
    """The weight of one label of a structure or of each of a batch. [num_graphs]"""
    found = [one[name] for name in ("weight", f"{label}_weight") if name in one]
    return torch.stack(found).prod(0) if found else torch.ones(())


def read_structures(path: Path, cutoff: float, options: Mapping[str, Any], wanted: Sequence[str]) -> list[Data]:
    """The structures of a file or of a store, in float64, with their pairs of atoms and the labels that are wanted.

    Args:
        path: The file or store.
        cutoff: Longest edge (angstrom).
        options: For `read_atoms`; `labels` says whether structures may lack labels.
        wanted: Labels that all structures need, or some of them if `labels` is "partial".

    Raises:
        ValueError: the file cannot be read, a structure is wrong, or what is wanted is missing.
    """
    is_store = (path / "manifest.json").exists()
    partial = options.get("labels") == "partial"
    raw: Any = FlatStore.open(path) if is_store else read_atoms(path, double=True, **options)
    there = set(raw[0].keys())
    for name in wanted:
        if name not in there:
            hint = f"--{name}-key NAME says what the file calls it" if not is_store else "write a store that has it"
            raise ValueError(
                f"{path} has no {name}, but {', '.join(sorted(there))}; {hint}, --{name}-weight 0 trains without."
            )
    found = []
    for i in progress(range(len(raw)), f"listing pairs of {path.name}", "structures"):
        try:
            found.append(_prepared(raw[i], cutoff, partial))
        except ValueError as error:
            raise error if str(path) in str(error) else ValueError(f"{path}, structure {i}: {error}") from error
    for name in wanted:
        if partial and not any(one[name].isfinite().any() for one in found):
            raise ValueError(f"{path} has no {name} in any structure; --{name}-weight 0 trains without.")
    return found


def _prepared(one: Data, cutoff: float, partial: bool) -> Data:
    require_elements(one.z.numpy())
    if int(one.z.max()) >= MAX_Z:
        raise ValueError(f"it has the atomic number {int(one.z.max())}; models embed 1 to {MAX_Z - 1}. Leave it out.")
    if not one.pos.isfinite().all():
        raise ValueError("it has positions that are not finite. Leave it out.")
    data = with_pairs(one, cutoff)
    for name in list(data.keys()):  # of PyG, which iterates over pairs
        if name not in _TAKEN:
            del data[name]
        elif name in (*LABELS, *WEIGHTS):
            data[name] = _checked(name, data[name], one, partial and name in LABELS)
        elif data[name].is_floating_point():
            data[name] = data[name].double()
    return data


def _checked(name: str, value: Any, one: Data, partial: bool) -> Tensor:
    """A label or a weight in its shape, as float64.

    Raises:
        ValueError: it is not made of finite numbers, or its shape or size does not fit.
    """
    if not isinstance(value, Tensor):
        raise ValueError(f"it has {name} of {value!r}, not a tensor of numbers. Leave the structure out.")
    cell = one.cell.double().view(3, 3).numpy() if "cell" in one else np.zeros((3, 3))
    values = numbers(name, value.double().numpy() if value.is_floating_point() else value.numpy(), "iuf", partial)
    label = torch.from_numpy(as_label(name, name, values.astype(np.float64), len(one.z), cell))
    return voigt_to_matrix(label) if name == "stress" else label


def drawn_parts(count: int, valid: float, test: float, seed: int) -> dict[str, np.ndarray]:
    """Which of these structures are for training, validation and test, drawn at random."""
    order = np.random.default_rng(seed).permutation(count)
    ends = np.cumsum([round(share * count) for share in (valid, test)])
    parts = dict(zip(("valid", "test", "train"), np.split(order, ends), strict=True))
    return {name: np.sort(parts[name]) for name in ("train", "valid", "test")}


def as_training_set(
    parts: dict[str, list[Data]],
    energies: Mapping[int, float] | str,
    dtype: torch.dtype,
    fixed: Tensor | None = None,
) -> TrainingSet:
    """The parts of a run in one store, without the energies of elements.

    Args:
        parts: Structures for `train`, `valid` and `test`.
        energies: Of elements, by atomic number; `"average"`, by least squares; or `"none"`.
        dtype: What numbers become.
        fixed: Energies of elements that least squares leave as they are, NaN for those to find. [100]

    Raises:
        ValueError: too few structures, a label is missing in a part, or an element has no energy or is not trained on.
    """
    counts = {name: len(one) for name, one in parts.items()}
    if min(counts["train"], counts["valid"]) < 1:
        raise ValueError(
            f"There are {counts['train']} structures to train on and {counts['valid']} to validate on; each needs one "
            "at least. Give more, or other --valid-fraction and --test-fraction, or --valid FILE."
        )
    everything = [one for part in parts.values() for one in part]
    labels = _common_labels(parts)
    for name in WEIGHTS:
        if any(name in one for one in everything):
            for one in everything:
                one[name] = one[name] if name in one else torch.ones(1, dtype=torch.float64)
    checksums = {name: checksum(part) for name, part in parts.items()}
    known = _references(parts["train"], energies, fixed)
    for name, part in parts.items():
        for i, one in enumerate(part):
            if unknown := sorted(set(one.z[known[one.z].isnan()].tolist())):
                raise ValueError(
                    f"Structure {i} of {name} has the atomic numbers {unknown}, which no structure of train has."
                )
            if "energy" in one:
                one.energy = one.energy - known[one.z].sum()
            for key in list(one.keys()):
                if one[key].is_floating_point():
                    one[key] = one[key].to(dtype)
    ends = np.cumsum(list(counts.values()))[:-1]
    ids = dict(zip(counts, np.split(np.arange(len(everything)), ends), strict=True))
    levels = {name: level for name, level in LEVELS.items() if name in everything[0]}
    store = FlatStore.from_dataset(everything, levels=levels)
    return TrainingSet(store=store, parts=ids, references=known, labels=labels, checksums=checksums)


def checksum(structures: Sequence[Data]) -> str:
    """Of positions, elements, cells, labels and weights, in this order of structures; edges follow from these."""
    digest = hashlib.sha256()
    for one in structures:
        for name in sorted(_TAKEN - {"edge_index", "edge_shift"}):
            if name in one:
                digest.update(f"{name}{tuple(one[name].shape)}".encode() + one[name].numpy().tobytes())
    return digest.hexdigest()


def _common_labels(parts: Mapping[str, list[Data]]) -> tuple[str, ...]:
    """The labels that all structures have and some of train know; the others are removed.

    Raises:
        ValueError: a part lacks a label that another has.
    """
    has = {part: {name for name in LABELS if all(name in one for one in some)} for part, some in parts.items() if some}
    for part, names in has.items():
        for other, more in has.items():
            if missing := sorted(more - names):
                raise ValueError(
                    f"The structures of {part} have no {missing[0]}, the structures of {other} have it. Pass "
                    f"--{missing[0]}-weight 0 to train without, or structures of {part} that have it."
                )
    known = {name for name in has["train"] if any(one[name].isfinite().any() for one in parts["train"])}
    for one in (one for some in parts.values() for one in some):
        for name in {*one.keys()} & (set(LABELS) - known):
            del one[name]
    return tuple(name for name in LABELS if name in known)


def _references(train: list[Data], energies: Mapping[int, float] | str, fixed: Tensor | None) -> Tensor:
    """The energies of elements that are asked for; NaN for elements that no structure has. [100]"""
    z = torch.cat([one.z for one in train])
    found = torch.full((MAX_Z,), torch.nan, dtype=torch.float64)
    found[0], seen = 0.0, z.unique()
    if isinstance(energies, Mapping):
        if missing := sorted(set(seen.tolist()) - energies.keys()):
            raise ValueError(
                f"--E0s has no energy for the atomic numbers {missing}, which the structures have. Add them."
            )
        found[list(energies)] = torch.tensor(list(energies.values()), dtype=torch.float64)
        return torch.where(torch.isin(torch.arange(MAX_Z), seen) | (torch.arange(MAX_Z) == 0), found, torch.nan)
    found[seen] = 0.0
    if energies == "average" and "energy" in train[0]:
        batch = torch.arange(len(train)).repeat_interleave(torch.tensor([len(one.z) for one in train]))
        weights = torch.stack([weight_of(one, "energy").reshape(()) for one in train])
        found[seen] = element_energies(z, batch, torch.cat([one.energy for one in train]), weights, fixed)[seen]
    return found if fixed is None else torch.where(fixed.isnan(), found, fixed)
