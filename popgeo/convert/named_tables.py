"""Triples and events from text and Parquet files, with the names of nodes and relations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import TemporalData


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NamedTriples:
    """The triples of a knowledge graph, with the names of entities and relations.

    Args:
        triples: Head, relation and tail of each triple. int64 [num_triples, 3]
        entities: The name of each entity.
        relations: The name of each relation.
    """

    triples: Tensor
    entities: pd.Index
    relations: pd.Index

    def __repr__(self) -> str:
        names = f"{len(self.entities):,} entities, {len(self.relations):,} relations"
        return f"NamedTriples({len(self.triples):,} of {names})"


def read_triples(path: str | Path, like: NamedTriples | None = None, separator: str = "\t") -> NamedTriples:
    r"""Read triples from a text file with a head, a relation and a tail per line; numbers follow the order of names.

    Args:
        path: The file, which may be compressed.
        like: Triples that were read before, such as the training triples; the same names get the same numbers.
        separator: The text between columns.

    Raises:
        ValueError: a line does not have three columns, or has a name that `like` does not have.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "family.tsv")
        ...     _ = path.write_text("Ada\tknows\tBen\nBen\tknows\tAda\n")
        ...     known = read_triples(path)
        >>> known, known.triples.tolist(), list(known.entities)
        (NamedTriples(2 of 2 entities, 1 relations), [[0, 0, 1], [1, 0, 0]], ['Ada', 'Ben'])
    """
    # Names are literal: "NA" and "1.0" are names, and a quotation mark is a letter.
    table = _table(path, sep=separator, header=None, dtype=str, keep_default_na=False, quoting=3)
    odd = (table.isna() | (table == "")).any(axis=1).to_numpy()
    if table.shape[1] != 3 or odd.any():
        what = f"{table.shape[1]} columns" if table.shape[1] != 3 else f"an empty name in line {odd.argmax() + 1}"
        raise ValueError(
            f"{path} has {what}. Triples have a head, a relation and a tail, with {separator!r} between them. Pass "
            "separator= for a different separator."
        )
    ends = pd.concat([table[0], table[2]])
    entities = pd.Index(np.sort(ends.unique())) if like is None else like.entities
    relations = pd.Index(np.sort(table[1].unique())) if like is None else like.relations
    columns = [_numbers(path, table[i], names) for i, names in enumerate((entities, relations, entities))]
    return NamedTriples(triples=torch.from_numpy(np.stack(columns, axis=1)), entities=entities, relations=relations)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NamedEvents:
    """Events in the order of time, with the names of their nodes.

    Args:
        data: The events, as `FixedSizeEventLoader` takes them.
        sources: The name of each source.
        destinations: The name of each destination; destination i is node `len(sources) + i` if the graph is bipartite.
    """

    data: TemporalData
    sources: pd.Index
    destinations: pd.Index

    def __repr__(self) -> str:
        names = f"{len(self.sources):,} sources, {len(self.destinations):,} destinations"
        return f"NamedEvents({len(self.data.src):,} of {names})"


def read_events(
    path: str | Path,
    source: str,
    destination: str,
    time: str,
    features: Sequence[str] = (),
    *,
    bipartite: bool = True,
    sort: bool = False,
    like: NamedEvents | None = None,
) -> NamedEvents:
    r"""Read events from a CSV or Parquet file with an event per row.

    Args:
        path: The file; Parquet needs pyarrow (extra `stores`).
        source: The column of sources.
        destination: The column of destinations.
        time: The column of times: whole numbers, or dates, which become numbers since 1970 in the unit of the column.
        features: Columns of numbers, which become `msg`.
        bipartite: Whether sources and destinations are two kinds of nodes, such as users and items. Default: True.
        sort: Whether to sort the events by time; simultaneous events keep the order of the file.
        like: Events that were read before; the same names get the same numbers.

    Raises:
        ValueError: a column is missing or has gaps, times are not sorted or not whole, or `like` lacks a name.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "visits.csv")
        ...     _ = path.write_text("who,page,at\nAda,home,3\nBen,news,5\n")
        ...     visits = read_events(path, "who", "page", "at")
        >>> visits, visits.data.dst.tolist()
        (NamedEvents(2 of 2 sources, 2 destinations), [2, 3])
    """
    # Names such as "NA" and "007" are names.
    table = _table(path, dtype={source: str, destination: str}, keep_default_na=False)
    if lacking := [name for name in (source, destination, time, *features) if name not in table.columns]:
        raise ValueError(f"{path} has no columns {lacking}; there are {list(table.columns)}.")
    columns = table[list(dict.fromkeys([time, *features]))]
    numbers = columns.apply(pd.to_numeric, errors="coerce")  # a missing date becomes a number here
    ends = table[[source, destination]]
    missing = columns.isna() | numbers.isna()
    largest = [np.finfo(np.float32 if name in features else np.float64).max for name in numbers]
    too_large = numbers.mask(missing, 0).astype(np.float64).abs().gt(largest, axis=1)
    odd = pd.concat([ends.isna() | (ends == ""), missing | too_large], axis=1)
    if odd.any(axis=None):
        row, column = np.argwhere(odd.to_numpy())[0]
        where = f"column {odd.columns[column]!r}, row {row}, counted from 0"
        raise ValueError(f"{path} lacks a value, or has no finite number, in {where}.")
    times = _whole(path, numbers[time])
    order = np.argsort(times, kind="stable")
    if not sort and (times[1:] < times[:-1]).any():
        back = int((times[1:] < times[:-1]).argmax()) + 1
        raise ValueError(f"Row {back} of {path}, counted from 0, is earlier than the one before. Pass sort=True.")
    table, numbers, times = table.iloc[order], numbers.iloc[order], times[order]
    if like is not None:
        sources, destinations = like.sources, like.destinations
    else:
        sources = pd.Index(np.sort(pd.concat([table[source], *([] if bipartite else [table[destination]])]).unique()))
        destinations = pd.Index(np.sort(table[destination].unique())) if bipartite else sources
    first = len(sources) if bipartite else 0
    data = TemporalData(
        src=torch.from_numpy(_numbers(path, table[source], sources)),
        dst=torch.from_numpy(_numbers(path, table[destination], destinations) + first),
        t=torch.from_numpy(times),
    )
    if features:
        data.msg = torch.tensor(numbers[list(features)].to_numpy(np.float32))
    return NamedEvents(data=data, sources=sources, destinations=destinations)


def _whole(path: Any, column: pd.Series) -> np.ndarray:
    """Return times as int64, so that differences and comparisons are exact.

    Raises:
        ValueError: a time is not a whole number, or its dtype does not store it exactly.
    """
    times = column.to_numpy()
    kind = times.dtype.kind
    if kind not in "iuf":
        raise ValueError(f"Column {column.name!r} of {path} is {column.dtype}; times are whole numbers.")
    largest = 2.0 ** (np.finfo(times.dtype).nmant + 1 if kind == "f" else 63)  # larger floats are not exact
    broken = times[(times != np.floor(times)) | (np.abs(times) >= largest)] if kind == "f" else times[times > 2**63 - 1]
    if len(broken):
        raise ValueError(
            f"Column {column.name!r} of {path} has times that are not exact whole numbers, such as {broken[0]}."
        )
    return times.astype(np.int64)


def refuse_broken_lines(path: str | Path, table: pd.DataFrame, first: int = 0) -> None:
    """Check the fields of a part of a table of text: their number in a line, and that none spans several lines.

    Args:
        path: The file.
        table: The part.
        first: Number of its first row.

    Raises:
        ValueError: lines have more fields than there are names, or rows between two quotation marks are one field.
    """
    # If a line has more fields than there are names, pandas takes its first field for the name of the row.
    if not table.index.equals(pd.RangeIndex(first, first + len(table))):
        what = f"more fields in a line than names of columns, {list(table.columns)}"
        raise ValueError(f"{path} has {what}. Name all columns, and remove commas at the ends of lines.")
    for name, column in table.select_dtypes(exclude=["number", "bool"]).items():
        odd = column.astype(str).str.contains(r"[\r\n]").to_numpy(bool)
        if odd.any():
            row = int(odd.argmax())
            raise ValueError(
                f"{path}, row {table.index[row]}, counted from 0: column {name!r} has a field of several lines, "
                f"{column.iloc[row][:40]!r}. A quotation mark opens it: double the mark if it is a letter of a name, "
                "and enclose the name in marks. Fields may not have line breaks."
            )


def _table(path: str | Path, **options: Any) -> pd.DataFrame:
    """Read the table of a text file or of a Parquet file."""
    try:
        is_parquet = str(path).endswith(".parquet")
        table = pd.read_parquet(path) if is_parquet else pd.read_csv(path, **options)
    except (ValueError, EOFError) as error:  # for example an empty file, or a wrong encoding
        raise ValueError(f"{path} cannot be read: {str(error).strip()}. A table is text in UTF-8.") from error
    if not is_parquet:
        refuse_broken_lines(path, table)
    return table


def _numbers(path: Any, column: pd.Series, names: pd.Index) -> np.ndarray:
    """Return the number of each name, int64 [number of rows]."""
    found = names.get_indexer(pd.Index(column))
    if (found < 0).any():
        row = int((found < 0).argmax())
        raise ValueError(f"{path} names {column.iloc[row]!r}, which the vocabulary does not have. Leave out its rows.")
    return found.astype(np.int64)
