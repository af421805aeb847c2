"""Triples and events from files as people have them, with the names that their numbers represent."""

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
    """The triples of a knowledge graph, and what entities and relations are called.

    Args:
        triples: Head, relation and tail of each. int64 [num_triples, 3]
        entities: The name of each entity.
        relations: The name of each relation.
    """

    triples: Tensor
    entities: pd.Index
    relations: pd.Index

    def __repr__(self) -> str:
        return (
            f"NamedTriples({len(self.triples):,} of {len(self.entities):,} entities, {len(self.relations):,} relations)"
        )


def read_triples(path: str | Path, like: NamedTriples | None = None, separator: str = "\t") -> NamedTriples:
    """Reads triples from a text file, a head, a relation and a tail a line, numbered in the order of their names.

    Args:
        path: The file, which may be compressed.
        like: Triples that were read before, such as the training triples, whose numbers these get.
        separator: What stands between the columns.

    Raises:
        ValueError: a line has other than three columns, or a name that `like` does not have.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "family.tsv")
        ...     _ = path.write_text("Ada\\tknows\\tBen\\nBen\\tknows\\tAda\\n")
        ...     known = read_triples(path)
        >>> known, known.triples.tolist(), list(known.entities)
        (NamedTriples(2 of 2 entities, 1 relations), [[0, 0, 1], [1, 0, 0]], ['Ada', 'Ben'])
    """
    # Names are taken as they stand: "NA" and "1.0" are names, and a quotation mark is one of its letters.
    table = _table(path, sep=separator, header=None, dtype=str, keep_default_na=False, quoting=3)
    odd = (table.isna() | (table == "")).any(axis=1).to_numpy()
    if table.shape[1] != 3 or odd.any():
        what = f"{table.shape[1]} columns" if table.shape[1] != 3 else f"an empty name in line {odd.argmax() + 1}"
        raise ValueError(
            f"{path} has {what}. Triples have a head, a relation and a tail, with {separator!r} between them; pass "
            "separator= for another."
        )
    ends = pd.concat([table[0], table[2]])
    entities = pd.Index(np.sort(ends.unique())) if like is None else like.entities
    relations = pd.Index(np.sort(table[1].unique())) if like is None else like.relations
    columns = [_numbers(path, table[i], names) for i, names in enumerate((entities, relations, entities))]
    return NamedTriples(triples=torch.from_numpy(np.stack(columns, axis=1)), entities=entities, relations=relations)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NamedEvents:
    """Events in the order of time, and what their nodes are called.

    Args:
        data: The events, as `FixedSizeEventLoader` takes them.
        sources: The name of each source.
        destinations: The name of each destination; destination i is node `len(sources) + i` unless both are one set.
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
    """Reads events from a CSV or Parquet file, an event a row.

    Args:
        path: The file; Parquet needs pyarrow (extra `stores`).
        source: The column of sources.
        destination: The column of destinations.
        time: The column of times, whole numbers.
        features: Columns of numbers, together `msg`.
        bipartite: Whether sources and destinations are two kinds of nodes, such as users and items.
        sort: Puts the events in the order of time; events of one time stay in the order of the file.
        like: Events that were read before, whose numbers of nodes these get.

    Raises:
        ValueError: a column lacks or has gaps, times are not sorted or no whole numbers, or `like` lacks a name.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "visits.csv")
        ...     _ = path.write_text("who,page,at\\nAda,home,3\\nBen,news,5\\n")
        ...     visits = read_events(path, "who", "page", "at")
        >>> visits, visits.data.dst.tolist()
        (NamedEvents(2 of 2 sources, 2 destinations), [2, 3])
    """
    # Names such as "NA" and "007" are names.
    table = _table(path, dtype={source: str, destination: str}, keep_default_na=False)
    if lacking := [name for name in (source, destination, time, *features) if name not in table.columns]:
        raise ValueError(f"{path} has no columns {lacking}; there are {list(table.columns)}.")
    numbers = table[list(dict.fromkeys([time, *features]))].apply(pd.to_numeric, errors="coerce")
    ends = table[[source, destination]]
    odd = pd.concat([ends.isna() | (ends == ""), ~np.isfinite(numbers.astype(np.float64))], axis=1)
    if odd.any(axis=None):
        row, column = np.argwhere(odd.to_numpy())[0]
        where = f"column {odd.columns[column]!r}, row {row}, counted from 0"
        raise ValueError(f"{path} lacks a value, or has no finite number, in {where}.")
    times = numbers[time].to_numpy()
    largest = 1 << (53 if times.dtype.kind == "f" else 63)  # float64 holds no larger number exactly
    if len(broken := times[(times != np.floor(times)) | (np.abs(times) >= largest)]):
        raise ValueError(f"Column {time!r} of {path} has times that are not exact whole numbers, such as {broken[0]}.")
    order = np.argsort(times, kind="stable")
    if not sort and (np.diff(times) < 0).any():
        back = int((np.diff(times) < 0).argmax()) + 1
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
        t=torch.from_numpy(times.astype(np.int64)),
    )
    if features:
        data.msg = torch.tensor(numbers[list(features)].to_numpy(np.float32))
    return NamedEvents(data=data, sources=sources, destinations=destinations)


def _table(path: str | Path, **options: Any) -> pd.DataFrame:
    """The table of a file of text, or of Parquet."""
    try:
        return pd.read_parquet(path) if str(path).endswith(".parquet") else pd.read_csv(path, **options)
    except (ValueError, EOFError) as error:  # such as pandas' own for an empty file, and the codec's
        raise ValueError(f"{path} cannot be read: {str(error).strip()}. A table is text in UTF-8.") from error


def _numbers(path: Any, column: pd.Series, names: pd.Index) -> np.ndarray:
    """The number of each name. int64 [number of rows]"""
    found = names.get_indexer(pd.Index(column))
    if (found < 0).any():
        row = int((found < 0).argmax())
        raise ValueError(f"{path} names {column.iloc[row]!r}, which the vocabulary does not have. Leave its rows out.")
    return found.astype(np.int64)
