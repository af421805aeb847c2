"""Tables of molecules in SMILES as graphs of atoms and bonds, optionally with positions."""

import csv
import io
import re
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
# The time to find rings grows with rings and the square of atoms; these limits keep it below a few seconds per row.
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
    """Yield the molecules of a table, row by row.

    Each molecule has `z` [num_atoms], `x` int64 [num_atoms, 6] (degree, charge, hydrogens, aromatic, in a ring,
    chirality), `edge_index` with each bond in both directions, `edge_attr` int64 [num_bonds * 2, 3] (order: 1, 2, 3, or
    4 if aromatic; conjugated; in a ring), `smiles`, and `y` [1, num_targets].

    Args:
        path: CSV, TSV, or `.smi`, which has no header; also compressed. If the first cell of a CSV or TSV is a SMILES,
            the file has no header, and its columns are "0", "1" and so on. Quotation marks enclose a field of a CSV. In
            a TSV and in `.smi` they are letters, except around a whole field.
        column: The column of SMILES. Default: the column with this name, or the first column.
        targets: The columns of `y`.
        positions: Whether to add hydrogens and `pos` in angstrom, for one molecule per row, by ETKDG (Wang, Witnek,
            Landrum, Riniker 2020, doi 10.1021/acs.jcim.0c00025) and the force field MMFF94.
        seed: Seed of positions.
        skip: Whether to leave out rows that rdkit cannot read or place, with one warning at the end. Default: raise.

    Raises:
        ValueError: rdkit or a column is missing, a row cannot be read, or a field of a CSV spans several lines.
    """
    try:
        from rdkit import Chem, RDLogger
    except ImportError as error:
        raise ValueError("Reading SMILES needs rdkit: pip install rdkit.") from error
    RDLogger.DisableLog("rdApp.*")  # errors report the faults of rows
    skipped = number = 0
    for name, table in _tables(path, column, targets):
        refuse_broken_lines(path, table, number)
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
    """Yield the name of the column of SMILES, and parts of the table.

    Raises:
        ValueError: the file cannot be read, or a column is missing.
    """
    kind = next((suffix for suffix in path.suffixes if suffix in (".csv", ".tsv", ".smi")), ".csv")
    sep = {".smi": r"\s+", ".tsv": "\t"}.get(kind, ",")
    # Only in CSV do quotation marks enclose fields; elsewhere a mark at the start of a name would swallow lines.
    options: dict[str, Any] = {"sep": sep} | ({} if kind == ".csv" else {"quoting": csv.QUOTE_NONE})
    first: Any = {"header": None, "names": ["smiles"], "usecols": [0]}  # .smi has SMILES, then a name
    try:
        # Pandas would unpack more kinds of archives, without a limit.
        with open_unpacked(path) as file:
            if kind == ".smi":
                found = _column(["smiles"], column, targets)
            else:
                _require_few_columns(file, sep)
                names = [re.sub('^"|"$', "", str(name)) for name in pd.read_csv(file, nrows=0, **options)]
                file.seek(0)
                has_header = not names or not _has_no_header(names)
                names = names if has_header else [str(i) for i in range(len(names))]
                found = _column(names, column, targets)
                first = {"header": 0 if has_header else None, "names": names}
                if kind != ".csv":  # quotation marks may have swallowed lines in other columns
                    first |= {"usecols": list(dict.fromkeys([found, *targets]))}
            for table in pd.read_csv(file, chunksize=_ROWS_AT_ONCE, **options, **first):
                yield found, table if kind == ".csv" else _without_marks(table)
    except _MissingColumnError as error:
        raise ValueError(f"{path} {error}") from None
    except Exception as error:  # a damaged file may raise any error
        raise ValueError(f"{path} cannot be read: {error!r}. Check that the file is complete.") from error


def _without_marks(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without the quotation marks around whole fields."""
    text = table.select_dtypes(exclude="number")
    return table.assign(**text.apply(lambda column: column.str.replace(r'^"(.*)"$', r"\1", regex=True)))


class _MissingColumnError(ValueError):
    """An error about a missing column of a table."""


def _require_few_columns(file: IO[bytes], sep: str) -> None:
    """Check the number of columns in the first row, and return to the start of the file.

    Raises:
        ValueError: there are too many columns; pandas would need very long.
    """
    text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="")
    count = len(next(filter(None, csv.reader(text, delimiter=sep)), []))
    text.detach()
    file.seek(0)
    if count > _MOST_COLUMNS:
        raise ValueError(f"it has {count:,} columns, more than {_MOST_COLUMNS:,}")


def _has_no_header(names: list[str]) -> bool:
    """Check whether the first row is a molecule instead of names of columns."""
    from rdkit import Chem

    if "smiles" in map(str.lower, names):
        return False
    return bool(_too_large(names[0])) or Chem.MolFromSmiles(names[0]) is not None  # a too large molecule raises later


def _too_large(smiles: str) -> str:
    """Return the reason if a molecule is too large for rdkit's time and memory; otherwise an empty text."""
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
    """Return the values of `y` for rows from number `first` on, NaN for an empty field, [num_rows, num_targets]."""
    numbers = table.apply(pd.to_numeric, errors="coerce").to_numpy("float64")
    # Text, and numbers beyond float32, must not become NaN or infinite.
    odd = table.notna().to_numpy(bool) & ~(abs(numbers) < 3.4e38)
    for row, place in zip(*odd.nonzero(), strict=True):
        found = f"{table.columns[place]} is {table.iat[row, place]!r}"
        raise ValueError(f"{path}, row {first + row}: {found}, not a number.")
    return numbers.astype("float32")


def _place(molecule: Any, seed: int) -> Tensor | None:
    """Return positions of the atoms (angstrom) [num_atoms, 3]; None without a result.

    SMILES of several molecules, as in a salt, do not determine their arrangement, and rdkit would put all of them in
    one place.
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
