"""Tables of molecules in SMILES, as graphs of atoms and bonds; with positions when asked."""

import csv
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from popgeo.convert.named_tables import refuse_broken_lines
from popgeo.convert.packed_files import open_unpacked

_ROWS_AT_ONCE, _MOST_COLUMNS = 4096, 4_000
# Rings are found in time that grows with rings and the square of atoms: these limits keep it below some seconds a row.
_MOST_CHARACTERS, _MOST_ATOMS, _MOST_RING_ATOMS, _MOST_PLACED = 10_000, 2_000, 200_000, 500
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
    for name, table in _tables(path, column, targets):
        refuse_broken_lines(path, table)
        for smiles, y in zip(table[name], _numbers(path, number, table[list(targets)]), strict=True):
            molecule, pos, too_large = None, None, ""
            if isinstance(smiles, str) and not (too_large := _too_large(smiles)):
                molecule = Chem.MolFromSmiles(smiles)
            if molecule is not None and positions and all(atom.GetAtomicNum() for atom in molecule.GetAtoms()):
                molecule = Chem.AddHs(molecule)
                if molecule.GetNumAtoms() > _MOST_PLACED:
                    too_large = f"it has more than {_MOST_PLACED} atoms, for which no shape is searched"
                else:
                    pos = _place(molecule, seed)
            if molecule is None or molecule.GetNumAtoms() == 0 or (positions and pos is None):
                if not skip:
                    what = "given a shape" if molecule is not None and molecule.GetNumAtoms() else "read"
                    if positions and molecule is not None and len(Chem.GetMolFrags(molecule)) > 1:
                        what = "given one shape, as it consists of several molecules,"
                    reason = f": {too_large}" if too_large else ""
                    raise ValueError(
                        f"{path}, row {number}: {str(smiles)[:200]!r} cannot be {what} by rdkit{reason}. Correct it or "
                        "pass --skip."
                    )
                skipped += 1
            else:
                yield _graph(molecule, smiles, y, pos)
            number += 1
    if skipped:
        warnings.warn(f"{skipped:,} of {number:,} rows of {path} were left out.", stacklevel=2)


def _tables(path: Path, column: str | None, targets: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name of the column of SMILES, and parts of the table with the columns that are read.

    Raises:
        ValueError: the file cannot be read, or has no such columns.
    """
    kind = next((suffix for suffix in path.suffixes if suffix in (".csv", ".tsv", ".smi")), ".csv")
    sep = {".smi": r"\s+", ".tsv": "\t"}.get(kind, ",")
    # Only CSV has quotation marks that enclose; elsewhere one at the start of a name would swallow lines.
    options: dict[str, Any] = {"sep": sep} | ({} if kind == ".csv" else {"quoting": csv.QUOTE_NONE})
    first: Any = {"header": None, "names": ["smiles"], "usecols": [0]}  # of .smi: SMILES, then a name
    try:
        # Pandas unpacks more kinds of archives than these, without a limit.
        with open_unpacked(path) as file:
            if kind == ".smi":
                found = _column(["smiles"], column, targets)
            else:
                _require_few_columns(file, sep)
                names = [_bare(name) for name in pd.read_csv(file, nrows=0, **options)]
                file.seek(0)
                has_header = not names or not _has_no_header(names)
                names = names if has_header else [str(i) for i in range(len(names))]
                found = _column(names, column, targets)
                first = {"header": 0 if has_header else None, "names": names}
                if kind != ".csv":  # whose other columns may have lines that a quotation mark has swallowed
                    first |= {"usecols": list(dict.fromkeys([found, *targets]))}
            for table in pd.read_csv(file, chunksize=_ROWS_AT_ONCE, **options, **first):
                yield found, table if kind == ".csv" else _without_marks(table)
    except _MissingColumnError as error:
        raise ValueError(f"{path} {error}") from None
    except Exception as error:  # what is damaged may break pandas, and what it reads through, in any way
        raise ValueError(f"{path} cannot be read: {error!r}. Is it whole?") from error


def _bare(name: object) -> str:
    """Return the name of a column without the quotation marks around it."""
    return str(name).removeprefix('"').removesuffix('"')


def _without_marks(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without the quotation marks around whole fields."""
    text = table.select_dtypes(exclude="number")
    return table.assign(**text.apply(lambda column: column.str.replace(r'^"(.*)"$', r"\1", regex=True)))


class _MissingColumnError(ValueError):
    """A column that a table does not have."""


def _require_few_columns(file: IO[bytes], sep: str) -> None:
    """Check how many columns the first row has; the file is at its start before and after.

    Raises:
        ValueError: there are more than pandas reads in a time that follows from the size of the file.
    """
    text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="")
    count = len(next(filter(None, csv.reader(text, delimiter=sep)), []))
    text.detach()
    file.seek(0)
    if count > _MOST_COLUMNS:
        raise ValueError(f"it has {count:,} columns, more than {_MOST_COLUMNS:,}")


def _has_no_header(names: list[str]) -> bool:
    """Whether the first row is a molecule instead of the names of columns."""
    from rdkit import Chem

    if "smiles" in map(str.lower, names):
        return False
    return bool(_too_large(names[0])) or Chem.MolFromSmiles(names[0]) is not None  # too large: the row is refused


def _too_large(smiles: str) -> str:
    """Return why a molecule is not given to rdkit, whose time and memory grow faster than it; empty if it is."""
    from rdkit import Chem

    if len(smiles) > _MOST_CHARACTERS:
        return f"it has more than {_MOST_CHARACTERS:,} characters"
    if (molecule := Chem.MolFromSmiles(smiles, sanitize=False)) is None:
        return ""
    atoms, rings = molecule.GetNumAtoms(), molecule.GetNumBonds() - molecule.GetNumAtoms() + 1
    if atoms > _MOST_ATOMS or rings * atoms > _MOST_RING_ATOMS:
        return f"it has {atoms:,} atoms and {max(0, rings):,} rings; {_MOST_ATOMS:,} atoms are read, fewer in rings"
    return ""


def _column(names: Sequence[str], column: str | None, targets: Sequence[str]) -> str:
    found = column or next((name for name in names if str(name).lower() == "smiles"), str(names[0]) if names else "")
    if missing := [name for name in (found, *targets) if name not in names]:
        raise _MissingColumnError(f"has no column {missing}; it has {names}.")
    return found


def _numbers(path: Path, first: int, table: pd.DataFrame) -> Any:
    """What `y` takes of rows that begin with the `first` one; NaN where a field is empty, [num_rows, num_targets]."""
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
