"""Tables of molecules in SMILES, as graphs of atoms and bonds; with positions when asked."""

import csv
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from popgeo.convert.atom_files import require_unpacked
from popgeo.convert.named_tables import refuse_broken_lines

_ROWS_AT_ONCE = 4096
_OF_ATOM = ("GetDegree", "GetFormalCharge", "GetTotalNumHs", "GetIsAromatic", "IsInRing", "GetChiralTag")


def read_smiles(
    path: Path,
    *,
    column: str | None = None,
    targets: Sequence[str] = (),
    positions: bool = False,
    seed: int = 0,
    skip: bool = False,
) -> Iterator[Data]:
    """The molecules of a table, row by row.

    Each has `z` [num_atoms], `x` int64 [num_atoms, 6] (degree, charge, hydrogens, aromatic, in a ring, chirality),
    `edge_index` with each bond in both directions, `edge_attr` int64 [num_bonds * 2, 3] (order: 1, 2, 3, or 4 where
    aromatic; conjugated; in a ring), `smiles`, and `y` [1, num_targets].

    Args:
        path: CSV, TSV, or `.smi`, which has no header; also compressed. If the first cell of a CSV or TSV is a SMILES,
            the file has no header, and its columns are "0", "1" and so on. Quotation marks enclose a field of a CSV;
            in a TSV and in `.smi` they are letters, except around a whole field.
        column: Which column holds SMILES; None means the one called so, or the first.
        targets: The columns that `y` takes.
        positions: Adds hydrogens and `pos` in angstrom of one molecule per row, by ETKDG (Wang, Witnek, Landrum,
            Riniker 2020, doi 10.1021/acs.jcim.0c00025) and the force field MMFF94.
        seed: What positions are drawn from.
        skip: Leaves out rows that rdkit cannot read or place, with one warning at the end, rather than raise.

    Raises:
        ValueError: rdkit is absent, a column is, a row cannot be read, or a field of a CSV spans several lines.
    """
    try:
        from rdkit import Chem, RDLogger
    except ImportError as error:
        raise ValueError("Reading SMILES needs rdkit: pip install rdkit.") from error
    RDLogger.DisableLog("rdApp.*")  # what is wrong with a row is said by the error
    skipped = number = 0
    for table in _tables(path):
        refuse_broken_lines(path, table)
        name = _column(path, table, column, targets)
        for smiles, y in zip(table[name], _numbers(path, number, table[list(targets)]), strict=True):
            molecule = Chem.MolFromSmiles(smiles) if isinstance(smiles, str) else None
            pos = None
            if molecule is not None and positions and all(atom.GetAtomicNum() for atom in molecule.GetAtoms()):
                molecule = Chem.AddHs(molecule)
                pos = _place(molecule, seed)
            if molecule is None or molecule.GetNumAtoms() == 0 or (positions and pos is None):
                if not skip:
                    what = "given a shape" if molecule is not None and molecule.GetNumAtoms() else "read"
                    if positions and molecule is not None and len(Chem.GetMolFrags(molecule)) > 1:
                        what = "given one shape, as it consists of several molecules,"
                    raise ValueError(
                        f"{path}, row {number}: {smiles!r} cannot be {what} by rdkit. Correct it or pass --skip."
                    )
                skipped += 1
            else:
                yield _graph(molecule, smiles, y, pos)
            number += 1
    if skipped:
        warnings.warn(f"{skipped:,} of {number:,} rows of {path} were left out.", stacklevel=2)


def _tables(path: Path) -> Iterator[pd.DataFrame]:
    kind = next((suffix for suffix in path.suffixes if suffix in (".csv", ".tsv", ".smi")), ".csv")
    sep = {".smi": r"\s+", ".tsv": "\t"}.get(kind, ",")
    # Only CSV has quotation marks that enclose; elsewhere one at the start of a name would swallow lines.
    options: dict[str, Any] = {"sep": sep} | ({} if kind == ".csv" else {"quoting": csv.QUOTE_NONE})
    first: Any = {"header": None, "names": ["smiles"], "usecols": [0]} if kind == ".smi" else {}  # SMILES, then a name
    try:
        require_unpacked(path)
        names = [] if kind == ".smi" else list(pd.read_csv(path, nrows=0, **options))
        if names and _has_no_header(names):
            first = {"header": None, "names": [str(i) for i in range(len(names))]}
        with pd.read_csv(path, chunksize=_ROWS_AT_ONCE, **options, **first) as tables:
            yield from tables if kind == ".csv" else map(_without_marks, tables)
    except Exception as error:  # what is damaged may break pandas, and what it reads through, in any way
        raise ValueError(f"{path} cannot be read: {error!r}. Is it whole?") from error


def _without_marks(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without the quotation marks around whole fields, and around names of columns."""
    text = table.select_dtypes(exclude="number")
    bare = text.apply(lambda column: column.str.replace(r'^"(.*)"$', r"\1", regex=True))
    return table.assign(**bare).rename(columns=lambda name: str(name).removeprefix('"').removesuffix('"'))


def _has_no_header(names: list[str]) -> bool:
    """Whether the first row is a molecule instead of the names of columns."""
    from rdkit import Chem

    return "smiles" not in map(str.lower, names) and Chem.MolFromSmiles(names[0]) is not None


def _column(path: Path, table: pd.DataFrame, column: str | None, targets: Sequence[str]) -> str:
    found = column or next((name for name in table if str(name).lower() == "smiles"), str(table.columns[0]))
    if missing := [name for name in (found, *targets) if name not in table]:
        raise ValueError(f"{path} has no column {missing}; it has {list(table)}.")
    return found


def _numbers(path: Path, first: int, table: pd.DataFrame) -> Any:
    """What `y` takes of rows that begin with the `first` one; NaN where a field is empty. [num_rows, num_targets]"""
    numbers = table.apply(pd.to_numeric, errors="coerce").to_numpy("float64")
    # What is not a number, and what float32 does not hold, is not to pass for a field that is empty or infinite.
    odd = table.notna().to_numpy(bool) & ~(abs(numbers) < 3.4e38)
    for row, place in zip(*odd.nonzero(), strict=True):
        raise ValueError(f"{path}, row {first + row}: {table.columns[place]} is {table.iat[row, place]!r}, no number.")
    return numbers.astype("float32")


def _place(molecule: Any, seed: int) -> Tensor | None:
    """Return positions of the atoms (angstrom) [num_atoms, 3]; None if none are found.

    Of several molecules, as in a salt, no way to lie next to each other follows from SMILES, and rdkit puts all of them
    in one place.
    """
    from rdkit.Chem import AllChem, GetMolFrags

    if len(GetMolFrags(molecule)) > 1:
        return None
    parameters = AllChem.ETKDGv3()
    parameters.randomSeed = seed
    if AllChem.EmbedMolecule(molecule, parameters) != 0:
        return None
    if AllChem.MMFFHasAllMoleculeParams(molecule):
        AllChem.MMFFOptimizeMolecule(molecule)
    return torch.tensor(molecule.GetConformer().GetPositions(), dtype=torch.float32)


def _graph(molecule: Any, smiles: str, y: Any, pos: Tensor | None) -> Data:
    atoms = [[int(getattr(atom, name)()) for name in _OF_ATOM] for atom in molecule.GetAtoms()]
    ends, bonds = [], []
    for bond in molecule.GetBonds():
        order = 4 if bond.GetIsAromatic() else int(bond.GetBondTypeAsDouble())
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        ends += [(i, j), (j, i)]
        bonds += [(order, int(bond.GetIsConjugated()), int(bond.IsInRing()))] * 2
    data = Data(
        z=torch.tensor([atom.GetAtomicNum() for atom in molecule.GetAtoms()]),
        x=torch.tensor(atoms),
        edge_index=torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T.contiguous(),
        edge_attr=torch.tensor(bonds, dtype=torch.int64).reshape(-1, 3),
        smiles=smiles,
    )
    if len(y):
        data.y = torch.from_numpy(y.copy())[None]
    if pos is not None:
        data.pos = pos
    return data
