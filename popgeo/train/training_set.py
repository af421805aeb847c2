"""Training data of a force field: structures that are read, checked, split, and have lists of neighbors."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from popgeo.convert.atom_keys import LABELS, WEIGHTS
from popgeo.convert.atom_labels import as_label, numbers, warn_of_rounding
from popgeo.convert.atoms import LEVELS, read_atoms, with_pairs
from popgeo.convert.periodic_pairs import require_elements
from popgeo.convert.set_checks import (
    common_labels,
    remarks_on,
    require_options_of_training,
    require_varied_energies,
    weight_of,
)
from popgeo.data.flat_store import FlatStore
from popgeo.nn.atom_targets import MAX_Z, element_energies, voigt_to_matrix
from popgeo.progress import progress

UNITS = {"energy": "eV/atom", "forces": "eV/A", "stress": "eV/A^3"}
"""Labels that a force field can learn, and the units of their errors."""
_TAKEN = LEVELS.keys() - {"cutoff"}


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """Structures for training, validation and test.

    Attributes:
        store: All structures, with the energies of elements subtracted from their energies.
        parts: Views of the store with the structures for `train`, `valid` and `test`.
        references: Energy of each element; NaN for elements without training structures. float64 [100]
        labels: Labels of the structures, out of `energy`, `forces` and `stress`.
        checksums: Checksum of each part, before energies of elements are subtracted.
        remarks: Sentences about quantities that the structures do not determine, and structures that parts share.
    """

    store: FlatStore
    parts: dict[str, FlatStore]
    references: Tensor
    labels: tuple[str, ...]
    checksums: dict[str, str]
    remarks: list[str]

    @property
    def is_weighted(self) -> bool:
        """Whether structures or labels have weights."""
        return any(name in self.store[0] for name in WEIGHTS)

    @property
    def spread(self) -> float:
        """Root mean square of the training forces, or the deviation of energies per atom without forces; never 0."""
        name, values = "forces" if "forces" in self.labels else "energy", []
        for one in self.parts["train"]:
            label = one.forces if name == "forces" else one.get("energy", torch.zeros(1)) / len(one.z)
            values.append(label[~label.isnan() & bool(weight_of(one, name) > 0)])
        found = torch.cat(values).double()
        spread = float((found if name == "forces" else found - found.mean()).square().mean().sqrt())
        return spread if spread > 0 else 1.0  # NaN, if there is no value


def read_structures(path: Path, cutoff: float, options: Mapping[str, Any], wanted: Sequence[str]) -> list[Data]:
    """Read the structures of a file or a store in float64, with their pairs of atoms and the wanted labels.

    Args:
        path: File or store.
        cutoff: Longest edge (angstrom).
        options: Arguments of `read_atoms`. With `labels="partial"` structures may lack labels. A label with the key
            None is left out.
        wanted: Labels that all structures need, or that some structures need if `labels` is "partial".

    Raises:
        ValueError: The file cannot be read, a structure is wrong, or a wanted label is missing.
    """
    is_store = (path / "manifest.json").exists()
    partial = options["labels"] == "partial"
    left_out = {name for name, called in options["keys"].items() if called is None}
    require_options_of_training(options["keys"], options["levels"], options["units"], path if is_store else None)
    raw: Any = FlatStore.open(path) if is_store else read_atoms(path, double=True, **options)
    there = set(raw[0].keys()) - left_out
    for name in wanted:
        if name in left_out:
            raise ValueError(f"--key {name}= leaves {name} out; --{name}-weight 0 trains without, or leave --key out.")
        if name not in there:
            hint = f"--{name}-key NAME says what the file calls it" if not is_store else "write a store that has it"
            raise ValueError(
                f"{path} has no {name}, but {', '.join(sorted(there))}; {hint}, --{name}-weight 0 trains without."
            )
    found = []
    for i in progress(range(len(raw)), f"listing pairs of {path.name}", "structures"):
        try:
            found.append(_prepared(raw[i], cutoff, partial, left_out))
        except ValueError as error:
            raise error if str(path) in str(error) else ValueError(f"{path}, structure {i}: {error}") from error
    _check_neighbors(found, cutoff, path)
    if not is_store:
        print(f"keys of {path}:\n{raw.values.table(raw.datasets)}\n")
        raw.values.require_weights(options["keys"])
    return found


def _check_neighbors(structures: Sequence[Data], cutoff: float, path: Path) -> None:
    """Warn if most atoms have no neighbors; free atoms do not count.

    Raises:
        ValueError: No atom has a neighbor.
    """
    some = [one for one in structures if len(one.z) > 1 or one.edge_index.shape[1]]
    total = sum(len(one.z) for one in some)
    alone = total - sum(len(one.edge_index[1].unique()) for one in some)
    if 2 * alone <= total and some:
        return
    shortest = f"{alone:,} of {total:,} atoms of {path} have no neighbor within the cutoff of {cutoff:g} angstrom"
    remedy = "Raise the cutoff (--cutoff), or correct the unit of positions: --units length=nm or length=bohr."
    shortest = shortest if some else f"all structures of {path} are single atoms"
    if alone == total:
        raise ValueError(f"{shortest}, so there is nothing to learn from positions. {remedy}")
    warnings.warn(f"{shortest}. {remedy}", stacklevel=4)


def _prepared(one: Data, cutoff: float, partial: bool, left_out: set[str]) -> Data:
    require_elements(one.z.numpy())
    if int(one.z.max()) >= MAX_Z:
        raise ValueError(f"it has the atomic number {int(one.z.max())}; models embed 1 to {MAX_Z - 1}. Leave it out.")
    data = with_pairs(one, cutoff)
    for name in list(data.keys()):  # of PyG, which iterates over pairs
        if name not in _TAKEN | {"head"} or name in left_out:
            del data[name]
        elif name in (*LABELS, *WEIGHTS):
            data[name] = _checked(name, data[name], one, partial and name in LABELS)
        elif name != "head" and data[name].is_floating_point():
            data[name] = data[name].double()
    return data


def _checked(name: str, value: Any, one: Data, partial: bool) -> Tensor:
    """Return a label or a weight in float64 and in its standard shape.

    Raises:
        ValueError: A value is not a finite number, or the shape or size does not fit.
    """
    if not isinstance(value, Tensor):
        raise ValueError(f"it has {name} of {value!r}, not a tensor of numbers. Leave the structure out.")
    cell = one.cell.double().view(3, 3).numpy() if "cell" in one else np.zeros((3, 3))
    values = numbers(name, value.double().numpy() if value.is_floating_point() else value.numpy(), "iuf", partial)
    label = torch.from_numpy(as_label(name, name, values.astype(np.float64), len(one.z), cell))
    if name == "energy" and value.dtype is torch.float32:  # a store may contain float32
        warn_of_rounding(float(label), len(one.z))
    return voigt_to_matrix(label) if name == "stress" else label


def drawn_parts(count: int, valid: float, test: float, seed: int) -> dict[str, np.ndarray]:
    """Draw the structures for training, validation and test at random."""
    order = np.random.default_rng(seed).permutation(count)
    of_valid, of_test, of_train = np.split(order, np.cumsum([round(share * count) for share in (valid, test)]))
    return {"train": np.sort(of_train), "valid": np.sort(of_valid), "test": np.sort(of_test)}


def as_training_set(
    parts: dict[str, list[Data]],
    energies: Mapping[int, float] | str,
    dtype: torch.dtype,
    fixed: Tensor | None = None,
    wanted: Sequence[str] = (),
) -> TrainingSet:
    """Put the parts of a run into one store and subtract the energies of elements.

    Args:
        parts: Structures for `train`, `valid` and `test`.
        energies: Energies of elements by atomic number; `"average"` for least squares; or `"none"`.
        dtype: Type of all floating-point numbers.
        fixed: Known energies of elements, NaN for energies that least squares find. Default: none are known. [100]
        wanted: Labels that the user asks for; other labels are left out if a part lacks them.

    Raises:
        ValueError: There are too few structures, a part lacks a label, or an element has no energy or is missing in
            the training structures.
    """
    counts = {name: len(one) for name, one in parts.items()}
    if min(counts["train"], counts["valid"]) < 1:
        raise ValueError(
            f"There are {counts['train']} structures to train on and {counts['valid']} to validate on; each needs one "
            "at least. Give more, or other --valid-fraction and --test-fraction, or --valid FILE."
        )
    everything = [one for part in parts.values() for one in part]
    labels = common_labels(parts, wanted)
    require_varied_energies(parts["train"])
    for name in WEIGHTS:
        if any(name in one for one in everything):
            for one in everything:
                one[name] = one[name] if name in one else torch.ones(1, dtype=torch.float64)
    checksums = {name: checksum(part) for name, part in parts.items()}
    remarks = remarks_on(parts, labels, fixed if energies == "average" else torch.zeros(MAX_Z))
    known = _references(parts["train"], energies, fixed)
    for name, part in parts.items():
        for i, one in enumerate(part):
            if unknown := sorted(set(one.z[known[one.z].isnan()].tolist())):
                raise ValueError(
                    f"Structure {i} of {name} has the atomic numbers {unknown}, which train does not have."
                )
            if "energy" in one:
                one.energy = one.energy - known[one.z].sum()
            one.apply(lambda value: value.to(dtype) if value.is_floating_point() else value)
    store = FlatStore.from_dataset(everything, levels=LEVELS)
    ids = np.split(np.arange(len(everything)), np.cumsum(list(counts.values()))[:-1])
    views = {name: store.view(of_part) for name, of_part in zip(counts, ids, strict=True)}
    return TrainingSet(store=store, parts=views, references=known, labels=labels, checksums=checksums, remarks=remarks)


def checksum(structures: Sequence[Data]) -> str:
    """Return a checksum of positions, elements, cells, labels and weights; edges follow from these."""
    digest = hashlib.sha256()
    for one in structures:
        for name in sorted(_TAKEN - {"edge_index", "edge_shift"}):
            if name in one:
                digest.update(f"{name}{tuple(one[name].shape)}".encode() + one[name].numpy().tobytes())
    return digest.hexdigest()


def _references(train: list[Data], energies: Mapping[int, float] | str, fixed: Tensor | None) -> Tensor:
    """Return the energies of elements [100], with NaN for elements that no structure contains."""
    z = torch.cat([one.z for one in train])
    found = torch.full((MAX_Z,), torch.nan, dtype=torch.float64)
    found[0], seen = 0.0, z.unique()
    if isinstance(energies, Mapping):
        if missing := sorted(set(seen.tolist()) - energies.keys()):
            raise ValueError(f"--E0s has no energy for the atomic numbers {missing} of the structures. Add them.")
        found[seen] = torch.tensor([energies[number] for number in seen.tolist()], dtype=torch.float64)
        return found
    found[seen] = 0.0
    if energies == "average" and "energy" in train[0]:
        batch = torch.arange(len(train)).repeat_interleave(torch.tensor([len(one.z) for one in train]))
        weights = torch.stack([weight_of(one, "energy").reshape(()) for one in train])
        found[seen] = element_energies(z, batch, torch.cat([one.energy for one in train]), weights, fixed)[seen]
    return found if fixed is None else torch.where(fixed.isnan(), found, fixed)
