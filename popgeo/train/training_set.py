"""The structures that a force field is trained on: read, split, with their neighbours and what elements explain."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from popgeo.convert.atom_keys import Keys
from popgeo.convert.atoms import read_atoms, with_pairs
from popgeo.data.flat_store import FlatStore
from popgeo.nn.atom_targets import MAX_Z, element_energies, voigt_to_matrix
from popgeo.progress import progress

UNITS = {"energy": "eV/atom", "forces": "eV/A", "stress": "eV/A^3"}
"""What is learned, and the units of the errors."""
LEVELS = {"energy": "graph", "forces": "node", "stress": "graph", "cell": "graph", "weight": "graph"}
_TAKEN = {"z", "pos", "edge_index", "edge_shift", *LEVELS}


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """What a run trains on, validates on and tests on.

    Attributes:
        store: All structures; their energies are without those of elements.
        parts: Which of them are for `train`, `valid` and `test`.
        references: Energy of each element, NaN where nothing is trained on. float64 [100]
        labels: Which of `energy`, `forces` and `stress` they have.
    """

    store: FlatStore
    parts: dict[str, np.ndarray]
    references: Tensor
    labels: tuple[str, ...]

    def part(self, name: str) -> FlatStore:
        """The structures for one purpose."""
        return self.store.view(self.parts[name])

    @property
    def spread(self) -> float:
        """The root mean square of the forces trained on, or else the deviation of energies an atom; never 0."""
        train = self.part("train")
        if "forces" in self.labels:
            values = torch.cat([one.forces.flatten() for one in train])
        else:
            values = torch.cat([one.energy / len(one.z) for one in train])
            values = values - values.mean()
        return float(values.nan_to_num().square().mean().sqrt()) or 1.0


def read_structures(path: Path, cutoff: float, keys: Keys, wanted: Sequence[str]) -> list[Data]:
    """The structures of a file or of a store, in float64, with their pairs of atoms and the labels that are wanted.

    Raises:
        ValueError: the file cannot be read, has no energies, or lacks what is wanted.
    """
    is_store = (path / "manifest.json").exists()
    raw: Any = FlatStore.open(path) if is_store else read_atoms(path, double=True, keys=keys)
    there = set(raw[0].keys())
    for name in wanted:
        if name not in there:
            hint = f"--{name}-key NAME says what the file calls it" if not is_store else "write a store that has it"
            rest = "" if name == "energy" else f", --{name}-weight 0 trains without"
            raise ValueError(f"{path} has no {name}, but {', '.join(sorted(there))}; {hint}{rest}.")
    found = []
    for i, one in enumerate(progress(raw, f"listing pairs of {path.name}", "structures")):
        try:
            found.append(_prepared(one, cutoff))
        except ValueError as error:
            raise ValueError(f"{path}, structure {i}: {error}") from error
    return found


def _prepared(one: Data, cutoff: float) -> Data:
    data = with_pairs(one, cutoff)
    for name in list(data.keys()):  # of PyG, which iterates over pairs
        if name not in _TAKEN:
            del data[name]
        elif data[name].is_floating_point():
            data[name] = data[name].double()
    data.energy = data.energy.flatten()
    if not data.energy.isfinite().all():
        raise ValueError("its energy is no finite number. Leave it out.")
    if "stress" in data:
        data.stress = (
            data.stress.view(-1, 3, 3) if data.stress.numel() == 9 else voigt_to_matrix(data.stress.view(1, 6))
        )
    return data


def drawn_parts(count: int, valid: float, test: float, seed: int) -> dict[str, np.ndarray]:
    """Which of so many structures are for training, validation and test, drawn at random."""
    order = np.random.default_rng(seed).permutation(count)
    ends = np.cumsum([round(share * count) for share in (valid, test)])
    parts = dict(zip(("valid", "test", "train"), np.split(order, ends), strict=True))
    return {name: np.sort(parts[name]) for name in ("train", "valid", "test")}


def as_training_set(parts: dict[str, list[Data]], energies: dict[int, float] | str, dtype: torch.dtype) -> TrainingSet:
    """The parts of a run in one store, without the energies of elements.

    Args:
        parts: Structures for `train`, `valid` and `test`.
        energies: Of elements, by atomic number; `"average"`, by least squares; or `"none"`.
        dtype: What numbers become.

    Raises:
        ValueError: too few structures, an element that is trained on has no energy, or one is not trained on.
    """
    counts = {name: len(one) for name, one in parts.items()}
    if min(counts["train"], counts["valid"]) < 1:
        raise ValueError(
            f"There are {counts['train']} structures to train on and {counts['valid']} to validate on; each needs one "
            "at least. Give more, or other --valid-fraction and --test-fraction, or --valid FILE."
        )
    train = parts["train"]
    z, batch = torch.cat([one.z for one in train]), torch.arange(counts["train"])
    seen = z.unique()
    references = _references(z, batch.repeat_interleave(torch.tensor([len(one.z) for one in train])), train, energies)
    known = torch.full((MAX_Z,), torch.nan, dtype=torch.float64)
    known[seen], known[0] = references[seen], 0.0
    everything = [one for part in parts.values() for one in part]
    labels = tuple(name for name in UNITS if all(name in one for one in everything))
    for name, part in parts.items():
        for i, one in enumerate(part):
            one.energy -= known[one.z].sum()
            if one.energy.isnan():
                new = sorted(set(one.z.tolist()) - set(seen.tolist()))
                raise ValueError(
                    f"Structure {i} of {name} has the atomic numbers {new}, which no structure of train has."
                )
            for key in list(one.keys()):
                if one[key].is_floating_point():
                    one[key] = one[key].to(dtype)
    ends = np.cumsum(list(counts.values()))[:-1]
    ids = dict(zip(counts, np.split(np.arange(len(everything)), ends), strict=True))
    return TrainingSet(
        store=FlatStore.from_dataset(everything, levels=LEVELS), parts=ids, references=known, labels=labels
    )


def _references(z: Tensor, batch: Tensor, train: list[Data], energies: dict[int, float] | str) -> Tensor:
    """The energies of elements that are asked for. [100]"""
    if energies == "average":
        return element_energies(z, batch, torch.cat([one.energy for one in train]))
    if energies == "none":
        return torch.zeros(MAX_Z, dtype=torch.float64)
    assert isinstance(energies, dict)
    if missing := sorted(set(z.tolist()) - energies.keys()):
        raise ValueError(f"--E0s has no energy for the atomic numbers {missing}, which the structures have. Add them.")
    found = torch.zeros(MAX_Z, dtype=torch.float64)
    found[list(energies)] = torch.tensor(list(energies.values()), dtype=torch.float64)
    return found
