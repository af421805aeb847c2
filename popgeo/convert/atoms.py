"""Files of atoms in ASE's formats, with the pairs within a cutoff listed once, across periodic boundaries too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data


def read_atoms(path: Path, *, cutoff: float | None = None, double: bool = False) -> Iterator[Data]:
    """The configurations of a file, one by one.

    Each has `z` [num_atoms], `pos` in angstrom [num_atoms, 3], `cell` [1, 3, 3] and `pbc` [1, 3], and, where the file
    has them, `energy` in eV [1], `forces` in eV/angstrom [num_atoms, 3] and `stress` in eV/angstrom^3, in Voigt's order
    xx, yy, zz, yz, xz, xy [1, 6]. With a cutoff it has `edge_index` and `edge_shift`, see `list_pairs`.

    Args:
        path: What `ase.io` reads: extended XYZ, trajectories, databases and others.
        cutoff: Lists pairs of atoms up to so far from each other, in angstrom.
        double: Whether positions and the like are float64 rather than float32.

    Raises:
        ValueError: ase is absent, or it cannot read the file.
    """
    try:
        import ase.io
    except ImportError as error:
        raise ValueError("Reading atoms needs ase: pip install 'popgeo[atoms]'.") from error
    try:
        for atoms in ase.io.iread(path, index=":"):
            yield as_graph(atoms, cutoff=cutoff, double=double)
    except (ase.io.formats.UnknownFileTypeError, OSError, StopIteration, KeyError) as error:
        raise ValueError(f"{path} cannot be read by ase.io: {error!r}. Check the file and its ending.") from error


def as_graph(atoms: Any, *, cutoff: float | None = None, double: bool = False) -> Data:
    """One configuration, an `Atoms` of ASE, as `read_atoms` describes."""
    dtype = torch.float64 if double else torch.float32

    def number(values: Any) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype)

    data = Data(
        z=torch.from_numpy(atoms.numbers.astype(np.int64)),
        pos=number(atoms.positions),
        cell=number(atoms.cell.array)[None],
        pbc=torch.from_numpy(atoms.pbc.copy())[None],
    )
    results = {} if atoms.calc is None else atoms.calc.results
    for name, shape in (("energy", (1,)), ("forces", (-1, 3)), ("stress", (1, 6))):
        if results.get(name) is not None:
            data[name] = number(results[name]).reshape(shape)
    if cutoff is not None:
        data.edge_index, shift = list_pairs(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
        data.edge_shift = shift.to(dtype)
    return data


def list_pairs(pos: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple[Tensor, Tensor]:
    """All ordered pairs of atoms within a cutoff, images in periodic directions included.

    Args:
        pos: Positions (angstrom). [num_atoms, 3]
        cell: Rows are the vectors of the cell (angstrom). [3, 3]
        pbc: Which of them repeat. [3]
        cutoff: Longest distance (angstrom).

    Returns:
        `edge_index` [2, num_edges], sorted by destination, and `edge_shift` (angstrom) [num_edges, 3]: the source atom
        that is meant stands at `pos[source] + edge_shift`, so an edge is as long as
        `pos[source] + edge_shift - pos[destination]`.

    Raises:
        ValueError: vesin is absent, the cutoff is not positive, or a direction repeats without a vector.
    """
    try:
        import vesin
    except ImportError as error:
        raise ValueError("Listing pairs of atoms needs vesin: pip install 'popgeo[atoms]'.") from error
    if not cutoff > 0:
        raise ValueError(f"The cutoff is {cutoff}; it must be more than 0 angstrom.")
    if any(repeats and not vector.any() for repeats, vector in zip(pbc, cell, strict=True)):
        raise ValueError(f"The cell repeats along {pbc.tolist()} but its vectors are {cell.tolist()}. Set all three.")
    neighbors = vesin.NeighborList(cutoff=cutoff, full_list=True)
    first, second, steps = neighbors.compute(
        points=np.ascontiguousarray(pos, dtype=np.float64),
        box=np.ascontiguousarray(cell, dtype=np.float64),
        periodic=np.asarray(pbc, dtype=bool),
        quantities="ijS",
    )
    # vesin's pair runs from `first` to the image of `second`, which is moved by the cell's steps.
    order = np.lexsort((second, first))
    shift = steps[order].astype(np.float64) @ np.asarray(cell, dtype=np.float64)
    edges = np.stack([second[order], first[order]]).astype(np.int64)
    return torch.from_numpy(edges), torch.from_numpy(shift)
