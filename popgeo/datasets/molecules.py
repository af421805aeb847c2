"""20,000 small organic molecules with quantum-chemical targets, inside the package: nothing to download."""

from collections.abc import Callable, Mapping
from importlib import resources
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.transforms import BaseTransform

from popgeo.progress import progress

ELEMENTS = (1, 6, 7, 8, 9)  # H, C, N, O, F
NUM_BOND_KINDS = 4  # single, double, triple, aromatic
AROMATIC = 3
HYBRIDIZATIONS = (1, 2, 3)  # sp, sp2, sp3


class Molecules(InMemoryDataset):
    """Small organic molecules with five targets computed by GFN2-xTB; the data needs no download.

    Data card:
        **What.** 20,000 distinct neutral closed-shell molecules of up to 9 atoms of C, N, O and F, plus hydrogens: 8 to
        29 atoms, mean 18.0, standard deviation 2.9, the sizes of QM9; 17.8 bonds on average. 23 % have an aromatic
        ring, 67 % a ring of any kind. The gap has mean 4.99, standard deviation 2.74 eV; predicting its mean is wrong
        by 2.18 eV on average.

        **How made.** By `scripts/make_molecules.py` from seed 0 and nothing else: molecular graphs grown at random,
        filtered for unstable groups and absurd strain, deduplicated by canonical SMILES; five conformers each by
        ETKDGv3, relaxed with MMFF94 to convergence, the lowest kept (rdkit). Targets are GFN2-xTB single points
        (doi:10.1021/acs.jctc.8b01176, by tblite) at the positions as stored, which lie on a grid of 0.0005 angstrom.
        A molecule whose gap is below 1 eV is left out, for its closed shell is doubtful.

        **Limits.** One conformer a molecule, stereochemistry as the embedding chose it; the geometry is a minimum of
        the force field, not of xTB; xTB levels are not DFT levels, so errors do not compare with published ones on
        QM9. `energy` is a total energy of valence electrons: take out a sum over atoms before learning it, and mind
        that float32 holds it to 0.06 meV.

    Each molecule is a `Data` of

    ============  ==================  ========================================================================
    `z`           int64 [n]           atomic numbers; hydrogens last
    `pos`         float32 [n, 3]      positions in angstrom, centred
    `edge_index`  int64 [2, 2b]       bonds in both directions, sorted by row 0, then row 1
    `edge_attr`   float32 [2b, 4]     one-hot: single, double, triple, aromatic
    `x`           float32 [n, 11]     columns as in PyG's QM9: one-hot H, C, N, O, F; atomic number; aromatic;
                                      sp, sp2, sp3; number of hydrogens
    `y`           float32 [1, 5]      `Molecules.targets`, in that order and those units
    `smiles`      str                 canonical, without stereochemistry; its atoms come in the order of `z`
    ============  ==================  ========================================================================

    Args:
        root: Folder for the result of `pre_transform` and `pre_filter`, as for PyG's datasets. Default: nothing is
            written, and both run in memory.
        transform: A function that is applied to a molecule at each access.
        pre_transform: A function that is applied to each molecule once.
        pre_filter: A function that returns False for molecules to leave out; it runs before `pre_transform`.
        force_reload: Whether to apply `pre_transform` and `pre_filter` again although `root` has their result.
        log: Whether to report written files, as PyG does, and to show a bar if `pre_transform` takes long.

    Raises:
        ValueError: `pre_filter` leaves no molecule.

    Example:
        >>> dataset = Molecules(transform=SelectTarget("gap"))
        >>> dataset[0]
        Data(x=[21, 11], pos=[21, 3], z=[21], edge_index=[2, 44], edge_attr=[44, 4], y=[1], smiles='COC12CCCC1OC2')
        >>> dict(Molecules.targets)
        {'homo': 'eV', 'lumo': 'eV', 'gap': 'eV', 'dipole': 'debye', 'energy': 'eV'}
    """

    targets: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"homo": "eV", "lumo": "eV", "gap": "eV", "dipole": "debye", "energy": "eV"}
    )

    def __init__(
        self,
        root: str | None = None,
        transform: Callable[[Data], Data] | None = None,
        pre_transform: Callable[[Data], Data] | None = None,
        pre_filter: Callable[[Data], bool] | None = None,
        force_reload: bool = False,
        log: bool = True,
    ) -> None:
        self._keeps_files = root is not None
        super().__init__(root, transform, pre_transform, pre_filter, log, force_reload)
        if self._keeps_files:
            self.load(self.processed_paths[0])
        else:
            self.data, self.slices = self._prepare()

    def __repr__(self) -> str:
        targets = ", ".join(f"{name} ({unit})" for name, unit in self.targets.items())
        return f"{type(self).__name__}({len(self):,} molecules; y: {targets})"

    @classmethod
    def target_index(cls, name: str) -> int:
        """Return the column of a target in `y`.

        Raises:
            ValueError: the target does not exist.

        Example:
            >>> Molecules.target_index("gap")
            2
        """
        if name not in cls.targets:
            raise ValueError(f"Molecules has no target {name!r}; it has {', '.join(cls.targets)}.")
        return list(cls.targets).index(name)

    @property
    def has_process(self) -> bool:
        """Whether PyG keeps a processed file: only with a root."""
        return self._keeps_files

    @property
    def raw_file_names(self) -> list[str]:
        """The files to download: none."""
        return []

    @property
    def processed_file_names(self) -> list[str]:
        """The processed file under `root`."""
        return ["molecules.pt"]

    def process(self) -> None:
        """Write the filtered and transformed molecules under `root`."""
        data, slices = self._prepare()
        torch.save((data.to_dict(), slices, type(data)), self.processed_paths[0])

    def _prepare(self) -> tuple[Data, dict[str, Tensor] | None]:
        data, slices = _read()
        if self.pre_filter is None and self.pre_transform is None:
            return data, slices
        self.data, self.slices = data, slices
        molecules = [self.get(i) for i in range(self.len())]
        if self.pre_filter is not None:
            molecules = [molecule for molecule in molecules if self.pre_filter(molecule)]
        if not molecules:
            raise ValueError(f"pre_filter left none of {self.len()} molecules; loosen it.")
        if self.pre_transform is not None:
            shown = progress(molecules, "pre_transform", "molecule", show=None if self.log else False)
            molecules = [self.pre_transform(molecule) for molecule in shown]
        return self.collate(molecules)


class SelectTarget(BaseTransform):
    """A transform that reduces `y` to one target, for `Molecules(transform=...)`.

    Args:
        name: One of `Molecules.targets`.

    Raises:
        ValueError: the target does not exist.

    Example:
        >>> Molecules(transform=SelectTarget("dipole"))[0].y.shape
        torch.Size([1])
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.index = Molecules.target_index(name)

    def forward(self, data: Data) -> Data:
        """Return the molecule with only this target in `y`."""
        data.y = data.y[:, self.index]
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _read() -> tuple[Data, dict[str, Tensor]]:
    """Read all molecules of the bundled file in the storage of `InMemoryDataset`: a flat `Data` and its slices."""
    with resources.files(__package__).joinpath("molecules.npz").open("rb") as file, np.load(file) as npz:
        held = dict(npz)
    num_atoms, num_bonds = held["num_atoms"].astype(np.int64), held["num_bonds"].astype(np.int64)
    atom_ptr, bond_ptr = _ptr(num_atoms), _ptr(num_bonds)
    edge_index, kind = _edges(held["bond"].astype(np.int64), np.repeat(np.arange(len(num_bonds)), num_bonds))
    centre = edge_index[1] + np.repeat(atom_ptr[:-1], 2 * num_bonds)  # global atom of each edge
    neighbor = edge_index[0] + np.repeat(atom_ptr[:-1], 2 * num_bonds)

    z = held["z"].astype(np.int64)
    x = np.zeros((len(z), len(ELEMENTS) + 6), dtype=np.float32)
    x[:, :5] = z[:, None] == ELEMENTS
    x[:, 5] = z
    x[centre[kind == AROMATIC], 6] = 1
    x[:, 7:10] = held["hybridization"][:, None] == HYBRIDIZATIONS
    x[:, 10] = np.bincount(centre[z[neighbor] == 1], minlength=len(z))

    homo, lumo, dipole, energy = held["targets"].astype(np.int64).T  # exact in steps, so gap is lumo - homo exactly
    y = np.stack([homo, lumo, lumo - homo, dipole, energy], axis=1) * held["target_step"]
    pos, edge_attr = held["pos"] * held["pos_step"], kind[:, None] == np.arange(NUM_BOND_KINDS)
    floats = {"x": x, "edge_attr": edge_attr, "y": y, "pos": pos}
    tensors = {name: torch.from_numpy(array.astype(np.float32)) for name, array in floats.items()}
    tensors |= {"edge_index": torch.from_numpy(edge_index), "z": torch.from_numpy(z)}
    of_atoms, of_edges = torch.from_numpy(atom_ptr), torch.from_numpy(2 * bond_ptr)
    of_molecules = torch.arange(len(num_atoms) + 1)
    slices = dict.fromkeys(("x", "pos", "z"), of_atoms) | dict.fromkeys(("edge_index", "edge_attr"), of_edges)
    slices |= dict.fromkeys(("y", "smiles"), of_molecules)
    return Data(**tensors, smiles=held["smiles"].astype(str).tolist()), slices


def _edges(bond: np.ndarray, molecule: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both directions of each bond, sorted by molecule, then row 0, then row 1.

    Args:
        bond: Atom, atom (counted within the molecule), kind. [num_bonds, 3]
        molecule: The molecule of each bond, ascending. [num_bonds]

    Returns:
        edge_index [2, 2 num_bonds] and the kind of each edge [2 num_bonds].
    """
    row, col = np.concatenate([bond[:, :2], bond[:, 1::-1]]).T
    order = np.lexsort((col, row, np.tile(molecule, 2)))
    return np.stack([row[order], col[order]]), np.tile(bond[:, 2], 2)[order]


def _ptr(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])
